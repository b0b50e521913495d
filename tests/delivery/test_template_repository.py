"""Template versions are validated when stored, and keep what pending notifications need."""

import asyncio
from typing import Any

import pytest

from tests.delivery.services import ACME, HOUR, SECOND, Services, in_app, reminder
from tidings.delivery.rows import change, encode
from tidings.delivery.templates import InAppPart, Parts, PushPart, SmsPart, Template, WebhookPart
from tidings.delivery.templates.repository import Latest
from tidings.domain.errors import Conflict, Invalid
from tidings.ports.tables import Put, RowKey
from tidings.shapes.notification import NewTemplate


async def test_every_change_is_a_new_version(services: Services) -> None:
    first = await services.templates.get(ACME, "reminder")
    assert first is not None
    assert (first.template.version, first.needs, first.channels) == (1, ("name", "what"), ("email", "sms"))
    same = await services.templates.put(ACME, "reminder", reminder())
    assert same.template.version == 1
    second = await services.templates.put(ACME, "reminder", reminder("Dear {{ name }}"))
    assert second.template.version == 2
    versions = await services.templates.versions(ACME, "reminder")
    assert [one.version for one in versions] == [2, 1]
    assert [one.version for one in await services.templates.versions(ACME, "reminder", before=2)] == [1]
    old = await services.templates.get(ACME, "reminder", 1)
    assert old is not None
    assert old.template.parts.email["en"].subject == "Hi {{ name }}"
    assert await services.templates.get(ACME, "reminder", 3) is None
    await services.templates.put(ACME, "note", in_app())
    page = await services.templates.page(ACME, limit=1)
    assert [(one.name, one.latest) for one in page.templates] == [("note", 1)]
    assert [one.name for one in (await services.templates.page(ACME, page.cursor)).templates] == ["reminder"]


async def test_wrong_templates_are_refused_when_stored(services: Services) -> None:
    for draft, field in (
        (reminder("Hi {{ name"), "parts.email.en.subject"),
        (reminder(text="{% nonsense %}"), "parts.email.en.text"),
        (reminder(expires_after="soon"), "expires_after"),
        (reminder(urgency="asap", expires_after="PT1H"), "urgency"),
        (NewTemplate(Parts()), "parts"),
        (reminder(" "), "parts.email.en.subject"),
        (NewTemplate(Parts(sms={"en": SmsPart("Hi"), "de": SmsPart("")})), "parts.sms.de.text"),
        (NewTemplate(Parts(push={"en": PushPart("", "Hi")})), "parts.push.en.title"),
        (NewTemplate(Parts(in_app={"en": InAppPart("", "Hi")})), "parts.in_app.en.title"),
    ):
        with pytest.raises(Invalid) as refused:
            await services.templates.put(ACME, "wrong", draft)
        assert refused.value.field == field
    with pytest.raises(Invalid):
        await services.templates.put(ACME, "a/b", reminder())
    assert await services.templates.get(ACME, "wrong") is None


ENDLESS = "{% for i in (1..1000000000) %}x{% endfor %}"


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (reminder("s\nx"), "parts.email.en.subject"),
        (reminder("Hi {{ name }}\nand {{ what }}"), "parts.email.en.subject"),
        (reminder("s\x07x"), "parts.email.en.subject"),
        (reminder(text=ENDLESS), "parts.email.en.text"),
        (reminder(text="{{ name }}" + ENDLESS), "parts.email.en.text"),
        (reminder(text="{% if name %}" + ENDLESS + "{% endif %}"), "parts.email.en.text"),
        (reminder(text="Hi {{ name }}\x00"), "parts.email.en.text"),
        (reminder(text="Hi {% if name %}\x00{% endif %}"), "parts.email.en.text"),
        (reminder("Hi {{ name }}", "{{ 1 | divided_by: 0 }}"), "parts.email.en.text"),
        (NewTemplate(Parts(sms={"en": SmsPart("Hi\x00")})), "parts.sms.en.text"),
        (NewTemplate(Parts(sms={"en": SmsPart("{% if false %}x{% endif %}")})), "parts.sms.en.text"),
        (NewTemplate(Parts(sms={"en": SmsPart("x" * 2_000)})), "parts.sms.en.text"),
        (NewTemplate(Parts(push={"en": PushPart("a\nb", "Hi")})), "parts.push.en.title"),
        (NewTemplate(Parts(in_app={"en": InAppPart("a", "Hi\x00")})), "parts.in_app.en.body"),
    ],
)
async def test_what_can_never_be_rendered_is_refused_when_stored(
    services: Services, draft: NewTemplate, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await services.templates.put(ACME, "reminder", draft, force=True)
    assert refused.value.field == field
    stored = await services.templates.get(ACME, "reminder")
    assert stored is not None
    assert stored.template.version == 1


async def test_what_depends_on_variables_is_stored(services: Services) -> None:
    stored = await services.templates.put(
        ACME,
        "list",
        reminder(" {{ name }}\n", "{% for i in (1..what) %}{{ i }}\n{% endfor %}{{ what | divided_by: 0 }}"),
    )
    assert stored.needs == ("name", "what")
    await services.templates.put(ACME, "raw", NewTemplate(Parts(webhook={"en": WebhookPart({"a": "\x00{{ b }}"})})))


async def test_an_empty_text_of_an_earlier_release_can_be_read_and_replaced(services: Services) -> None:
    template = Template("old", Parts(sms={"en": SmsPart("")}))
    head, one = RowKey("template", ACME, "old"), RowKey("template_version", ACME, "old/1")
    stored = [Put(head, encode(Latest(1, 1)), 0, (1, 1, 0)), Put(one, encode(template), 0, ("old", 1))]
    assert await change(services.tables, [stored], services.clock.now())
    found = await services.templates.get(ACME, "old")
    assert found is not None
    assert found.template == template
    await services.templates.put(ACME, "old", NewTemplate(Parts(sms={"en": SmsPart("Hi")})))


async def test_preview(services: Services) -> None:
    content = await services.templates.preview(ACME, "reminder", "email", {"name": "Ada", "what": "nine"})
    assert content is not None
    assert (content.title, content.text) == ("Hi Ada", "It is nine.")
    with pytest.raises(Invalid, match="missing 'what'"):
        await services.templates.preview(ACME, "reminder", "sms", {"name": "Ada"})
    assert await services.templates.preview(ACME, "none", "sms", {}) is None


@pytest.mark.slow
async def test_parsing_a_large_template_does_not_block_the_event_loop(services: Services) -> None:
    large = NewTemplate(Parts(webhook={"en": WebhookPart({"a": "{{ a }}" * 2_000, "b": "{{ b }}" * 2_000})}))
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not putting.done():
            asyncio.get_running_loop().call_later(0.001, turn)

    putting = asyncio.create_task(services.templates.put(ACME, "large", large))
    turn()
    assert (await putting).needs == ("a", "b")
    assert turns > 20  # if it were parsed on the event loop, there would be none


async def test_a_version_that_needs_more_variables_is_refused_while_notifications_are_pending(
    services: Services,
) -> None:
    await services.notify(user="ada", template="reminder", variables={"what": "nine"}, at="+1h")
    await services.notify(user="ada", template="reminder", variables={"what": "nine", "where": "here"}, at="+1h")
    await services.notify(user="ada", template="reminder", variables={"what": "nine"}, at="+1h", version="current")
    more = reminder(text="It is {{ what }} {{ where }} {{ plan }}.")
    with pytest.raises(Conflict, match=r"needs where, which 1 pending"):
        await services.templates.put(ACME, "reminder", more)
    optional = reminder(text="It is {{ what }} {{ where | default: 'here' }}.")
    assert (await services.templates.put(ACME, "reminder", optional)).template.version == 2
    forced = await services.templates.put(ACME, "reminder", more, force=True)
    assert forced.template.version == 3
    with pytest.raises(Conflict, match=r"has no part for email, sms, which 2 pending notifications that take .* need:"):
        await services.templates.put(ACME, "reminder", NewTemplate(Parts(push={}, in_app=in_app().parts.in_app)))


async def test_the_refusal_of_a_version_says_what_it_lacks_and_what_notifications_lack(services: Services) -> None:
    await services.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="email", at="+1h")
    parts = Parts(sms={"en": SmsPart("{{ what }} {{ where }}")}, in_app=in_app().parts.in_app)
    with pytest.raises(Conflict) as refused:
        await services.templates.put(ACME, "reminder", NewTemplate(parts))
    assert str(refused.value) == (
        "version 2 has no part for email, which 1 pending notification that takes the latest version needs: keep that "
        "part, wait until they are sent, or store it anyway (?force=true, --force)"
    )
    await services.notify(user="ada", template="reminder", variables={"what": "nine"}, channel="sms", at="+1h")
    with pytest.raises(
        Conflict, match=r"needs where, which 1 .* lacks: make .* default; it has no part for email, which"
    ):
        await services.templates.put(ACME, "reminder", NewTemplate(parts))
    with pytest.raises(Conflict, match=r"2 pending notifications need the template reminder: .*\?force=true"):
        await services.templates.delete(ACME, "reminder")


async def test_released_notifications_that_are_not_settled_are_protected_too(services: Services) -> None:
    accepted = await services.notify(user="ada", template="reminder", variables={"what": "nine"}, at="+1h")
    services.clock.advance(2 * HOUR)
    assert len(await services.release("notify.email")) == 1
    more = reminder(text="It is {{ what }} {{ where }}.")
    waiting: list[dict[str, Any]] = [
        {"state": "processing"},
        {"state": "pending", "reason": "quiet_hours", "next_try": services.clock.now() + HOUR},
    ]
    for about in ({}, *waiting):  # before a worker claims it, while it is sent, while it waits for a retry
        if about:
            await services.deliver(accepted.id, provider_id=None, sent=None, **about)
        with pytest.raises(Conflict, match=r"needs where, which 1 pending"):
            await services.templates.put(ACME, "reminder", more)
        with pytest.raises(Conflict, match="1 pending"):
            await services.templates.delete(ACME, "reminder")
    await services.deliver(accepted.id)
    assert (await services.templates.put(ACME, "reminder", more)).template.version == 2
    assert await services.templates.delete(ACME, "reminder")


async def test_an_old_occurrence_that_still_waits_is_protected(services: Services) -> None:
    accepted = await services.notify(user="ada", template="reminder", variables={"what": "x"}, every="R/PT1H", count=4)
    for number in range(1, 5):
        state = {"state": "pending", "provider_id": None} if number == 1 else {}
        await services.deliver(accepted.id, name=f"{accepted.id}/{number}", due=services.clock.now(), **state)
        await services.release("notify.email")
        services.clock.advance(2 * HOUR)
    with pytest.raises(Conflict, match="1 pending"):
        await services.templates.delete(ACME, "reminder")
    await services.deliver(accepted.id)
    assert await services.templates.delete(ACME, "reminder")


async def test_delete_keeps_the_numbers(services: Services) -> None:
    accepted = await services.notify(user="ada", template="reminder", variables={"what": "x"}, at="+1h", version=1)
    with pytest.raises(Conflict, match="1 pending"):
        await services.templates.delete(ACME, "reminder")
    await services.cancellation.cancel(ACME, accepted.id)
    assert await services.templates.delete(ACME, "reminder")
    assert not await services.templates.delete(ACME, "reminder")
    assert await services.templates.get(ACME, "reminder") is None
    assert await services.templates.compiled(ACME, "reminder") is None
    assert (await services.templates.page(ACME)).templates == ()
    again = await services.templates.put(ACME, "reminder", reminder())
    assert again.template.version == 2


async def test_another_node_uses_the_new_version_within_a_second(services: Services) -> None:
    other = Services(services.store, services.clock).templates
    before = await other.compiled(ACME, "reminder")
    await services.templates.put(ACME, "reminder", NewTemplate(Parts(sms={"en": SmsPart("New")})))
    services.clock.advance(SECOND)
    after = await other.compiled(ACME, "reminder")
    assert before is not None
    assert after is not None
    assert (before.template.version, after.template.version) == (1, 2)

"""Templates: versions that are checked when stored, and do not take from pending notifications what they need."""

import asyncio
from typing import Any

import pytest

from tests.delivery.office import ACME, HOUR, SECOND, Office, in_app, reminder
from tidings.delivery.filing import ALL, encode
from tidings.delivery.templates import InAppPart, Parts, PushPart, SmsPart, Template, WebhookPart
from tidings.delivery.versions import Latest
from tidings.domain.errors import Conflict, Invalid
from tidings.ports import Key, Put
from tidings.shapes.notification import NewTemplate


async def test_versions(office: Office) -> None:
    first = await office.templates.get(ACME, "reminder")
    assert first is not None
    assert (first.template.version, first.needs, first.channels) == (1, ("name", "what"), ("email", "sms"))
    same = await office.templates.put(ACME, "reminder", reminder())
    assert same.template.version == 1
    second = await office.templates.put(ACME, "reminder", reminder("Dear {{ name }}"))
    assert second.template.version == 2
    versions = await office.templates.versions(ACME, "reminder")
    assert [one.version for one in versions] == [2, 1]
    assert [one.version for one in await office.templates.versions(ACME, "reminder", before=2)] == [1]
    old = await office.templates.get(ACME, "reminder", 1)
    assert old is not None
    assert old.template.parts.email["en"].subject == "Hi {{ name }}"
    assert await office.templates.get(ACME, "reminder", 3) is None
    await office.templates.put(ACME, "note", in_app())
    page = await office.templates.page(ACME, limit=1)
    assert [(one.name, one.latest) for one in page.templates] == [("note", 1)]
    assert [one.name for one in (await office.templates.page(ACME, page.cursor)).templates] == ["reminder"]


async def test_wrong_templates_are_refused_when_stored(office: Office) -> None:
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
            await office.templates.put(ACME, "wrong", draft)
        assert refused.value.field == field
    with pytest.raises(Invalid):
        await office.templates.put(ACME, "a/b", reminder())
    assert await office.templates.get(ACME, "wrong") is None


async def test_an_empty_text_of_earlier_days_can_be_read_and_replaced(office: Office) -> None:
    template = Template("old", Parts(sms={"en": SmsPart("")}))
    head, one = Key(ACME, "template", "old"), Key(ACME, "template_version", "old/1")
    stored = [Put(head, encode(Latest(1, 1)), 0, (ALL,)), Put(one, encode(template), 0)]
    assert await office.documents.change([stored], office.clock.now())
    found = await office.templates.get(ACME, "old")
    assert found is not None
    assert found.template == template
    await office.templates.put(ACME, "old", NewTemplate(Parts(sms={"en": SmsPart("Hi")})))


async def test_preview(office: Office) -> None:
    content = await office.templates.preview(ACME, "reminder", "email", {"name": "Ada", "what": "nine"})
    assert content is not None
    assert (content.title, content.text) == ("Hi Ada", "It is nine.")
    with pytest.raises(Invalid, match="missing 'what'"):
        await office.templates.preview(ACME, "reminder", "sms", {"name": "Ada"})
    assert await office.templates.preview(ACME, "none", "sms", {}) is None


@pytest.mark.slow
async def test_others_do_not_wait_while_a_large_template_is_parsed(office: Office) -> None:
    large = NewTemplate(Parts(webhook={"en": WebhookPart({"a": "{{ a }}" * 2_000, "b": "{{ b }}" * 2_000})}))
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not putting.done():
            asyncio.get_running_loop().call_later(0.001, turn)

    putting = asyncio.create_task(office.templates.put(ACME, "large", large))
    turn()
    assert (await putting).needs == ("a", "b")
    assert turns > 20  # while it is parsed on the loop itself, there is none


async def test_a_version_that_needs_more_is_refused_while_others_wait_for_it(office: Office) -> None:
    await office.notify(user="ada", template="reminder", variables={"what": "nine"}, at="+1h")
    await office.notify(user="ada", template="reminder", variables={"what": "nine", "where": "here"}, at="+1h")
    await office.notify(user="ada", template="reminder", variables={"what": "nine"}, at="+1h", version="current")
    more = reminder(text="It is {{ what }} {{ where }} {{ plan }}.")
    with pytest.raises(Conflict, match=r"needs where, which 1 pending"):
        await office.templates.put(ACME, "reminder", more)
    optional = reminder(text="It is {{ what }} {{ where | default: 'here' }}.")
    assert (await office.templates.put(ACME, "reminder", optional)).template.version == 2
    forced = await office.templates.put(ACME, "reminder", more, force=True)
    assert forced.template.version == 3
    with pytest.raises(Conflict, match="a part for email"):
        await office.templates.put(ACME, "reminder", NewTemplate(Parts(push={}, in_app=in_app().parts.in_app)))


async def test_what_has_left_and_is_not_settled_is_protected_too(office: Office) -> None:
    told = await office.notify(user="ada", template="reminder", variables={"what": "nine"}, at="+1h")
    office.clock.advance(2 * HOUR)
    assert len(await office.release("notify.email")) == 1
    more = reminder(text="It is {{ what }} {{ where }}.")
    waiting: list[dict[str, Any]] = [
        {"state": "processing"},
        {"state": "pending", "reason": "quiet_hours", "next_try": office.clock.now() + HOUR},
    ]
    for about in ({}, *waiting):  # before a worker took it up, while he sends it, while it waits for another turn
        if about:
            await office.deliver(told.id, provider_id=None, sent=None, **about)
        with pytest.raises(Conflict, match=r"needs where, which 1 pending"):
            await office.templates.put(ACME, "reminder", more)
        with pytest.raises(Conflict, match="1 pending"):
            await office.templates.delete(ACME, "reminder")
    await office.deliver(told.id)
    assert (await office.templates.put(ACME, "reminder", more)).template.version == 2
    assert await office.templates.delete(ACME, "reminder")


async def test_an_occurrence_of_long_ago_that_still_waits_is_protected(office: Office) -> None:
    told = await office.notify(user="ada", template="reminder", variables={"what": "x"}, every="R/PT1H", count=4)
    for number in range(1, 5):
        state = {"state": "pending", "provider_id": None} if number == 1 else {}
        await office.deliver(told.id, name=f"{told.id}/{number}", due=office.clock.now(), **state)
        await office.release("notify.email")
        office.clock.advance(2 * HOUR)
    with pytest.raises(Conflict, match="1 pending"):
        await office.templates.delete(ACME, "reminder")
    await office.deliver(told.id)
    assert await office.templates.delete(ACME, "reminder")


async def test_delete_keeps_the_numbers(office: Office) -> None:
    told = await office.notify(user="ada", template="reminder", variables={"what": "x"}, at="+1h", version=1)
    with pytest.raises(Conflict, match="1 pending"):
        await office.templates.delete(ACME, "reminder")
    await office.cancelling.cancel(ACME, told.id)
    assert await office.templates.delete(ACME, "reminder")
    assert not await office.templates.delete(ACME, "reminder")
    assert await office.templates.get(ACME, "reminder") is None
    assert await office.templates.compiled(ACME, "reminder") is None
    assert (await office.templates.page(ACME)).templates == ()
    again = await office.templates.put(ACME, "reminder", reminder())
    assert again.template.version == 2


async def test_another_node_takes_the_new_version_within_a_second(office: Office) -> None:
    other = Office(office.store, office.clock).templates
    before = await other.compiled(ACME, "reminder")
    await office.templates.put(ACME, "reminder", NewTemplate(Parts(sms={"en": SmsPart("New")})))
    office.clock.advance(SECOND)
    after = await other.compiled(ACME, "reminder")
    assert before is not None
    assert after is not None
    assert (before.template.version, after.template.version) == (1, 2)

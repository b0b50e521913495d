"""Templates that cannot be rendered are refused at acceptance, for every user with another result."""

from typing import Any

import msgspec
import pytest

from tests.delivery.services import ACME, Services
from tidings.delivery.accept.acceptance import Acceptance
from tidings.delivery.accept.dry_run import DryRun
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.people.profile import Profile
from tidings.delivery.templates import EmailPart, Parts, SmsPart
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.notifications.user import User
from tidings.shapes.notification import NewTemplate

ORDER = NewTemplate(
    Parts(
        email={
            "en": EmailPart("Hi {{ who }}", text="{% for i in items %}{{ i.name }}{% endfor %}{{ when | date: '%Y' }}"),
            "de": EmailPart("Na {{ who }}", text="{{ plan | default: 'x' | times: 2 | divided_by: 0 }}"),
        },
        sms={"en": SmsPart("{{ items.last.name }}")},
    )
)
GOOD = {"who": "Ada", "items": [{"name": "tea"}], "when": "2026-11-20"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"items": [{"nme": "typo"}]}, "order: email: parts.email.en.text: line 1: i.name is undefined"),
        ({"when": "next tuesday"}, "date cannot read 'next tuesday'"),
        ({"who": "Ada\r\nBcc: x@y.z"}, "parts.email.en.subject: has a line break"),
        ({"who": "x" * 600}, "becomes longer than 500"),
        ({"items": [{"name": "a\0b"}]}, "has a NUL"),
        ({"items": [{"name": " "}]}, "sms: parts.sms.en.text: becomes empty"),
    ],
)
async def test_a_template_that_cannot_be_rendered_is_refused_at_acceptance(
    services: Services, wrong: dict[str, Any], says: str
) -> None:
    await services.templates.put(ACME, "order", ORDER)
    with pytest.raises(Invalid) as refused:
        await services.notify(user="ada", template="order", variables=GOOD | wrong)
    assert refused.value.field == "variables"
    assert says in refused.value.detail
    assert (await services.notify(user="ada", template="order", variables=GOOD)).outcome == "scheduled"


async def test_rendering_is_tried_in_the_language_and_with_the_variables_of_each_user(services: Services) -> None:
    await services.templates.put(ACME, "order", ORDER)
    await services.users.put(ACME, "a:1", Profile(email="a@example.com"))
    await services.users.put(ACME, "a:2", Profile(email="a@example.com", locale="de"))
    await services.users.put(ACME, "a:3", Profile(email="a@example.com", locale="de", variables={"plan": "9"}))
    names = ("a:1", "a:2", "a:3", "a:4")
    accepted = await services.acceptance.accept(
        ACME, NotificationRequest(users=names, template="order", variables=GOOD, channel="email")
    )
    assert [(one.user, one.outcome) for one in accepted] == [
        ("a:1", "scheduled"),
        ("a:2", "rejected"),
        ("a:3", "rejected"),
        ("a:4", "rejected"),
    ]


async def test_users_whose_values_make_no_difference_are_rendered_once(services: Services) -> None:
    template = await services.templates.compiled(ACME, "reminder")
    ask = NotificationRequest(users=("ada",), template="reminder", variables={"what": "nine"})
    proving = DryRun(ACME, ask, template)
    for number in range(50):
        proving.check(("email",), User(f"u{number}", "Ada", f"u{number}@example.com", variables={"id": f"{number}"}))
    assert proving.renderings == 1
    proving.check(("email",), User("eve", "Eve", "eve@example.com"))
    assert proving.renderings == 1  # a short name, which is only printed, has room wherever another one has
    proving.check(("email",), User("ida", "Ada", "ida@example.com", locale="de"))
    proving.check(("email",), User("eva", "E" * 65, "eva@example.com"))
    proving.check(("email",), User("eva", "E" * 65, "eva@example.com"))
    assert proving.renderings == 3


async def test_a_channel_without_a_provider_is_refused(services: Services) -> None:
    served: frozenset[ChannelName] = frozenset({"email", "in_app"})
    some = Acceptance(services.tables, services.engine, services.templates, services.clock, served=served)
    for named, field in (({"channel": "sms"}, "channel"), ({"channels": ["email", "sms"]}, "channels")):
        ask = msgspec.convert({"user": "ada", "words": {"text": "Hi"}, **named}, NotificationRequest)
        with pytest.raises(Invalid, match="no provider for sms is configured: choose one of email, in_app") as refused:
            await some.accept(ACME, ask)
        assert refused.value.field == field
    [accepted] = await some.accept(ACME, NotificationRequest(user="ada", words=InlineContent("Hi"), channels="all"))
    assert accepted.channels == ("email", "in_app")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"channels": []}, "channels"),
        ({"channels": [], "channel": "email"}, "channels"),
        ({"words": {"text": "x", "html": "a\0b"}}, "words.html"),
        ({"words": {"text": "x" * (1 << 20)}, "channel": "webhook"}, "words"),
    ],
)
async def test_content_that_a_channel_cannot_send_is_refused(
    services: Services, wrong: dict[str, Any], field: str
) -> None:
    await services.users.put(ACME, "bob", Profile(email="b@example.com", webhook="https://hooks.example/in"))
    with pytest.raises(Invalid) as refused:
        await services.notify(**{"user": "bob", "words": {"text": "Hi"}, **wrong})
    assert refused.value.field == field

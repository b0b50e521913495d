"""What cannot be said is refused when it is accepted, for each who would read something else."""

from typing import Any

import msgspec
import pytest

from tests.delivery.office import ACME, Office
from tidings.delivery.asking import Notify
from tidings.delivery.notifying import Notifying
from tidings.delivery.profile import Profile
from tidings.delivery.proving import Proving
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
async def test_what_cannot_be_said_is_refused_at_once(office: Office, wrong: dict[str, Any], says: str) -> None:
    await office.templates.put(ACME, "order", ORDER)
    with pytest.raises(Invalid) as refused:
        await office.notify(user="ada", template="order", variables=GOOD | wrong)
    assert refused.value.field == "variables"
    assert says in refused.value.detail
    assert (await office.notify(user="ada", template="order", variables=GOOD)).outcome == "scheduled"


async def test_rendering_is_tried_in_each_users_language_with_their_variables(office: Office) -> None:
    await office.templates.put(ACME, "order", ORDER)
    await office.users.put(ACME, "a:1", Profile(email="a@example.com"))
    await office.users.put(ACME, "a:2", Profile(email="a@example.com", locale="de"))
    await office.users.put(ACME, "a:3", Profile(email="a@example.com", locale="de", variables={"plan": "9"}))
    names = ("a:1", "a:2", "a:3", "a:4")
    told = await office.notifying.accept(ACME, Notify(users=names, template="order", variables=GOOD, channel="email"))
    assert [(one.user, one.outcome) for one in told] == [
        ("a:1", "scheduled"),
        ("a:2", "rejected"),
        ("a:3", "rejected"),
        ("a:4", "rejected"),
    ]


async def test_many_who_read_the_same_are_proven_once(office: Office) -> None:
    template = await office.templates.compiled(ACME, "reminder")
    ask = Notify(users=("ada",), template="reminder", variables={"what": "nine"})
    proving = Proving(ACME, ask, template)
    for number in range(50):
        proving.check(("email",), User(f"u{number}", "Ada", f"u{number}@example.com", variables={"id": f"{number}"}))
    assert proving.renderings == 1
    proving.check(("email",), User("eve", "Eve", "eve@example.com"))
    proving.check(("email",), User("ida", "Ada", "ida@example.com", locale="de"))
    assert proving.renderings == 3


async def test_a_channel_that_nobody_serves_is_refused(office: Office) -> None:
    served: frozenset[ChannelName] = frozenset({"email", "in_app"})
    some = Notifying(office.documents, office.engine, office.users, office.templates, office.clock, served=served)
    for named, field in (({"channel": "sms"}, "channel"), ({"channels": ["email", "sms"]}, "channels")):
        ask = msgspec.convert({"user": "ada", "words": {"text": "Hi"}, **named}, Notify)
        with pytest.raises(Invalid, match="no provider for sms is configured: choose one of email, in_app") as refused:
            await some.accept(ACME, ask)
        assert refused.value.field == field
    [told] = await some.accept(ACME, Notify(user="ada", words=InlineContent("Hi"), channels="all"))
    assert told.channels == ("email", "in_app")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"channels": []}, "channels"),
        ({"channels": [], "channel": "email"}, "channels"),
        ({"words": {"text": "x", "html": "a\0b"}}, "words.html"),
        ({"words": {"text": "x" * (1 << 20)}, "channel": "webhook"}, "words"),
    ],
)
async def test_words_and_channels_that_would_fail_are_refused(
    office: Office, wrong: dict[str, Any], field: str
) -> None:
    await office.users.put(ACME, "bob", Profile(email="b@example.com", webhook="https://hooks.example/in"))
    with pytest.raises(Invalid) as refused:
        await office.notify(**{"user": "bob", "words": {"text": "Hi"}, **wrong})
    assert refused.value.field == field

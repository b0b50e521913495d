"""Accepting: whom, what, when; repeats and duplicates; and what a crash leaves behind."""

import asyncio
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from tests.delivery.office import ACME, DAY, HOUR, SECOND, Office, in_app, reminder
from tidings.delivery.asking import Notify
from tidings.delivery.lookup import Search
from tidings.delivery.notifying import OTHER_CONTENT, Accepted
from tidings.delivery.profile import Profile
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.notifications.notification import DeliveryJob, InlineContent
from tidings.domain.schedules.command import Cancel, Command, Outcome
from tidings.domain.schedules.request import Request
from tidings.domain.schedules.schedule import unpack
from tidings.domain.schedules.when import Local

NEW_YORK = ZoneInfo("America/New_York")
WORDS = {"text": "It is nine.", "title": "Hello"}
NINE = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}}


def wall(zone: str, *moment: int) -> int:
    return int(datetime(*moment, tzinfo=ZoneInfo(zone)).timestamp()) * SECOND  # type: ignore[misc, arg-type]


async def test_tomorrow_at_nine_in_the_users_time_zone(office: Office) -> None:
    told = await office.notify(**NINE, at="tomorrow 09:00")
    assert told.outcome == "scheduled"
    assert told.due == wall("America/New_York", 2026, 11, 21, 9)
    assert told.channels == ("email", "sms")
    schedule = await office.engine.find(ACME, told.id)
    assert schedule is not None
    assert isinstance(schedule.when, Local)  # kept as a wall time, so that new rules of the zone move it
    assert schedule.topic == "notify.email"
    office.clock.advance(DAY)
    assert await office.release("notify.email") == []
    office.clock.advance(DAY)
    [record] = await office.release("notify.email")
    message = unpack(record.message)
    assert message.key == b"ada"
    assert msgspec.json.decode(message.value or b"", type=DeliveryJob) == DeliveryJob(notification=told.id)
    assert b"example.com" not in record.message


@pytest.mark.parametrize(
    ("when", "due"),
    [
        ({}, (2026, 11, 20, 4)),
        ({"scheduled_at": "2020-01-01T00:00:00Z"}, (2026, 11, 20, 4)),
        ({"at": "2026-11-21T09:00"}, (2026, 11, 21, 9)),
        ({"at": "2026-11-21T09:00", "zone": "America/Los_Angeles"}, (2026, 11, 21, 12)),
        ({"at": "tomorrow 09:00", "zone": "America/Los_Angeles"}, (2026, 11, 21, 12)),
        ({"at": "2026-11-21T09:00:00Z"}, (2026, 11, 21, 4)),
        ({"at": "+1h"}, (2026, 11, 20, 5)),
        ({"cron": "0 9 * * *"}, (2026, 11, 20, 9)),
        ({"rrule": "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0"}, (2026, 11, 20, 9)),
        ({"rrule": "DTSTART;TZID=Europe/Berlin:20261121T090000\nRRULE:FREQ=DAILY"}, (2026, 11, 21, 3)),
        ({"every": "R/P1D", "start": "2026-11-21T09:00"}, (2026, 11, 21, 9)),
        ({"every": "R/2026-11-21T09:00:00Z/P1D"}, (2026, 11, 21, 4)),
    ],
)
async def test_every_form_of_when_is_in_the_users_zone(
    office: Office, when: dict[str, Any], due: tuple[int, ...]
) -> None:
    told = await office.notify(**NINE, **when)
    assert told.due == wall("America/New_York", *due)


async def test_a_moment_is_taken_to_the_millisecond(office: Office) -> None:
    told = await office.notify(**NINE, at="2026-11-21T09:00:00.250Z")
    assert told.due == wall("America/New_York", 2026, 11, 21, 4) + 250_000


async def test_each_of_several_users_in_their_own_time_zone(office: Office) -> None:
    await office.users.put(ACME, "bob", Profile(email="b@example.com", zone="Asia/Tokyo", name="Bob"))
    await office.users.put(ACME, "kim", Profile(zone="UTC", name="Kim"))
    ask = Notify(
        id="autumn", users=("ada", "bob", "nobody", "kim"), template="reminder", variables={"what": "x"},
        at="2026-11-21T09:00",
    )  # fmt: skip
    told = await office.notifying.accept(ACME, ask)
    assert [(one.id, one.outcome, one.field) for one in told] == [
        ("autumn:ada", "scheduled", None),
        ("autumn:bob", "scheduled", None),
        ("autumn:nobody", "rejected", "users"),
        ("autumn:kim", "rejected", "user"),
    ]
    assert told[0].due == wall("America/New_York", 2026, 11, 21, 9)
    assert told[1].due == wall("Asia/Tokyo", 2026, 11, 21, 9)
    again = await office.notifying.accept(ACME, ask)
    assert [one.outcome for one in again] == ["unchanged", "unchanged", "rejected", "rejected"]


@pytest.mark.slow
async def test_a_thousand_are_one_transaction_each_way(office: Office) -> None:
    names = [f"u{number:04}" for number in range(1_000)]
    for name in names:
        await office.users.put(ACME, name, Profile(email=f"{name}@example.com", name=name))
    submitted: list[int] = []
    submit = office.engine.submit

    async def counted(commands: Any, idempotency_key: Any = None) -> list[Outcome]:
        submitted.append(len(commands))
        return await submit(commands, idempotency_key)

    office.engine.submit = counted  # type: ignore[method-assign]
    told = await office.notifying.accept(ACME, Notify(users=tuple(names), words=InlineContent("Hi"), channel="email"))
    assert {one.outcome for one in told} == {"scheduled"}
    assert len({one.batch for one in told}) == 1
    assert submitted == [1_000]
    with pytest.raises(Invalid, match="at most 1000"):
        await office.notifying.accept(ACME, Notify(users=(*names, "more"), words=InlineContent("Hi")))


async def test_a_bare_address(office: Office) -> None:
    told = await office.notify(to="x@example.com", channel="email", words=WORDS, priority="high")
    [record] = await office.release("notify.email.high")
    assert record.id == told.id
    assert b"x@example.com" not in record.message
    local = await office.notify(to="+15550199", channel="sms", words=WORDS, at="2026-11-21T09:00", zone="Asia/Tokyo")
    assert local.due == wall("Asia/Tokyo", 2026, 11, 21, 9)


async def test_channels(office: Office) -> None:
    await office.users.put(ACME, "bob", Profile(phone="+15550102", name="Bob"))
    asked = {"user": "bob", "template": "reminder", "variables": {"what": "x"}}
    assert (await office.notify(**asked)).channels == ("sms",)
    assert (await office.notify(**asked, channels=["email", "sms"])).channels == ("email", "sms")
    every = await office.notify(user="ada", words=WORDS, channels="all")
    assert every.channels == ("email", "sms", "in_app")
    status = await office.lookup.get(ACME, every.id)
    assert status is not None
    assert status.notification.spread == "all"
    for wrong, field in (
        ({"channel": "email"}, "user"),
        ({"channel": "push"}, "channel"),
        ({"channels": ["sms", "sms"]}, "channels"),
        ({"channel": "sms", "channels": ["sms"]}, "channel"),
    ):
        with pytest.raises(Invalid) as refused:
            await office.notify(**asked, **wrong)
        assert refused.value.field == field


async def test_a_missing_variable_is_an_error_now(office: Office) -> None:
    with pytest.raises(Invalid, match="missing 'what'"):
        await office.notify(user="ada", template="reminder")
    with pytest.raises(Invalid, match="missing 'name', 'what'"):
        await office.notify(to="x@example.com", channel="email", template="reminder")
    await office.users.patch(ACME, "ada", {"name": None, "variables": {"what": "her own"}})
    with pytest.raises(Invalid, match="missing 'name'"):
        await office.notify(user="ada", template="reminder")
    told = await office.notify(user="ada", template="reminder", variables={"name": "Countess"})
    assert told.outcome == "scheduled"
    assert (await office.lookup.page(ACME, Search())).notifications[0].notification.variables == {"name": "Countess"}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"words": WORDS}, "user"),
        ({"user": "ada", "to": "x@example.com", "words": WORDS}, "user"),
        ({"user": "nobody", "words": WORDS}, "user"),
        ({"users": ["ada", "ada"], "words": WORDS}, "users"),
        ({"to": "x@example.com", "words": WORDS}, "channel"),
        ({"to": "x", "channel": "email", "words": WORDS}, "to"),
        ({"to": "ada", "channel": "in_app", "words": WORDS}, "to"),
        ({"user": "ada"}, "template"),
        ({"user": "ada", "template": "reminder", "words": WORDS}, "template"),
        ({"user": "ada", "template": "none"}, "template"),
        ({"user": "ada", "template": "reminder", "version": 9, "variables": {"what": "x"}}, "version"),
        ({"user": "ada", "words": {"text": " "}}, "words.text"),
        ({"user": "ada", "words": {"text": "x", "title": "a\r\nBcc: b"}}, "words.title"),
        ({"user": "ada", "words": {"text": "x" * 2_000}, "channel": "sms"}, "words.text"),
        ({"user": "ada", "words": WORDS, "at": "noonish"}, "at"),
        ({"user": "ada", "words": WORDS, "at": "+1h", "scheduled_at": "+1h"}, "at"),
        ({"user": "ada", "words": WORDS, "at": "2200-01-01T00:00:00Z"}, "at"),
        ({"user": "ada", "words": WORDS, "rrule": "FREQ=NEVER"}, "rrule"),
        ({"user": "ada", "words": WORDS, "zone": "Mars"}, "zone"),
        ({"user": "ada", "words": WORDS, "category": "email"}, "category"),
        ({"user": "ada", "words": WORDS, "dedupe_window": "PT1H"}, "dedupe_window"),
        ({"user": "ada", "words": WORDS, "expires_after": "never"}, "expires_after"),
        ({"user": "ada", "words": WORDS, "id": "a~b"}, "id"),
        ({"user": "ada", "words": WORDS, "id": "tid_" + "0" * 33}, "id"),
        ({"user": "ada", "words": WORDS, "cron": "0 9 * * *", "calendar": "none"}, "calendar"),
    ],
)
async def test_what_is_wrong_is_named_and_leaves_nothing(office: Office, asked: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        await office.notify(**asked)
    assert refused.value.field == field
    assert await office.documents.find(ACME, "notification", "all", office.clock.now()) == []


async def test_expiry(office: Office) -> None:
    await office.templates.put(ACME, "urgent", reminder(urgency="time_sensitive"))
    await office.templates.put(ACME, "asap", reminder(urgency="asap"))
    asked = {"user": "ada", "variables": {"what": "x"}}
    told = [
        await office.notify(**asked, template="urgent"),
        await office.notify(**asked, template="urgent", expires_after="PT5M"),
        await office.notify(**asked, template="asap"),
    ]
    kept = [await office.lookup.get(ACME, one.id) for one in told]
    expiries = [one.notification.expires_after_us for one in kept if one is not None]
    assert expiries == [1_800 * SECOND, 300 * SECOND, None]
    office.clock.advance(HOUR)
    assert [record.id for record in await office.release("notify.email")] == [told[2].id]
    status = await office.lookup.get(ACME, told[0].id)
    assert status is not None
    assert (status.state, status.reason) == ("expired", "expired")


async def test_the_same_id_again(office: Office) -> None:
    first = await office.notify(**NINE, id="order-42", at="tomorrow 09:00")
    office.clock.advance(DAY)  # tomorrow is another day now, but what was asked is the same
    again = await office.notify(**NINE, id="order-42", at="tomorrow 09:00")
    assert (again.outcome, again.due) == ("unchanged", first.due)
    other = await office.notify(**NINE, id="order-42", at="+2h")
    assert other.outcome == "conflict"
    assert "other content" in (other.reason or "")
    office.clock.advance(DAY)
    assert len(await office.release("notify.email")) == 1
    assert (await office.notify(**NINE, id="order-42", at="tomorrow 09:00")).outcome == "unchanged"


async def test_a_repeat_says_how_it_stands(office: Office) -> None:
    """And what can be done: to cancel what is cancelled, or sent, helps nobody."""

    async def again(name: str, **more: Any) -> Accepted:
        return await office.notify(**NINE, id=name, at="+1h", **more)

    for name in ("one", "two"):
        assert (await again(name)).state is None
    told = await again("one")
    assert (told.outcome, told.state) == ("unchanged", "pending")
    assert "cancel that one" in ((await again("one", category="news")).reason or "")
    await office.cancelling.cancel(ACME, "one")
    await office.engine.submit([Cancel(ACME, "two", with_deliveries=True)])
    for name in ("one", "two"):
        told = await again(name)
        assert (told.outcome, told.state) == ("unchanged", "cancelled")
        other = await again(name, category="news")
        assert other.reason == f"{OTHER_CONTENT}, which is cancelled already: choose another id"
    await office.notify(**NINE, id="three", channels=["email", "sms"], spread="all")
    await office.release("notify.email")
    repeat = {**NINE, "id": "three", "channels": ["email", "sms"], "spread": "all"}
    assert (await office.notify(**repeat)).state == "pending"  # for a worker
    await office.deliver("three", state="failed")
    assert (await office.notify(**repeat)).state == "failed"


async def test_an_id_of_a_plain_schedule_is_not_taken(office: Office) -> None:
    await office.engine.schedule(ACME, Request("greetings", b"x", id="mine", at="+1h"))
    told = await office.notify(**NINE, id="mine")
    assert told.outcome == "conflict"
    assert await office.lookup.get(ACME, "mine") is None
    assert (await office.engine.find(ACME, "mine")) is not None


# Duplicates


async def test_a_duplicate_can_be_looked_up(office: Office) -> None:
    first = await office.notify(**NINE, dedupe_key="order-42")
    second = await office.notify(**NINE, id="again", dedupe_key="order-42")
    assert (second.id, second.outcome) == ("again", "skipped")
    status = await office.lookup.get(ACME, "again")
    assert status is not None
    assert (status.state, status.reason, status.notification.first) == ("skipped", "duplicate", first.id)
    assert status.notification.variables == {}
    page = await office.lookup.page(ACME, Search(state="skipped"))
    assert [each.notification.id for each in page.notifications] == ["again"]
    story = await office.explaining.explain(ACME, "again")
    assert story is not None
    [line] = story
    assert (line.event, line.reason) == ("skipped", f"duplicate of {first.id}")
    assert (await office.cancelling.cancel(ACME, "again")).outcome == "already_released"


async def test_a_duplicate_stays_what_it_is(office: Office) -> None:
    """Asked again, also when the key is free by then; and for as long as others are kept."""
    first = await office.notify(**NINE, dedupe_key="order-42", dedupe_window="PT1H")
    for _ in range(2):
        again = await office.notify(**NINE, id="again", dedupe_key="order-42", dedupe_window="PT1H")
        assert (again.outcome, again.reason, again.first) == ("skipped", "duplicate", first.id)
        office.clock.advance(2 * HOUR)
    assert (await office.notify(**NINE, id="again")).outcome == "conflict"
    office.clock.advance(30 * DAY)
    assert await office.lookup.get(ACME, "again") is None


@pytest.mark.parametrize("by", ["its own name", "its schedule"])
async def test_what_was_cancelled_keeps_nobody_from_being_told(office: Office, by: str) -> None:
    first = await office.notify(**NINE, dedupe_key="order-42")
    if by == "its schedule":
        await office.engine.submit([Cancel(ACME, first.id, with_deliveries=True)])
    else:
        await office.cancelling.cancel(ACME, first.id)
    second = await office.notify(**NINE, dedupe_key="order-42")
    assert second.outcome == "scheduled"
    third = await office.notify(**NINE, dedupe_key="order-42")
    assert (third.outcome, third.first) == ("skipped", second.id)
    await office.cancelling.cancel(ACME, first.id)
    assert (await office.notify(**NINE, dedupe_key="order-42")).outcome == "skipped", "the key is the second one's now"


async def test_a_duplicate_is_skipped(office: Office) -> None:
    first = await office.notify(**NINE, dedupe_key="order-42", dedupe_window="PT2H")
    second = await office.notify(**NINE, dedupe_key="order-42", dedupe_window="PT2H")
    assert (second.outcome, second.reason, second.first) == ("skipped", "duplicate", first.id)
    await office.users.put(ACME, "bob", Profile(email="b@example.com", name="Bob"))
    other = await office.notify(**(NINE | {"user": "bob"}), dedupe_key="order-42")
    assert other.outcome == "scheduled"  # another person
    office.clock.advance(HOUR)
    assert (await office.notify(**NINE, dedupe_key="order-42")).outcome == "skipped"
    office.clock.advance(HOUR)
    assert (await office.notify(**NINE, dedupe_key="order-42")).outcome == "scheduled"
    assert len(await office.release("notify.email")) == 3


async def test_of_many_at_once_one_is_taken(office: Office) -> None:
    asked = Notify(user="ada", words=InlineContent("Hi"), dedupe_key="k")
    offices = [office, Office(office.store, office.clock)]
    told = await asyncio.gather(*(offices[n % 2].notifying.accept(ACME, asked) for n in range(20)))
    outcomes = [one.outcome for several in told for one in several]
    assert sorted(outcomes) == ["scheduled"] + ["skipped"] * 19
    assert len(await office.release("notify.email")) == 1


class Down(Exception):
    """The process ends here."""


def break_submit(office: Office) -> None:
    async def down(_commands: list[Command], _receipt: Any = None) -> list[Outcome]:
        raise Down

    office.engine.submit = down  # type: ignore[method-assign, assignment]


async def test_a_crash_before_the_schedule_leaves_nothing_that_counts(office: Office) -> None:
    broken = Office(office.store, office.clock)
    break_submit(broken)
    with pytest.raises(Down):
        await broken.notify(**NINE, id="order-42", dedupe_key="k")
    assert await office.lookup.get(ACME, "order-42") is None  # not shown
    assert (await office.lookup.page(ACME, Search())).notifications == ()
    again = await office.notify(**NINE, id="order-42", dedupe_key="k")
    assert again.outcome == "scheduled"
    assert len(await office.release("notify.email")) == 1


@pytest.mark.parametrize("dedupe", [{}, {"dedupe_key": "k"}], ids=["", "with a key"])
async def test_who_was_slower_takes_nothing_away(office: Office, dedupe: dict[str, str]) -> None:
    """Both write it down; when the slower one comes to schedule it, that of the other has been released already."""
    slow = Office(office.store, office.clock)
    submit = slow.engine.submit

    async def late(commands: list[Command], receipt: Any = None) -> list[Outcome]:
        assert (await office.notify(**NINE, id="order-42", **dedupe)).outcome == "scheduled"
        await office.release("notify.email")
        return await submit(commands, receipt)

    slow.engine.submit = late  # type: ignore[method-assign, assignment]
    assert (await slow.notify(**NINE, id="order-42", **dedupe)).outcome == "unchanged"
    assert await office.lookup.get(ACME, "order-42") is not None
    assert len(await office.release("notify.email")) == 1


@pytest.mark.slow
async def test_a_key_that_a_crash_left_is_given_to_the_next(office: Office) -> None:
    broken = Office(office.store, office.clock)
    break_submit(broken)
    with pytest.raises(Down):
        await broken.notify(**NINE, dedupe_key="k")
    with pytest.raises(StoreError):  # whoever has the key may still be at it: the truth is not known yet
        await office.notify(**NINE, dedupe_key="k")
    office.clock.advance(10 * SECOND)
    taken = await office.notify(**NINE, dedupe_key="k")
    assert taken.outcome == "scheduled"
    assert (await office.notify(**NINE, dedupe_key="k")).first == taken.id


async def test_what_was_never_scheduled_is_swept(office: Office) -> None:
    broken = Office(office.store, office.clock)
    break_submit(broken)
    with pytest.raises(Down):
        await broken.notify(**NINE)
    far = await office.notify(**NINE, at="2027-06-01T09:00")
    done = await office.notify(**NINE)
    await office.release("notify.email")
    await office.deliver(done.id)
    office.clock.advance(20 * DAY)
    assert not await office.sweeping.sweep(ACME)
    assert len(await office.documents.find(ACME, "notification", "all", office.clock.now())) == 3
    office.clock.advance(20 * DAY)
    await office.store.tend(office.clock.now())
    assert not await office.sweeping.sweep(ACME)
    left = await office.documents.find(ACME, "notification", "all", office.clock.now())
    assert [document.key.name for document in left] == [far.id]


async def test_in_app_reaches_everybody(office: Office) -> None:
    await office.templates.put(ACME, "note", in_app())
    await office.users.put(ACME, "kim", Profile())
    assert (await office.notify(user="kim", template="note")).channels == ("in_app",)

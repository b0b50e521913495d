"""Acceptance: recipients, content and time; repeats and duplicates; and the state after a crash."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from tests.delivery.services import ACME, DAY, HOUR, SECOND, Services, in_app, reminder
from tidings.delivery.accept.change import NotificationChanges
from tidings.delivery.accept.request import OTHER_CONTENT, AcceptResult, NotificationRequest
from tidings.delivery.notifications.reader import Search
from tidings.delivery.people.profile import Profile
from tidings.domain.errors import Invalid
from tidings.domain.notifications.notification import DeliveryJob, InlineContent
from tidings.domain.notifications.tables import DEDUPE_KEYS_BY_USER, NOTIFICATIONS
from tidings.domain.schedules.command import Cancel
from tidings.domain.schedules.schedule import Request, unpack
from tidings.domain.schedules.when import Local
from tidings.ports.tables import ChangeGroup, GroupResult

NEW_YORK = ZoneInfo("America/New_York")
WORDS = {"text": "It is nine.", "title": "Hello"}
NINE = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}}


def wall(zone: str, *moment: int) -> int:
    return int(datetime(*moment, tzinfo=ZoneInfo(zone)).timestamp()) * SECOND  # type: ignore[misc, arg-type]


async def test_tomorrow_at_nine_in_the_users_time_zone(services: Services) -> None:
    accepted = await services.notify(**NINE, at="tomorrow 09:00")
    assert accepted.outcome == "scheduled"
    assert accepted.due == wall("America/New_York", 2026, 11, 21, 9)
    assert accepted.channels == ("email", "sms")
    schedule = await services.engine.find(ACME, accepted.id)
    assert schedule is not None
    assert isinstance(schedule.when, Local)  # kept as a wall time, so that new rules of the zone move it
    assert schedule.topic == "notify.email"
    services.clock.advance(DAY)
    assert await services.release("notify.email") == []
    services.clock.advance(DAY)
    [record] = await services.release("notify.email")
    message = unpack(record.message)
    assert message.key == b"ada"
    assert msgspec.json.decode(message.value or b"", type=DeliveryJob) == DeliveryJob(notification=accepted.id)
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
    services: Services, when: dict[str, Any], due: tuple[int, ...]
) -> None:
    accepted = await services.notify(**NINE, **when)
    assert accepted.due == wall("America/New_York", *due)


async def test_a_time_is_exact_to_the_millisecond(services: Services) -> None:
    accepted = await services.notify(**NINE, at="2026-11-21T09:00:00.250Z")
    assert accepted.due == wall("America/New_York", 2026, 11, 21, 4) + 250_000


async def test_each_of_several_users_in_their_own_time_zone(services: Services) -> None:
    await services.users.put(ACME, "bob", Profile(email="b@example.com", zone="Asia/Tokyo", name="Bob"))
    await services.users.put(ACME, "kim", Profile(zone="UTC", name="Kim"))
    ask = NotificationRequest(
        id="autumn", users=("ada", "bob", "nobody", "kim"), template="reminder", variables={"what": "x"},
        at="2026-11-21T09:00",
    )  # fmt: skip
    accepted = await services.acceptance.accept(ACME, ask)
    assert [(one.id, one.outcome, one.field) for one in accepted] == [
        ("autumn:ada", "scheduled", None),
        ("autumn:bob", "scheduled", None),
        ("autumn:nobody", "rejected", "users"),
        ("autumn:kim", "rejected", "user"),
    ]
    assert accepted[0].due == wall("America/New_York", 2026, 11, 21, 9)
    assert accepted[1].due == wall("Asia/Tokyo", 2026, 11, 21, 9)
    again = await services.acceptance.accept(ACME, ask)
    assert [one.outcome for one in again] == ["unchanged", "unchanged", "rejected", "rejected"]


@pytest.mark.slow
async def test_a_thousand_notifications_need_one_transaction(
    services: Services,
) -> None:
    names = [f"u{number:04}" for number in range(1_000)]
    for name in names:
        await services.users.put(ACME, name, Profile(email=f"{name}@example.com", name=name))
    committed: list[int] = []
    commit = services.engine.commit

    async def counted(groups: Sequence[ChangeGroup]) -> list[GroupResult]:
        committed.append(len(groups))
        return await commit(groups)

    services.engine.commit = counted  # type: ignore[method-assign]
    accepted = await services.acceptance.accept(
        ACME, NotificationRequest(users=tuple(names), words=InlineContent("Hi"), channel="email")
    )
    assert {one.outcome for one in accepted} == {"scheduled"}
    assert len({one.batch for one in accepted}) == 1
    assert committed == [1_000]
    with pytest.raises(Invalid, match="at most 1,000"):
        await services.acceptance.accept(ACME, NotificationRequest(users=(*names, "more"), words=InlineContent("Hi")))


async def test_a_notification_to_an_address_without_a_user(services: Services) -> None:
    accepted = await services.notify(to="x@example.com", channel="email", words=WORDS, priority="high")
    [record] = await services.release("notify.email.high")
    assert record.id == accepted.id
    assert b"x@example.com" not in record.message
    local = await services.notify(to="+15550199", channel="sms", words=WORDS, at="2026-11-21T09:00", zone="Asia/Tokyo")
    assert local.due == wall("Asia/Tokyo", 2026, 11, 21, 9)


async def test_channels_are_chosen_by_request_template_and_address(services: Services) -> None:
    await services.users.put(ACME, "bob", Profile(phone="+15550102", name="Bob"))
    asked = {"user": "bob", "template": "reminder", "variables": {"what": "x"}}
    assert (await services.notify(**asked)).channels == ("sms",)
    assert (await services.notify(**asked, channels=["email", "sms"])).channels == ("email", "sms")
    every = await services.notify(user="ada", words=WORDS, channels="all")
    assert every.channels == ("email", "sms", "in_app")
    status = await services.reader.get(ACME, every.id)
    assert status is not None
    assert status.notification.spread == "all"
    for wrong, field in (
        ({"channel": "email"}, "user"),
        ({"channel": "push"}, "channel"),
        ({"channels": ["sms", "sms"]}, "channels"),
        ({"channel": "sms", "channels": ["sms"]}, "channel"),
    ):
        with pytest.raises(Invalid) as refused:
            await services.notify(**asked, **wrong)
        assert refused.value.field == field


async def test_a_missing_variable_is_refused_at_acceptance(services: Services) -> None:
    with pytest.raises(Invalid, match="missing 'what'"):
        await services.notify(user="ada", template="reminder")
    with pytest.raises(Invalid, match="missing 'name', 'what'"):
        await services.notify(to="x@example.com", channel="email", template="reminder")
    await services.users.patch(ACME, "ada", {"name": None, "variables": {"what": "their own"}})
    with pytest.raises(Invalid, match="missing 'name'"):
        await services.notify(user="ada", template="reminder")
    accepted = await services.notify(user="ada", template="reminder", variables={"name": "Countess"})
    assert accepted.outcome == "scheduled"
    assert (await services.reader.page(ACME, Search())).notifications[0].notification.variables == {"name": "Countess"}


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
async def test_an_invalid_field_is_named_and_nothing_is_stored(
    services: Services, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await services.notify(**asked)
    assert refused.value.field == field
    assert await services.tables.find(NOTIFICATIONS, ACME, (), services.clock.now()) == []


async def test_expiry_of_a_notification(services: Services) -> None:
    await services.templates.put(ACME, "urgent", reminder(urgency="time_sensitive"))
    await services.templates.put(ACME, "asap", reminder(urgency="asap"))
    asked = {"user": "ada", "variables": {"what": "x"}}
    accepted = [
        await services.notify(**asked, template="urgent"),
        await services.notify(**asked, template="urgent", expires_after="PT5M"),
        await services.notify(**asked, template="asap"),
    ]
    kept = [await services.reader.get(ACME, one.id) for one in accepted]
    expiries = [one.notification.expires_after_us for one in kept if one is not None]
    assert expiries == [1_800 * SECOND, 300 * SECOND, None]
    services.clock.advance(HOUR)
    assert [record.id for record in await services.release("notify.email")] == [accepted[2].id]
    status = await services.reader.get(ACME, accepted[0].id)
    assert status is not None
    assert (status.state, status.reason) == ("expired", "expired")


async def test_a_repeated_id_is_unchanged_or_a_conflict(services: Services) -> None:
    first = await services.notify(**NINE, id="order-42", at="tomorrow 09:00")
    services.clock.advance(DAY)  # `tomorrow` is another day now, but the request is the same
    again = await services.notify(**NINE, id="order-42", at="tomorrow 09:00")
    assert (again.outcome, again.due) == ("unchanged", first.due)
    other = await services.notify(**NINE, id="order-42", at="+2h")
    assert other.outcome == "conflict"
    assert "other content" in (other.reason or "")
    services.clock.advance(DAY)
    assert len(await services.release("notify.email")) == 1
    assert (await services.notify(**NINE, id="order-42", at="tomorrow 09:00")).outcome == "unchanged"


async def test_a_repeat_answers_the_present_state(services: Services) -> None:
    """And which changes are possible: a cancelled or sent notification cannot be cancelled."""

    async def again(name: str, **more: Any) -> AcceptResult:
        return await services.notify(**NINE, id=name, at="+1h", **more)

    for name in ("one", "two"):
        assert (await again(name)).state is None
    accepted = await again("one")
    assert (accepted.outcome, accepted.state) == ("unchanged", "pending")
    assert "replace it (PUT), cancel it" in ((await again("one", category="news")).reason or "")
    await services.cancellation.cancel(ACME, "one")
    await services.engine.submit([Cancel(ACME, "two", with_deliveries=True)])
    for name in ("one", "two"):
        accepted = await again(name)
        assert (accepted.outcome, accepted.state) == ("unchanged", "cancelled")
        other = await again(name, category="news")
        assert (other.reason or "").startswith(f"{OTHER_CONTENT} (its state is cancelled): PUT it with ?reuse=true")
    await services.notify(**NINE, id="three", channels=["email", "sms"], spread="all")
    await services.release("notify.email")
    repeat = {**NINE, "id": "three", "channels": ["email", "sms"], "spread": "all"}
    assert (await services.notify(**repeat)).state == "pending"  # for a worker
    await services.deliver("three", state="failed")
    assert (await services.notify(**repeat)).state == "failed"


async def test_the_id_of_a_plain_schedule_is_a_conflict(services: Services) -> None:
    await services.engine.schedule(ACME, Request("greetings", b"x", id="mine", at="+1h"))
    accepted = await services.notify(**NINE, id="mine")
    assert accepted.outcome == "conflict"
    assert await services.reader.get(ACME, "mine") is None
    assert (await services.engine.find(ACME, "mine")) is not None


# Duplicates


async def test_a_skipped_duplicate_can_be_read(services: Services) -> None:
    first = await services.notify(**NINE, dedupe_key="order-42")
    second = await services.notify(**NINE, id="again", dedupe_key="order-42")
    assert (second.id, second.outcome) == ("again", "skipped")
    status = await services.reader.get(ACME, "again")
    assert status is not None
    assert (status.state, status.reason, status.notification.first) == ("skipped", "duplicate", first.id)
    assert status.notification.variables == {}
    page = await services.reader.page(ACME, Search(state="skipped"))
    assert [each.notification.id for each in page.notifications] == ["again"]
    history = await services.history.explain(ACME, "again")
    assert history is not None
    [line] = history
    assert (line.event, line.reason) == ("skipped", f"duplicate of {first.id}")
    assert (await services.cancellation.cancel(ACME, "again")).outcome == "already_released"


async def test_a_duplicate_stays_skipped_when_repeated(services: Services) -> None:
    """Also when the key is free by then, and for as long as other notifications are kept."""
    first = await services.notify(**NINE, dedupe_key="order-42", dedupe_window="PT1H")
    for _ in range(2):
        again = await services.notify(**NINE, id="again", dedupe_key="order-42", dedupe_window="PT1H")
        assert (again.outcome, again.reason, again.first) == ("skipped", "duplicate", first.id)
        services.clock.advance(2 * HOUR)
    assert (await services.notify(**NINE, id="again")).outcome == "conflict"
    services.clock.advance(30 * DAY)
    assert await services.reader.get(ACME, "again") is None


@pytest.mark.parametrize("by", ["its own name", "its schedule"])
async def test_a_cancelled_notification_frees_its_dedupe_key(services: Services, by: str) -> None:
    first = await services.notify(**NINE, dedupe_key="order-42")
    if by == "its schedule":
        await services.engine.submit([Cancel(ACME, first.id, with_deliveries=True)])
    else:
        await services.cancellation.cancel(ACME, first.id)
    second = await services.notify(**NINE, dedupe_key="order-42")
    assert second.outcome == "scheduled"
    third = await services.notify(**NINE, dedupe_key="order-42")
    assert (third.outcome, third.first) == ("skipped", second.id)
    await services.cancellation.cancel(ACME, first.id)
    assert (await services.notify(**NINE, dedupe_key="order-42")).outcome == "skipped", (
        "the key is the second one's now"
    )


async def test_a_duplicate_within_its_window_is_skipped(services: Services) -> None:
    first = await services.notify(**NINE, dedupe_key="order-42", dedupe_window="PT2H")
    second = await services.notify(**NINE, dedupe_key="order-42", dedupe_window="PT2H")
    assert (second.outcome, second.reason, second.first) == ("skipped", "duplicate", first.id)
    await services.users.put(ACME, "bob", Profile(email="b@example.com", name="Bob"))
    other = await services.notify(**(NINE | {"user": "bob"}), dedupe_key="order-42")
    assert other.outcome == "scheduled"  # another person
    services.clock.advance(HOUR)
    assert (await services.notify(**NINE, dedupe_key="order-42")).outcome == "skipped"
    services.clock.advance(HOUR)
    assert (await services.notify(**NINE, dedupe_key="order-42")).outcome == "scheduled"
    assert len(await services.release("notify.email")) == 3


async def test_one_of_many_concurrent_duplicates_is_accepted(services: Services) -> None:
    asked = NotificationRequest(user="ada", words=InlineContent("Hi"), dedupe_key="k")
    both_services = [services, Services(services.store, services.clock)]
    accepted = await asyncio.gather(*(both_services[n % 2].acceptance.accept(ACME, asked) for n in range(20)))
    outcomes = [one.outcome for several in accepted for one in several]
    assert sorted(outcomes) == ["scheduled"] + ["skipped"] * 19
    assert len(await services.release("notify.email")) == 1


class Crashed(Exception):
    """The process crashes here."""


async def test_a_crash_before_the_commit_leaves_nothing(services: Services) -> None:
    broken = Services(services.store, services.clock)

    async def crash(_groups: Sequence[ChangeGroup]) -> list[GroupResult]:
        raise Crashed

    broken.engine.commit = crash  # type: ignore[method-assign, assignment]
    with pytest.raises(Crashed):
        await broken.notify(**NINE, id="order-42", dedupe_key="k")
    assert await services.reader.get(ACME, "order-42") is None
    assert (await services.reader.page(ACME, Search())).notifications == ()
    assert await services.tables.find(DEDUPE_KEYS_BY_USER, ACME, ("ada",), services.clock.now()) == []
    again = await services.notify(**NINE, id="order-43", dedupe_key="k")
    assert again.outcome == "scheduled"
    assert len(await services.release("notify.email")) == 1


@pytest.mark.parametrize("dedupe", [{}, {"dedupe_key": "k"}], ids=["", "with a key"])
async def test_the_slower_of_two_equal_requests_changes_nothing(services: Services, dedupe: dict[str, str]) -> None:
    """When the slower one is committed, the notification of the other is released already."""
    slow = Services(services.store, services.clock)
    commit = slow.engine.commit

    async def late(groups: Sequence[ChangeGroup]) -> list[GroupResult]:
        assert (await services.notify(**NINE, id="order-42", **dedupe)).outcome == "scheduled"
        await services.release("notify.email")
        return await commit(groups)

    slow.engine.commit = late  # type: ignore[method-assign]
    assert (await slow.notify(**NINE, id="order-42", **dedupe)).outcome == "unchanged"
    assert await services.reader.get(ACME, "order-42") is not None
    assert len(await services.release("notify.email")) == 1


async def test_finished_notifications_are_pruned_and_pending_ones_are_not(services: Services) -> None:
    far = await services.notify(**NINE, at="2027-06-01T09:00")
    done = await services.notify(**NINE)
    await services.release("notify.email")
    await services.deliver(done.id)
    services.clock.advance(20 * DAY)
    assert not await services.pruner.sweep(ACME)
    assert len(await services.tables.find(NOTIFICATIONS, ACME, (), services.clock.now())) == 2
    services.clock.advance(20 * DAY)
    await services.store.tend(services.clock.now())
    assert not await services.pruner.sweep(ACME)
    left = await services.tables.find(NOTIFICATIONS, ACME, (), services.clock.now())
    assert [row.key.name for row in left] == [far.id]


async def test_in_app_reaches_every_user(services: Services) -> None:
    await services.templates.put(ACME, "note", in_app())
    await services.users.put(ACME, "kim", Profile())
    assert (await services.notify(user="kim", template="note")).channels == ("in_app",)


async def test_a_member_of_a_list_can_be_changed_whatever_its_id_is(services: Services) -> None:
    """The ids and the batch of a list are made of ids of users and of the list, which have other forms."""
    changes = NotificationChanges(services.tables, services.engine, services.acceptance, services.clock)
    content = {"text": "Tea"}
    for list_id, user in (("promo 2026/11", "bob"), ("l", "t~1"), (None, "u" * 75), ("x" * 88, "bob")):
        await services.users.put(ACME, user, {"email": "bob@example.com"})
        named = {} if list_id is None else {"id": list_id}
        ask = {"users": [user], "channel": "email", "content": content, "at": "2030-01-01T00:00:00Z", **named}
        [accepted] = await services.acceptance.accept(ACME, msgspec.convert(ask, NotificationRequest))
        patched = await changes.patch(ACME, accepted.id, {"at": "2031-01-01T00:00:00Z"})
        assert patched.outcome == "replaced"
        patched = await changes.patch(ACME, accepted.id, {"content": {"text": "Cake"}})
        assert patched.outcome == "replaced"
        whole = NotificationRequest(user=user, channel="email", content=InlineContent("Pie"))
        assert (await changes.replace(ACME, accepted.id, whole)).outcome == "replaced"
        with pytest.raises(Invalid, match="batch"):
            await changes.patch(ACME, accepted.id, {"batch": "no such name"})
    with pytest.raises(Invalid, match="id"):
        await changes.replace(ACME, "t~1", NotificationRequest(user="bob", content=InlineContent("Pie")))

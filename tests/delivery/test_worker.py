"""The worker: from a released record to the provider and the stored result."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.delivery.world import (
    MS,
    QUICK,
    SECOND,
    TENANT,
    Recorder,
    World,
    ada,
    changed,
    schedule,
    started_world,
    states,
    words,
)
from tests.providers.messages import APNS_TOKEN, FCM_TOKEN
from tidings.delivery.limits.provider_status import ProviderDirectory
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.delivery.people.suppressions import DeadAddressHandler
from tidings.delivery.rows import provider_message_key, read, suppression_keys, user_key
from tidings.delivery.worker.job import read_dead_letter
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.delivery.worker.reservation import PendingSend
from tidings.domain.facts import Called, Opened, Poisoned
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Accepted, Broken, Delivery, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import Email, Push, Rendered
from tidings.domain.notifications.notification import GROUP, DeliveryJob
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.notifications.tables import SHARED
from tidings.domain.notifications.user import Quiet, User
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.schedule import Message, pack, unpack
from tidings.domain.schedules.when import Once
from tidings.ports import Store
from tidings.ports.tables import ChangeGroup, GroupResult, Put, RowKey
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore

OTHER_TOKEN = "1e" * 32


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada())
        yield world


async def test_a_notification_is_sent_once_and_recorded(world: World) -> None:
    provider = Recorder("email")
    world.start(world.worker({"mail": provider}))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.provider, delivery.provider_id) == ("sent", "mail", "p-n-1/1")
    assert (delivery.address, delivery.user, delivery.claim) == ("ada@example.com", "ada", None)
    [attempt] = delivery.attempts
    assert (attempt.number, attempt.provider, attempt.outcome) == (1, "mail", "accepted")
    assert attempt.ended is not None
    [message] = provider.calls
    assert isinstance(message, Email)
    assert (message.id, message.to, message.subject, message.to_name) == ("n-1/1", "ada@example.com", "Tea", "Ada")
    [receipt] = await world.store.tables.get([provider_message_key("mail", "p-n-1/1")], world.clock.now())
    assert receipt is not None, "a receipt finds its delivery"
    committed = await eventually(lambda: world.store.committed(TENANT, "notify.email", GROUP))
    assert sum(committed.values()) == 1


async def test_an_id_is_not_indexed_if_its_provider_sends_no_receipts(world: World) -> None:
    settings = msgspec.structs.replace(QUICK, receipts_from=frozenset({"other"}))
    world.start(world.worker({"mail": Recorder("email")}, settings))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.provider_id) == ("sent", "p-n-1/1")
    assert await world.store.tables.get([provider_message_key("mail", "p-n-1/1")], world.clock.now()) == [None]


async def test_a_provider_that_returns_no_id_has_no_index_for_receipts(world: World) -> None:
    provider = Recorder()
    provider.answer = lambda _: Accepted("")
    world.start(world.worker({"mail": provider}))
    await world.notify(words("a"), words("b"))
    found = await world.settled("a/1", "b/1")
    assert [(each.state, each.provider_id) for each in found] == [("sent", None)] * 2
    assert await world.store.tables.get([provider_message_key("mail", "")], world.clock.now()) == [None]


@pytest.mark.parametrize("provider_id", ["q" * 3_000, "é" * 600, "half \ud800"])
async def test_a_provider_id_that_cannot_be_stored_does_not_cause_a_second_send(world: World, provider_id: str) -> None:
    provider = Recorder(deduplicates=False)
    provider.answer = lambda message: Accepted(provider_id) if message.id == "a/1" else None
    world.start(world.worker({"mail": provider}))
    await world.notify(*(words(name) for name in "abcd"))
    found = await world.settled(*(f"{name}/1" for name in "abcd"))
    assert [(each.state, each.provider_id) for each in found] == [
        ("sent", None),
        *(("sent", f"p-{n}/1") for n in "bcd"),
    ]
    assert set(provider.took.values()) == {1}


async def test_an_answer_of_a_provider_that_is_not_text_is_recorded(world: World) -> None:
    provider = Recorder(deduplicates=False)
    provider.answer = lambda _: Permanent("content_refused", "half \ud800")
    world.start(world.worker({"mail": provider}))
    await world.notify(words("a"))
    [delivery] = await world.settled("a/1")
    assert [(each.outcome, each.detail) for each in delivery.attempts] == [("content_refused", "half ?")]


async def test_a_job_published_by_a_client_is_sent_too(world: World) -> None:
    provider = Recorder()
    world.start(world.worker({"all": provider}))
    inline = msgspec.structs.replace(words("from-elsewhere", "sms", user=None, to="+15550199"), tenant="somebody else")
    add = schedule(
        msgspec.structs.replace(inline, tenant=TENANT, id="x"), world.clock.now(), DeliveryJob(inline=inline)
    )
    await world.engine.submit([add])
    [delivery] = await world.settled("from-elsewhere/1")
    assert delivery.state == "sent"
    assert [message.to for message in provider.calls] == ["+15550199"]


async def test_a_temporary_failure_is_retried_with_the_same_message_id(world: World) -> None:
    provider = Recorder()
    answers: list[Verdict] = [Temporary("provider_error", "busy"), Temporary("rate_limited", "", 60 * MS)]
    provider.answer = lambda _: answers.pop(0) if answers else None
    world.start(world.worker({"mail": provider}))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert [attempt.outcome for attempt in delivery.attempts] == ["provider_error", "rate_limited", "accepted"]
    assert [message.id for message in provider.calls] == ["n-1/1"] * 3
    ended = delivery.attempts[1].ended
    assert ended is not None
    assert delivery.attempts[2].begun - ended >= 60 * MS, "what the provider asked for is kept"
    assert delivery.turn == 3


async def test_a_delivery_out_of_attempts_becomes_a_dead_letter_and_can_be_sent_again(world: World) -> None:
    provider = Recorder()
    provider.answer = lambda _: Temporary("unreachable", "no route to ada@example.com")
    settings = changed(QUICK, breaker=msgspec.structs.replace(QUICK.breaker, failures_max=100))
    world.start(world.worker({"mail": provider}, settings))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.reason, len(delivery.attempts)) == ("failed", "unreachable", 4)
    assert delivery.attempts[0].detail == "no route to ada@example.com"
    [letter] = await eventually(world.dead)
    assert b"ada@example.com" not in letter.message, "a log cannot be erased"
    dead = read_dead_letter(unpack(letter.message).value or b"")
    assert dead.delivery.name == "n-1/1"
    assert (dead.job.notification, dead.job.delivery, dead.job.attempt) == ("n-1", "n-1/1", delivery.turn + 1)


async def test_a_refusal_falls_back_to_the_next_channel(world: World) -> None:
    mail, phone = Recorder("email"), Recorder("sms")
    mail.answer = lambda _: Permanent("address_refused", "no such user", address_is_dead=True)
    world.start(world.worker({"mail": mail, "phone": phone}))
    await world.notify(words("n-1", "email", "sms"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.channel, delivery.provider) == ("sent", "sms", "phone")
    assert [attempt.outcome for attempt in delivery.attempts] == ["address_refused", "accepted"]
    [suppressed] = await world.store.tables.get(suppression_keys(TENANT, "email", "ada@example.com")[:1], 0)
    assert suppressed is not None, "nothing is sent to a dead address again"
    await world.notify(words("n-2"))
    [skipped] = await world.settled("n-2/1")
    assert (skipped.state, skipped.reason) == ("skipped", "suppressed")
    assert len(mail.calls) == 1


async def test_all_channels_get_deliveries_of_their_own(world: World) -> None:
    provider = Recorder()
    world.start(world.worker({"all": provider}))
    await world.notify(words("n-1", "email", "sms", "webhook", spread="all"))
    found = await world.settled("n-1/1/email", "n-1/1/sms", "n-1/1/webhook")
    assert states(found) == {"sent": 3}
    assert sorted(message.id for message in provider.calls) == ["n-1/1/email", "n-1/1/sms", "n-1/1/webhook"]


async def test_preferences_are_checked_at_sending_time(world: World) -> None:
    provider = Recorder()
    world.start(world.worker({"all": provider}))
    await world.notify(words("n-1", category="news"), at=world.clock.now() + 150 * MS)
    await world.put_user(ada(preferences={"news": False}))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, delivery.reason) == ("skipped", "opted_out")
    await world.put_user(ada(preferences={"email": False}))
    await world.notify(words("n-2", "email", "sms", category="news"), words("n-3", category="transactional"))
    second, third = await world.settled("n-2/1", "n-3/1")
    assert (second.state, second.channel) == ("sent", "sms"), "by the channel that the user accepts"
    assert third.state == "sent", "transactional messages are sent to every user"


async def test_quiet_hours_reschedule_a_delivery(world: World) -> None:
    minute = world.clock.now() // (60 * SECOND) % 1440
    start, end = (minute - 60) % 1440, (minute + 60) % 1440
    await world.put_user(ada(quiet=Quiet(start, end)))
    await world.put_user(User("bob", email="bob@example.com", quiet=Quiet(start, end, "drop")))
    provider = Recorder()
    world.start(world.worker({"all": provider}))
    await world.notify(words("n-1"), words("n-2", user="bob"), words("n-3", priority="high"))
    dropped, sent = await world.settled("n-2/1", "n-3/1")
    assert (dropped.state, dropped.reason, sent.state) == ("skipped", "quiet_hours", "sent")

    async def put_back() -> Delivery | None:
        found = await world.delivery("n-1/1")
        return found if found is not None and found.turn == 2 else None

    waiting = await eventually(put_back)
    assert waiting is not None
    assert (waiting.state, waiting.reason) == ("pending", "quiet_hours")
    turn = await world.engine.find(TENANT, "n-1/1~2")
    assert turn is not None
    assert (turn.state, turn.due, turn.topic) == ("pending", waiting.next_try, "notify.email")
    assert 59 * 60 * SECOND < turn.due - world.clock.now() <= 60 * 60 * SECOND


async def test_a_delivery_past_its_expiry_is_not_sent(world: World) -> None:
    provider = Recorder()
    await world.notify(words("n-1", expires_after_us=100 * MS))
    await eventually(lambda: world.store.topic(TENANT, "notify.email"))
    begun = world.clock.now()
    await eventually(lambda: world.clock.now() > begun + 150 * MS)
    world.start(world.worker({"all": provider}))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, provider.calls) == ("expired", [])


@pytest.mark.slow
async def test_time_without_an_available_provider_does_not_count(world: World) -> None:
    """No provider can be called for longer than the maximum age; then it is sent, with all of its attempts."""
    provider = Recorder()
    begun = world.clock.now()
    provider.answer = lambda _: Broken("credentials_refused") if world.clock.now() < begun + 400 * MS else None
    backoff = msgspec.structs.replace(QUICK.policy.backoff, age_us_max=50 * MS)
    world.start(world.worker({"mail": provider}, changed(QUICK, policy=RetryPolicy(backoff, QUICK.policy.claim_us))))
    await world.notify(words("n-1"), words("n-2"), at=begun - 86_400 * SECOND)
    assert states(await world.settled("n-1/1", "n-2/1")) == {"sent": 2}


async def test_answers_of_a_rate_limit_do_not_use_up_the_attempts(world: World) -> None:
    provider = Recorder("email")
    limited = 3 * QUICK.policy.backoff.attempts_max
    provider.answer = lambda _: Temporary("rate_limited", "", MS) if len(provider.calls) <= limited else None
    world.start(world.worker({"mail": provider}))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert (delivery.state, len(delivery.attempts)) == ("sent", limited + 1)
    late = [fact.late_us for fact in world.facts if isinstance(fact, Called)]
    assert late == sorted(late), "lateness counts from the due time of the notification, not of each turn"
    assert late[-1] >= 20 * MS


async def test_attempts_end_at_the_maximum_age(world: World) -> None:
    provider = Recorder()
    provider.answer = lambda _: Temporary("rate_limited", "", 30 * MS)
    backoff = msgspec.structs.replace(QUICK.policy.backoff, age_us_max=80 * MS)
    world.start(world.worker({"mail": provider}, changed(QUICK, policy=RetryPolicy(backoff, QUICK.policy.claim_us))))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert delivery.state == "failed"
    assert len(delivery.attempts) <= 3
    assert 30 * MS <= delivery.trying_us <= 80 * MS


@pytest.mark.slow
async def test_refused_credentials_stop_the_provider_with_an_error_and_lose_nothing(world: World) -> None:
    provider = Recorder()
    provider.answer = lambda _: Broken("credentials_refused", "535")
    world.start(world.worker({"mail": provider}))
    await world.notify(*(words(f"n-{k}") for k in range(20)))
    opened = await eventually(lambda: [fact for fact in world.facts if isinstance(fact, Opened)])
    assert (opened[0].provider, opened[0].reason, opened[0].is_ours) == ("mail", "credentials_refused", True)
    providers = ProviderDirectory(world.store.tables, world.clock)
    assert await providers.notices() == ["mail rejects our requests (credentials_refused: 535)"]

    async def on_the_timeline() -> bool:
        found = [await world.delivery(f"n-{k}/1") for k in range(20)]
        return all(each is not None and each.state == "pending" and not each.attempts for each in found)

    await eventually(on_the_timeline)
    provider.answer = lambda _: None
    found = await world.settled(*(f"n-{k}/1" for k in range(20)))
    assert states(found) == {"sent": 20}
    assert all(len(each.attempts) == 1 for each in found), "what was our fault does not count"
    assert await providers.notices() == []


async def test_a_fallback_provider_takes_over(world: World) -> None:
    first, second = Recorder(), Recorder()
    first.answer = lambda _: Temporary("unreachable")
    world.start(world.worker({"first": first, "second": second}))
    await world.notify(*(words(f"n-{k}") for k in range(30)))
    found = await world.settled(*(f"n-{k}/1" for k in range(30)))
    assert states(found) == {"sent": 30}
    assert {each.provider for each in found} == {"second"}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [Broken("credentials_refused", "535"), Temporary("provider_error", "451")])
async def test_a_recovered_provider_is_used_again_instead_of_its_fallback(world: World, trouble: Verdict) -> None:
    first, second = Recorder(), Recorder()
    first.answer = lambda _: trouble
    settings = changed(QUICK, breaker=msgspec.structs.replace(QUICK.breaker, failures_max=1, longest_us=150 * MS))
    world.start(world.worker({"first": first, "second": second}, settings))
    numbers = count()

    async def next_one() -> Delivery:
        name = f"n-{next(numbers)}"
        await world.notify(words(name))
        [delivery] = await world.settled(f"{name}/1")
        return delivery

    seen = [await next_one()]
    assert seen[0].provider == "second"

    async def tried_in_vain() -> bool:
        seen.append(await next_one())
        return len(first.calls) == 3

    await eventually(tried_in_vain)
    assert {each.provider for each in seen} == {"second"}, "a failed trial uses the fallback at once"
    assert set(second.took.values()) == {1}
    for each in seen:
        assert all(attempt.outcome == "accepted" for attempt in each.attempts[1:]), "one trial each at most"
    first.answer = lambda _: None

    async def works_again() -> bool:
        return (await next_one()).provider == "first"

    await eventually(works_again)
    assert (await next_one()).provider == "first", "its breaker is closed"


async def test_no_fallback_provider_is_called_after_an_unknown_result(world: World) -> None:
    first, second = Recorder(), Recorder()
    unsure: list[Verdict] = [Temporary("timeout", may_have_arrived=True)] * 2
    first.answer = lambda _: unsure.pop() if unsure else None
    world.start(world.worker({"first": first, "second": second}))
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert [attempt.provider for attempt in delivery.attempts] == ["first"] * 3
    assert second.calls == []


async def test_a_call_to_a_hanging_provider_times_out(world: World) -> None:
    provider = Recorder()
    provider.gate = asyncio.Event()
    world.start(world.worker({"mail": provider}, changed(QUICK, send_s=0.05)))
    await world.notify(words("n-1"))
    await eventually(lambda: len(provider.calls) >= 2)
    provider.gate.set()
    [delivery] = await world.settled("n-1/1")
    assert delivery.attempts[0].outcome == "timeout"
    assert delivery.attempts[0].may_have_arrived
    assert delivery.state == "sent"


async def test_a_push_is_sent_to_every_device_and_a_dead_one_is_removed(world: World) -> None:
    devices = (Device("apns", APNS_TOKEN), Device("fcm", FCM_TOKEN), Device("apns", OTHER_TOKEN))
    await world.put_user(ada(devices=devices))
    provider = Recorder("push")
    late = {"n-1/1/3": [Temporary("provider_error")]}

    def answer(message: Rendered) -> Verdict | None:
        assert isinstance(message, Push)
        if message.to == devices[0]:
            return Permanent("address_gone", address_is_dead=True)
        return late[message.id].pop() if late.get(message.id) else None

    provider.answer = answer
    world.start(world.worker({"push": provider}))
    await world.notify(words("n-1", "push"))
    [delivery] = await world.settled("n-1/1")
    assert delivery.state == "sent"
    assert [part.outcome for part in delivery.parts] == ["refused", "accepted", "accepted"]
    assert [(message.id, message.to) for message in provider.calls] == [
        ("n-1/1/1", devices[0]),
        ("n-1/1/2", devices[1]),
        ("n-1/1/3", devices[2]),
        ("n-1/1/3", devices[2]),
    ], "only what is missing is sent again, under its own number"
    [kept] = await world.store.tables.get([user_key(TENANT, "ada")], 0)
    assert kept is not None
    assert read(kept, User).devices == devices[1:]


async def test_a_poison_message_is_published_once_and_does_not_block_the_worker(world: World) -> None:
    provider = Recorder()
    world.start(world.worker({"mail": provider}))
    now = world.clock.now()
    values = [b"not json", b'{"channel": 7}', b'{"notification": "n-1", "channel": 9}', b""]
    adds = [
        Add(TENANT, f"bad-{k}", "notify.email", Once(now), pack(Message(None, value)), bytes([k] * 16), now, key_hash=1)
        for k, value in enumerate(values)
    ]
    await world.engine.submit(adds)
    await world.notify(words("n-1"))
    [delivery] = await world.settled("n-1/1")
    assert delivery.state == "sent"

    async def dead_letters() -> bool:
        return len(await world.dead()) == len(values)

    await eventually(dead_letters)
    poisoned = [fact for fact in world.facts if isinstance(fact, Poisoned)]
    assert len(poisoned) == len(values)
    assert {unpack(letter.message).value for letter in await world.dead()} == set(values)

    async def all_committed() -> bool:
        return sum((await world.store.committed(TENANT, "notify.email", GROUP)).values()) == len(values) + 1

    await eventually(all_committed)


@pytest.mark.slow
async def test_a_rate_limit_is_respected_and_the_rest_waits_on_the_timeline(world: World) -> None:
    provider = Recorder()
    rates = RateLimits({"mail": Rate(20.0, burst=4)})  # the last one waits for twice as long as one waits in memory
    world.start(world.worker({"mail": provider}, changed(QUICK, rates=rates)))
    begun = world.clock.now()
    await world.notify(*(words(f"n-{k}") for k in range(24)))
    found = await world.settled(*(f"n-{k}/1" for k in range(24)))
    assert states(found) == {"sent": 24}
    assert all(len(each.attempts) == 1 for each in found), "to wait is no attempt"
    assert world.clock.now() - begun >= 20 / 20 * SECOND * 0.9
    assert any(each.turn > 1 for each in found)
    [kept] = await world.store.tables.get([RowKey("rate_limit", SHARED, "mail")], world.clock.now())
    assert kept is not None, "the limit is the fleet's"


async def test_an_erased_notification_is_not_sent(world: World) -> None:
    provider = Recorder()
    world.start(world.worker({"mail": provider}))
    await world.engine.submit([schedule(words("gone"), world.clock.now())])
    await world.notify(words("n-1"))
    await world.settled("n-1/1")
    assert await world.delivery("gone/1") is None
    assert [message.id for message in provider.calls] == ["n-1/1"]


async def test_unread_records_outlive_the_retention_of_the_log() -> None:
    async with started_world(MemoryStore(retention_us=0, retention_bytes=0)) as world:
        await world.put_user(ada())
        await world.notify(words("n-1"))
        await eventually(lambda: world.store.topic(TENANT, "notify.email"))
        await world.store.tend(world.clock.now() + SECOND)
        world.start(world.worker({"mail": Recorder()}))
        assert states(await world.settled("n-1/1")) == {"sent": 1}


async def test_records_removed_before_they_were_read_are_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with started_world() as world:
        await world.put_user(ada())
        await world.notify(words("n-1"), words("n-2"))
        topic = await eventually(lambda: world.store.topic(TENANT, "notify.email"))
        assert topic is not None
        ends = dict(enumerate(topic.next))
        await world.store.commit(TENANT, "notify.email", GROUP, ends)
        await world.store.tend(world.clock.now() + 30 * 86_400 * SECOND)
        await world.store.commit(TENANT, "notify.email", GROUP, dict.fromkeys(ends, 0))
        world.start(world.worker({"mail": Recorder()}))
        await eventually(lambda: "removed before a worker read them" in caplog.text)


async def test_dead_addresses_do_not_hold_up_the_settlements_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handling one takes reads and commits; a stop that cannot wait for it must not leave others to be sent twice."""
    goes_on = asyncio.Event()
    handle = DeadAddressHandler.handle

    async def slow(self: DeadAddressHandler, *given: Any) -> None:
        await goes_on.wait()
        await handle(self, *given)

    monkeypatch.setattr(DeadAddressHandler, "handle", slow)
    await world.put_user(User("bob", email="bob@example.com"))
    provider = Recorder()
    provider.answer = lambda message: (
        Permanent("address_gone", address_is_dead=True) if message.id.startswith("dead") else None
    )
    world.start(world.worker({"mail": provider}))
    await world.notify(*(words(f"dead-{k}") for k in range(5)))
    await eventually(lambda: len(provider.calls) == 5)
    await world.notify(*(words(f"n-{k}", user="bob") for k in range(5)))
    assert states(await world.settled(*(f"n-{k}/1" for k in range(5)))) == {"sent": 5}
    assert await world.delivery("dead-0/1") is not None
    goes_on.set()
    assert states(await world.settled(*(f"dead-{k}/1" for k in range(5)))) == {"failed": 5}


class SlowPositions:
    """A store that commits no position before `goes_on`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, tenant: str, topic: str, group: str, offsets: dict[int, int]) -> None:
        self.began.set()
        await self.goes_on.wait()
        await self._store.commit(tenant, topic, group, offsets)


async def test_records_are_read_while_positions_are_committed(world: World) -> None:
    slow = SlowPositions(world.store)
    world.start(world.worker({"mail": Recorder()}, store=slow))
    await world.notify(words("n-1"))
    await slow.began.wait()
    await world.notify(words("n-2"))
    assert states(await world.settled("n-1/1", "n-2/1")) == {"sent": 2}
    assert not sum((await world.store.committed(TENANT, "notify.email", GROUP)).values())
    slow.goes_on.set()

    async def both() -> bool:
        return sum((await world.store.committed(TENANT, "notify.email", GROUP)).values()) == 2

    assert await eventually(both)


async def test_high_priority_is_claimed_and_settled_by_urgent_commits(world: World) -> None:
    urgent: list[str] = []

    async def commit_urgent(groups: Sequence[ChangeGroup]) -> list[GroupResult]:
        urgent.extend(change.key.name for group in groups for change in group.changes if type(change) is Put)
        return await world.engine.commit_urgent(groups)

    world.start(world.worker({"mail": Recorder()}, commit_urgent=commit_urgent))
    high = msgspec.structs.replace(words("n-high"), priority="high")
    await world.notify(words("n-normal"), high)
    assert states(await world.settled("n-normal/1", "n-high/1")) == {"sent": 2}
    assert urgent.count("n-high/1") == 2
    assert "n-normal/1" not in urgent


async def test_only_categories_with_opt_out_have_an_unsubscribe_link() -> None:
    async with started_world() as world:
        await world.put_user(ada())
        mail = Recorder("email")
        world.start(world.worker({"mail": mail}, link=lambda *about: f"https://t.example/u/{about[-1]}"))
        await world.notify(words("receipt"), words("news", category="news"))
        await world.settled("receipt/1", "news/1")
        links = {call.id: call.unsubscribe_url for call in mail.calls if isinstance(call, Email)}
        assert links == {"receipt/1": None, "news/1": "https://t.example/u/news"}


async def test_an_answer_that_cannot_be_settled_does_not_hold_up_the_records_behind_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug after the call must not end the sender with the record still in progress."""
    provider = Recorder("email")
    worker = world.worker({"mail": provider})
    pipeline = worker._others
    settle = pipeline._sender._sent

    def fail_once(send: PendingSend) -> None:
        monkeypatch.setattr(pipeline._sender, "_sent", settle)
        raise RuntimeError("a bug")

    monkeypatch.setattr(pipeline._sender, "_sent", fail_once)
    world.start(worker)
    await world.notify(words("n-1"))
    await world.notify(words("n-2"))
    first, second = await world.settled("n-1/1", "n-2/1")
    assert (first.state, second.state) == ("sent", "sent")
    assert {call.id for call in provider.calls} == {"n-1/1", "n-2/1"}


async def test_an_id_of_a_provider_that_is_not_text_is_an_error_of_the_provider(world: World) -> None:
    provider = Recorder("email")
    provider.answer = lambda _: Accepted(7)  # type: ignore[arg-type]
    world.start(world.worker({"mail": provider}))
    await world.notify(words("n-1"))

    async def attempted() -> Delivery | None:
        delivery = await world.delivery("n-1/1")
        return delivery if delivery is not None and delivery.attempts and delivery.attempts[0].outcome else None

    delivery = await eventually(attempted)
    assert delivery is not None
    assert delivery.attempts[0].outcome == "provider_error"

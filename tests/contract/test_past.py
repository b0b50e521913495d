"""Times in the past: what is refused, what is a repeat, and the note that an accepted one has."""

import msgspec

from tests.contract.factories import ACME, HOUR, MINUTE, NOW, add, answer, applied, drain, state
from tidings.domain.schedules.command import Add, Command, Outcome, Replace
from tidings.ports import IdempotencyKey, Store

IDEMPOTENCY = IdempotencyKey(ACME, "key-1", b"digest of the body")
REASON = "is 2 hours in the past"
NOTE = "due 2 hours ago: sent now"


def too_late(command: Add) -> Add:
    return msgspec.structs.replace(command, past_refusal=REASON, note=NOTE)


def rejected(schedule_id: str) -> Outcome:
    return Outcome(schedule_id, "rejected", reason=f"at: {REASON}", field="at")


async def test_a_schedule_whose_time_is_refused_does_not_begin(store: Store) -> None:
    commands: list[Command] = [add("a"), too_late(add("b")), too_late(add(None)), add("c"), Replace(too_late(add("d")))]
    a, b, made, c, d = await applied(store, *commands)
    assert (a.outcome, c.outcome) == ("scheduled", "scheduled")
    assert (b, made, d) == (rejected("b"), rejected(""), rejected("d"))
    assert [await state(store, name) for name in "abcd"] == ["pending", None, "pending", None]


async def test_a_repeat_whose_time_is_refused_by_now_is_unchanged(store: Store) -> None:
    command = add("a", NOW + MINUTE)
    await applied(store, command)
    assert (await answer(store, too_late(command))).outcome == "unchanged"
    assert (await answer(store, Replace(too_late(command)))).outcome == "unchanged"
    await drain(store, NOW + HOUR)
    again = await answer(store, too_late(command), NOW + 2 * HOUR)
    assert (again.outcome, again.state) == ("unchanged", "released")


async def test_a_replacement_whose_time_is_refused_leaves_the_schedule_as_it_is(store: Store) -> None:
    await applied(store, add("a", NOW + HOUR))
    other = too_late(add("a", NOW, value=b"other"))
    assert await answer(store, Replace(other)) == rejected("a")
    assert await state(store, "a") == "pending"
    await drain(store, NOW + HOUR)
    assert await answer(store, Replace(other, reuse=True), NOW + HOUR) == rejected("a")
    assert await answer(store, msgspec.structs.replace(other, reuse=True), NOW + HOUR) == rejected("a")


async def test_only_a_schedule_that_begins_has_the_note(store: Store) -> None:
    first, second, made = (msgspec.structs.replace(add(name), note=NOTE) for name in ("a", "b", None))
    outcomes = await applied(store, first, add("plain"), second)
    assert [outcome.note for outcome in outcomes] == [NOTE, None, NOTE]
    assert [outcome.note for outcome in await applied(store, made, add(None))] == [NOTE, None]
    assert (await answer(store, first)).note is None
    other = msgspec.structs.replace(add("a", value=b"other"), note=NOTE)
    replaced = await answer(store, Replace(other))
    assert (replaced.outcome, replaced.note) == ("replaced", NOTE)


async def test_a_repeat_with_an_idempotency_key_has_the_first_note(store: Store) -> None:
    first = await store.apply([add("a", NOW + MINUTE)], NOW, IDEMPOTENCY)
    assert await store.apply([too_late(add("a", NOW + HOUR))], NOW + HOUR, IDEMPOTENCY) == first
    other = IdempotencyKey(ACME, "key-2", b"another body")
    noted = await store.apply([msgspec.structs.replace(add("b"), note=NOTE)], NOW, other)
    assert noted[0].note == NOTE
    assert await store.apply([add("b")], NOW, other) == noted


async def test_a_refused_request_does_not_use_up_its_idempotency_key(store: Store) -> None:
    assert await store.apply([too_late(add("a"))], NOW, IDEMPOTENCY) == [rejected("a")]
    corrected = IdempotencyKey(ACME, IDEMPOTENCY.key, b"another body")
    (outcome,) = await store.apply([add("a")], NOW, corrected)
    assert outcome.outcome == "scheduled"

"""The table of truthful answers: every command against every state that a schedule can have."""

from collections.abc import Callable

import msgspec
import pytest

from tests.contract.conftest import OpenStore
from tests.contract.factories import ACME, DAY, MINUTE, NOW, add, answer, applied, bring, every, found, state
from tidings.domain.schedules.command import (
    FINISHED,
    Add,
    Cancel,
    Command,
    Fire,
    Outcome,
    OutcomeWord,
    Pause,
    Replace,
    Resume,
    State,
)
from tidings.domain.schedules.when import Every
from tidings.ports import Store

PENDING_STATES: tuple[State, ...] = ("pending", "paused")
OTHER = "something else"

ANSWERS: dict[str, dict[State, OutcomeWord]] = {
    "add the same": dict.fromkeys((*PENDING_STATES, *sorted(FINISHED)), "unchanged"),
    "add another": {
        "pending": "rejected",
        "paused": "rejected",
        "released": "already_released",
        "ended": "already_released",
        "cancelled": "cancelled",
        "missed": "rejected",
    },
    "replace by the same": {
        "pending": "unchanged",
        "paused": "unchanged",
        "released": "already_released",
        "ended": "already_released",
        "cancelled": "cancelled",
        "missed": "rejected",
    },
    "replace": {
        "pending": "replaced",
        "paused": "replaced",
        "released": "already_released",
        "ended": "already_released",
        "cancelled": "cancelled",
        "missed": "rejected",
    },
    "replace or reuse": {
        "pending": "replaced",
        "paused": "replaced",
        "released": "scheduled",
        "ended": "scheduled",
        "cancelled": "scheduled",
        "missed": "scheduled",
    },
    "cancel": {
        "pending": "cancelled",
        "paused": "cancelled",
        "released": "already_released",
        "ended": "already_released",
        "cancelled": "cancelled",
        "missed": "rejected",
    },
    "pause": {
        "pending": "paused",
        "paused": "paused",
        "released": "already_released",
        "ended": "already_released",
        "cancelled": "cancelled",
        "missed": "rejected",
    },
    "resume": {
        "pending": "unchanged",
        "paused": "resumed",
        "released": "already_released",
        "ended": "already_released",
        "cancelled": "cancelled",
        "missed": "rejected",
    },
    "fire": {
        "pending": "fired",
        "paused": "fired",
        "released": "already_released",
        "ended": "already_released",
        "cancelled": "cancelled",
        "missed": "rejected",
    },
}
TABLE = [(verb, before, word) for verb, answers in ANSWERS.items() for before, word in answers.items()]
CHANGES = ("cancel", "pause", "resume", "fire")


def command(verb: str, present: Add) -> Command:
    """The command for a verb; `present` is what the id holds."""
    assert present.id is not None
    other = add(present.id, NOW + 2 * MINUTE, content=OTHER)
    match verb:
        case "add the same":
            return present
        case "add another":
            return other
        case "replace by the same":
            return Replace(present)
        case "replace":
            return Replace(other)
        case "replace or reuse":
            return Replace(other, reuse=True)
        case _:
            return change(verb, present.id)


def change(verb: str, schedule_id: str) -> Command:
    kinds: dict[str, Callable[[str, str], Command]] = {
        "cancel": Cancel,
        "pause": Pause,
        "resume": Resume,
        "fire": Fire,
    }
    return kinds[verb](ACME, schedule_id)


@pytest.mark.parametrize(("verb", "before", "word"), TABLE)
async def test_outcome_of_each_command_in_each_state(store: Store, verb: str, before: State, word: OutcomeWord) -> None:
    """Every field of the answer, on every store."""
    present = await bring(store, before)
    assert await answer(store, command(verb, present)) == expected(verb, before, word, last_due(present))


def last_due(present: Add) -> int:
    """When its pending or last occurrence is due."""
    return NOW if isinstance(present.when, Every) else present.due


def expected(verb: str, before: State, word: OutcomeWord, due: int) -> Outcome:
    """The whole answer: state, reason and due time too, where the outcome alone is not enough."""
    match word:
        case "unchanged" | "already_released":
            return Outcome("one", word, due, before)
        case "rejected" if before == "missed":
            return Outcome("one", word, due, before, "it was missed: expired")
        case "rejected":
            reason = "this id holds another schedule: replace it, cancel it, or use another id"
            return Outcome("one", word, due, before, reason)
        case "cancelled" if before == "cancelled" and verb != "cancel":
            return Outcome("one", word, due, "cancelled")
        case "replaced":
            return Outcome("one", word, NOW + 2 * MINUTE, "paused" if before == "paused" else None)
        case "scheduled":
            return Outcome("one", word, NOW + 2 * MINUTE)
        case "fired":
            return Outcome("one", word, NOW)
        case _:
            return Outcome("one", word, due)


@pytest.mark.parametrize(("verb", "before", "word"), TABLE)
async def test_state_after_each_command(store: Store, verb: str, before: State, word: OutcomeWord) -> None:
    """A refused command changes nothing, and the answer matches the state."""
    present = await bring(store, before)
    earlier = await found(store, "one")
    await answer(store, command(verb, present))
    after = await found(store, "one")
    match word:
        case "scheduled":
            assert (after.state, after.generation) == ("pending", 2)
        case "replaced":
            assert (after.state, after.generation) == (before, 2)
        case "paused":
            assert after.state == "paused"
        case "resumed" | "fired":
            assert (after.state, after.generation) == ("pending", 1)
        case "cancelled" if verb == "cancel":
            assert after.state == "cancelled"
        case _:
            assert after == earlier


@pytest.mark.parametrize("before", ["released", "ended", "missed"])
@pytest.mark.parametrize("verb", ["replace by the same", "replace", *CHANGES])
async def test_a_change_that_is_too_late_returns_the_state(store: Store, verb: str, before: State) -> None:
    present = await bring(store, before)
    assert (await answer(store, command(verb, present))).state == before


@pytest.mark.parametrize("verb", CHANGES)
async def test_the_outcome_unknown_says_since_when_ids_are_remembered(open_store: OpenStore, verb: str) -> None:
    store = await open_store(id_retention_us=3 * DAY, created=NOW)
    young = await answer(store, change(verb, "nobody"), now=NOW + DAY)
    assert young == Outcome("nobody", "unknown", remembered_since=NOW)
    old = await answer(store, change(verb, "nobody"), now=NOW + 10 * DAY)
    assert old.remembered_since == NOW + 7 * DAY


async def test_replace_of_an_unknown_id_schedules_it(store: Store) -> None:
    outcome = await answer(store, Replace(add("one", NOW + MINUTE)))
    assert outcome == Outcome("one", "scheduled", NOW + MINUTE)
    assert (await found(store, "one")).generation == 1


@pytest.mark.parametrize("verb", CHANGES)
async def test_recurring_schedules_have_the_same_outcomes(store: Store, verb: str) -> None:
    for before in PENDING_STATES:
        await applied(store, every(before, NOW + MINUTE))
    await applied(store, Pause(ACME, "paused"))
    for before in PENDING_STATES:
        outcome = await answer(store, change(verb, before))
        assert outcome.outcome == ANSWERS[verb][before]


async def test_fire_of_a_recurring_schedule_leaves_its_state(store: Store) -> None:
    await applied(store, every("going", NOW + MINUTE), every("held", NOW + MINUTE), Pause(ACME, "held"))
    await applied(store, Fire(ACME, "going"), Fire(ACME, "held"))
    assert [await state(store, name) for name in ("going", "held")] == ["pending", "paused"]


@pytest.mark.parametrize("name", ["nul\0inside", "half \ud800 pair", "x" * 1_000, "ü" * 500])
@pytest.mark.parametrize("verb", ["add another", "replace", *CHANGES])
async def test_a_name_that_cannot_be_stored_is_rejected(store: Store, verb: str, name: str) -> None:
    given = msgspec.structs.replace(add("one"), id=name)
    outcome = await answer(store, command(verb, given))
    too_long = "id: is longer than 999 bytes of UTF-8, the most that can be stored"
    unfit = "id: holds a NUL character or half of a surrogate pair, which cannot be stored: remove it"
    reason = too_long if len(name) > 100 else unfit
    assert outcome == Outcome(name.replace("\ud800", "?"), "rejected", reason=reason, field="id")


async def test_a_topic_or_tenant_that_cannot_be_stored_is_rejected_and_the_rest_of_the_batch_accepted(
    store: Store,
) -> None:
    outcomes = await applied(
        store,
        add("a", NOW + MINUTE),
        add("b", NOW + MINUTE, topic="nul\0inside"),
        add("c", NOW + MINUTE, tenant="half \ud800 pair"),
        add(None, NOW + MINUTE, topic="nul\0inside"),
        add("d", NOW + MINUTE),
    )
    assert [outcome.outcome for outcome in outcomes] == ["scheduled", *["rejected"] * 3, "scheduled"]
    assert [outcome.field for outcome in outcomes] == [None, "topic", "tenant", "topic", None]

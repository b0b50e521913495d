"""The linearizability checker."""

import random

import pytest

from tests.fleet.checker import order_of
from tests.fleet.model import FOREVER, NONE, Kind, State, Step, after

T = "first"


def step(kind: Kind, called: int, returned: int = FOREVER, word: str | None = None, **more: object) -> Step:
    return Step(kind, called, returned, word, **more)  # type: ignore[arg-type]


def left(called: int, token: str = T, generation: int = 1, n: int = 1, returned: int = FOREVER) -> Step:
    return Step("release", called, returned, token=token, generation=generation, n=n)


ADDED = step("add", 0, 1, "scheduled", token=T)
EVERY = step("add", 0, 1, "scheduled", token=T, often=3)

TRUE = {
    "released": [ADDED, left(5), step("stand", 99, word="released")],
    "cancelled": [ADDED, step("cancel", 2, 3, "cancelled"), step("stand", 99, word="cancelled")],
    "cancelled at the moment of its release": [ADDED, left(5), step("cancel", 4, 9, "already_released")],
    "replaced at the moment of its release": [
        *(ADDED, step("replace", 4, 9, "replaced", token="second"), left(5, "second", 2)),
        step("stand", 99, word="released", generation=2),
    ],
    "an add without an answer that was done": [
        step("add", 0, token=T),
        step("add", 8, 9, "unchanged", token=T),
        left(5),
    ],
    "an add without an answer that was not": [
        step("add", 0, token=T),
        step("add", 8, 9, "scheduled", token=T),
        left(9),
    ],
    "a cancel without an answer that came late": [
        *(ADDED, step("cancel", 2), step("pause", 3, 4, "paused"), step("stand", 99, word="cancelled"))
    ],
    "held and let go": [ADDED, step("pause", 2, 3, "paused"), step("resume", 6, 8, "resumed"), left(7)],
    "two cancels": [ADDED, step("cancel", 2, 5, "cancelled"), step("cancel", 2, 5, "cancelled")],
    "fired while held": [ADDED, step("pause", 2, 3, "paused"), step("fire", 4, 6, "fired"), left(5)],
    "on its way": [ADDED, left(5), step("replace", 4, 9, "in_flight", token="second")],
    "recurring": [EVERY, left(2), left(3, n=2), left(4, n=3), step("stand", 99, word="ended")],
    "recurring with one missed": [
        EVERY,
        left(2),
        step("miss", 3, n=2, often=1),
        left(4, n=3),
        step("stand", 99, word="ended"),
    ],
    "recurring and fired": [
        EVERY,
        step("fire", 2, 3, "fired"),
        left(3, n=-1),
        left(4),
        step("stand", 99, word="pending"),
    ],
    "reused": [
        *(ADDED, left(2), step("reuse", 3, 4, "scheduled", token="second"), left(5, "second", 2)),
        step("stand", 99, word="released", generation=2),
    ],
}

FALSE = {
    "twice": [ADDED, left(5), left(6)],
    "after it was cancelled": [ADDED, step("cancel", 2, 3, "cancelled"), left(5)],
    "a cancel said too late, though nothing left": [
        *(ADDED, step("cancel", 2, 3, "already_released"), step("stand", 99, word="pending"))
    ],
    "a cancel said too late before it left": [ADDED, step("cancel", 2, 3, "already_released"), left(5)],
    "both the old one and the new one": [ADDED, left(3), step("replace", 2, 4, "replaced", token="b"), left(5, "b", 2)],
    "the old one instead of the new one": [ADDED, step("replace", 2, 4, "replaced", token="b"), left(5)],
    "while it was held": [ADDED, step("pause", 2, 3, "paused"), left(5, returned=6), step("resume", 8, 9, "resumed")],
    "seen before it was held": [
        ADDED,
        left(2, returned=3),
        step("pause", 4, 5, "paused"),
        step("resume", 6, 7, "resumed"),
    ],
    "lost": [ADDED, step("stand", 99, word="released")],
    "forgotten": [ADDED, step("stand", 99, word="none")],
    "never asked for": [left(5)],
    "accepted twice": [ADDED, step("add", 2, 3, "scheduled", token=T)],
    "an answer of nobody": [step("cancel", 2, 3, "cancelled")],
    "cancelled after it was seen": [ADDED, left(2, returned=3), step("cancel", 4, 5, "cancelled")],
    "an occurrence left out": [EVERY, left(2), left(4, n=3)],
    "an occurrence twice": [EVERY, left(2), left(3), left(4, n=2)],
    "fired once, left twice": [EVERY, step("fire", 2, 3, "fired"), left(3, n=-1), left(4, n=-2)],
    "ended too early": [EVERY, left(2), step("stand", 99, word="ended")],
    "a generation too many": [ADDED, left(2, generation=2)],
}


@pytest.mark.parametrize("steps", TRUE.values(), ids=TRUE)
def test_a_linearizable_history_has_an_order(steps: list[Step]) -> None:
    for _ in range(5):
        random.shuffle(steps)
        order = order_of(steps)
        assert order is not None
        state: State | None = NONE
        for each in order:
            assert state is not None
            state = after(state, each)
        assert state is not None


@pytest.mark.parametrize("steps", FALSE.values(), ids=FALSE)
def test_a_non_linearizable_history_has_no_order(steps: list[Step]) -> None:
    for _ in range(5):
        random.shuffle(steps)
        assert order_of(steps) is None


@pytest.mark.parametrize(("end", "is_true"), [("released", True), ("cancelled", False)])
def test_many_calls_without_an_answer_are_decided_soon(end: str, is_true: bool) -> None:
    """Clients that are refused again and again while the server is away, as on a busy machine."""
    calls: list[tuple[Kind, str]] = [
        ("replace", "b"),
        ("replace", "c"),
        ("replace", "d"),
        ("pause", ""),
        ("resume", ""),
    ]
    refused = [step(kind, 10 + 10 * turn, token=token) for turn in range(9) for kind, token in calls]
    answered = [step("pause", 500, 501, "paused"), step("resume", 502, 503, "resumed")]
    seen = [left(500, "c", 6, returned=800), step("stand", 999, word=end, generation=6)]
    assert (order_of([ADDED, *refused, *answered, *seen]) is not None) is is_true


@pytest.mark.parametrize("seed", range(40))
def test_generated_histories_are_linearizable_and_changed_ones_mostly_not(seed: int) -> None:
    """Histories made by the machine itself, their moments widened until many steps overlap."""
    chance = random.Random(seed)
    kinds: list[Kind] = ["add", "replace", "cancel", "pause", "resume", "fire", "release", "reuse"]
    words = ("scheduled", "unchanged", "replaced", "rejected", "cancelled", "paused", "resumed", "fired", "unknown")
    state, steps = NONE, list[Step]()
    for moment in range(10, 130, 10):
        kind = chance.choice(kinds)
        span = (moment - chance.randrange(15), moment + chance.randrange(15))
        token = chance.choice("ab")
        if kind == "release":
            tried = Step(kind, *span, token=state.token, generation=state.generation, n=1)
            options = [tried]
        else:
            options = [Step(kind, *span, word=word, token=token) for word in (*words, "already_released")]
        legal = [(option, result) for option in options if (result := after(state, option)) is not None]
        if legal:
            chosen, state = legal[0]
            unanswered = chosen.kind != "release" and chance.random() < 0.15
            steps.append(chosen._replace(returned=FOREVER, word=None) if unanswered else chosen)
    steps.append(Step("stand", 200, word=state.phase, generation=state.generation))
    assert order_of(steps) is not None
    assert order_of([*steps[:-1], steps[-1]._replace(word="missed")]) is None

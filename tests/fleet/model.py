"""One id as a state machine: the correct answers in each state, and what may be released.

Everything that happened to an id is a step: the calls of clients with their answers, and what was seen of
it: released records, missed occurrences, and its final state.
"""

from typing import Literal, NamedTuple

Kind = Literal["add", "replace", "reuse", "cancel", "pause", "resume", "fire", "release", "miss", "stand"]
Phase = Literal["none", "pending", "paused", "released", "missed", "cancelled", "ended"]

FOREVER = 1 << 62
GONE = frozenset({"released", "ended"})
FINISHED = frozenset({"released", "missed", "cancelled", "ended"})
LEAVING = frozenset({"already_released", "in_flight"})  # which of the two is a matter of a second


class Step(NamedTuple):
    """An event that took effect between two times. A call without an answer has no outcome.

    `token` is the value of a schedule's messages, `often` says how often it recurs (0: once). A release and a miss say
    which occurrence (`n`, and for a miss how many from there) of which generation.
    """

    kind: Kind
    called: int
    returned: int = FOREVER
    word: str | None = None
    token: str = ""
    often: int = 0
    generation: int = 0
    n: int = 0
    due: int | None = None
    where: str = ""

    @property
    def may_be_nothing(self) -> bool:
        """A call without an answer may have had no effect at all."""
        return self.word is None and self.kind not in {"release", "miss", "stand"}

    def __str__(self) -> str:
        if self.kind == "release":
            what = f"{self.token} generation {self.generation} n {self.n}"
        else:
            what = f"{self.token or ''} -> {self.word or 'no answer'}"
        until = "" if self.returned == FOREVER else f"..{self.returned}"
        return f"[{self.called}{until}] {self.kind} {what} {self.where}".rstrip()


class State(NamedTuple):
    """The state of an id."""

    phase: Phase = "none"
    token: str = ""
    generation: int = 0
    often: int = 0
    next: int = 1
    fires: int = 0
    left: frozenset[int] = frozenset()  # of those fired by hand

    @property
    def recurs(self) -> bool:
        return self.often > 0


NONE = State()


def after(state: State, step: Step) -> State | None:
    """The state after a step; None if it cannot have happened here, or not with this answer."""
    match step.kind:
        case "release":
            return _release(state, step)
        case "miss":
            return _miss(state, step)
        case "stand":
            return state if step.word == state.phase and step.generation in {0, state.generation} else None
        case "add" | "replace" | "reuse":
            word, following = _put(state, step)
        case _:
            word, following = _change(state, step)
    return following if step.word is None or step.word in word else None


def _put(state: State, step: Step) -> tuple[frozenset[str], State]:
    """The correct answers to a schedule, and the state after it."""
    begun = State("pending", step.token, state.generation + 1, step.often)
    if state.phase == "none":
        return frozenset({"scheduled"}), begun
    same = state.token == step.token
    if step.kind == "add" and same:
        return frozenset({"unchanged"}), state
    if state.phase in FINISHED:
        return (frozenset({"scheduled"}), begun) if step.kind == "reuse" else (_too_late(state), state)
    if step.kind == "add":
        return frozenset({"rejected"}), state
    if same:
        return frozenset({"unchanged"}), state
    return frozenset({"replaced"}), begun._replace(phase=state.phase)


def _change(state: State, step: Step) -> tuple[frozenset[str], State]:
    """The same for commands that have only an id."""
    if state.phase == "none":
        return frozenset({"unknown"}), state
    if state.phase in FINISHED:
        return _too_late(state), state
    match step.kind:
        case "cancel":
            return frozenset({"cancelled"}), state._replace(phase="cancelled")
        case "pause":
            return frozenset({"paused"}), state._replace(phase="paused")
        case "resume":
            return frozenset({"resumed" if state.phase == "paused" else "unchanged"}), state._replace(phase="pending")
        case _:
            following = state._replace(fires=state.fires + 1) if state.recurs else state._replace(phase="pending")
            return frozenset({"fired"}), following


def _too_late(state: State) -> frozenset[str]:
    if state.phase in GONE:
        return LEAVING
    return frozenset({"cancelled" if state.phase == "cancelled" else "rejected"})


def _release(state: State, step: Step) -> State | None:
    if (state.token, state.generation) != (step.token, step.generation):
        return None
    if step.n < 0:
        is_open = -step.n <= state.fires and step.n not in state.left and state.phase not in {"cancelled", "none"}
        return state._replace(left=state.left | {step.n}) if is_open else None
    if state.phase != "pending":
        return None
    if not state.recurs:
        return state._replace(phase="released") if step.n == 1 else None
    return _go_on(state, step.n, step.n)


def _miss(state: State, step: Step) -> State | None:
    if state.phase != "pending":
        return None
    if not state.recurs:
        return state._replace(phase="missed")
    return _go_on(state, step.n, step.n + step.often - 1)


def _go_on(state: State, first: int, last: int) -> State | None:
    """The occurrences from first to last are finished: they were next, and nothing follows the last of all."""
    if first != state.next or last > state.often:
        return None
    return state._replace(next=last + 1, phase="ended" if last == state.often else "pending")

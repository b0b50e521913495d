"""Is there an order? A history of one id is linearizable if its steps can be put into one order that is true.

The search of Wing and Gong: any step may come next unless another had returned before it was called. What was tried
once, from the same state with the same steps left, is not tried again (Lowe). Calls without an answer may be left out,
and of several such that are alike the first stands for all: it could take effect whenever the others could.
"""

from collections.abc import Iterator, Sequence

from tests.fleet.model import NONE, State, Step, after

TRIES_MAX = 200_000


class TooLong(Exception):
    """The search took too long."""


def order_of(steps: Sequence[Step], begin: State = NONE) -> list[Step] | None:
    """An order in which everything is true; None if there is none."""
    ordered = sorted(steps, key=lambda step: (step.called, step.returned))
    tried: set[tuple[int, State]] = set()
    path: list[Step] = []
    return path if _search(ordered, (1 << len(ordered)) - 1, begin, path, tried) else None


def _search(steps: Sequence[Step], left: int, state: State, path: list[Step], tried: set[tuple[int, State]]) -> bool:
    """Whether the steps that are left (a bit for each) can follow a state."""
    if (left, state) in tried:
        return False
    tried.add((left, state))
    if len(tried) > TRIES_MAX:
        raise TooLong(f"{len(steps)} steps: {[str(step) for step in steps]}")
    if all(step.may_be_nothing for index, step in enumerate(steps) if left >> index & 1):
        return True
    for index in _next(steps, left, state):
        following = after(state, steps[index])
        if following is not None:
            path.append(steps[index])
            if _search(steps, left & ~(1 << index), following, path, tried):
                return True
            path.pop()
    return False


def _next(steps: Sequence[Step], left: int, state: State) -> Iterator[int]:
    """Which of those that are left may come next."""
    bound = min(step.returned for index, step in enumerate(steps) if left >> index & 1)
    alike: set[tuple[str, str]] = set()
    for index, step in enumerate(steps):
        if step.called > bound:
            return
        if not left >> index & 1:
            continue
        if step.may_be_nothing:
            if (step.kind, step.token) in alike or after(state, step) == state:
                continue
            alike.add((step.kind, step.token))
        yield index

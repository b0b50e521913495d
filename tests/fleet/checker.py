"""Is there an order? A history of one id is linearizable if its steps can be put into one order that is true.

The search of Wing and Gong: any step may come next unless another had returned before it was called. What was tried
once, from the same state with the same steps left, is not tried again (Lowe). Calls without an answer may be left out.
"""

from collections.abc import Sequence

from tests.fleet.model import FOREVER, NONE, State, Step, after

TRIES_MAX = 200_000


class TooLong(Exception):
    """The search was given up."""


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
    bound, must = FOREVER, False
    for index, step in enumerate(steps):
        if left >> index & 1:
            bound = min(bound, step.returned)
            must = must or not step.may_be_nothing
    if not must:
        return True
    for index, step in enumerate(steps):
        if step.called > bound:
            return False
        if left >> index & 1 and (following := after(state, step)) is not None:
            path.append(step)
            if _search(steps, left & ~(1 << index), following, path, tried):
                return True
            path.pop()
    return False

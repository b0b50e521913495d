"""A linearizability checker: the steps of one id must have an order in which every answer is correct.

The search of Wing and Gong: any step may come next unless another had returned before it was called. What was tried
once, from the same state with the same steps left, is not tried again (Lowe). Calls without an answer may be left out:
they are optional. Of several such that are alike the first stands for all: it could take effect whenever the others
could. What failed with some optional steps left fails with fewer of them too.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.fleet.model import NONE, State, Step, after

TRIES_MAX = 200_000


class TooLong(Exception):
    """The search took too long."""


def order_of(steps: Sequence[Step], begin: State = NONE) -> list[Step] | None:
    """An order in which every answer is correct; None if there is none."""
    search = _Search(sorted(steps, key=lambda step: (step.called, step.returned)))
    return search.path if search.run((1 << len(steps)) - 1, begin) else None


class _Search:
    """The steps in the order of their calls; a set of steps has a bit for each."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.path: list[Step] = []
        self._steps = steps
        self._optional = sum(1 << index for index, step in enumerate(steps) if step.may_be_nothing)
        self._tries = 0
        # By required steps left and state: which optional steps were left when that failed.
        self._failed: dict[tuple[int, State], list[int]] = defaultdict(list)

    def run(self, left: int, state: State) -> bool:
        """Whether the steps that are left can follow a state."""
        required, optional = left & ~self._optional, left & self._optional
        if not required:
            return True
        failed = self._failed[required, state]
        if any(optional & ~more == 0 for more in failed) or self._is_past(required, state):
            return False
        self._tries += 1
        if self._tries > TRIES_MAX:
            raise TooLong(f"{len(self._steps)} steps: {[str(step) for step in self._steps]}")
        for index in self._next(left, state):
            following = after(state, self._steps[index])
            if following is not None:
                self.path.append(self._steps[index])
                if self.run(left & ~(1 << index), following):
                    return True
                self.path.pop()
        failed.append(optional)
        return False

    def _next(self, left: int, state: State) -> Iterator[int]:
        """Which of those that are left may come next, required ones first: so more optional ones are left when it
        fails, and that settles more."""
        open_steps = [(index, step) for index, step in enumerate(self._steps) if left >> index & 1]
        bound = min(step.returned for _, step in open_steps)
        callable_now = [(index, step) for index, step in open_steps if step.called <= bound]
        yield from (index for index, step in callable_now if not step.may_be_nothing)
        alike: set[tuple[str, str]] = set()
        for index, step in callable_now:
            if step.may_be_nothing and (step.kind, step.token) not in alike and self._is_of_use(step, left, state):
                alike.add((step.kind, step.token))
                yield index

    def _is_of_use(self, step: Step, left: int, state: State) -> bool:
        """Whether an optional step changes anything: to fire a recurring one does only if that is released later."""
        if step.kind != "fire" or not state.recurs:
            return after(state, step) != state
        fired = (-each.n for index, each in enumerate(self._steps) if left >> index & 1 and each.kind == "release")
        return max(fired, default=0) > state.fires

    def _is_past(self, required: int, state: State) -> bool:
        """Whether a required step belongs to an earlier generation: generations only increase."""
        return any(
            0 < step.generation < state.generation for index, step in enumerate(self._steps) if required >> index & 1
        )

"""What a server is to do with the next requests; without a word it accepts them."""

from collections import deque
from typing import Generic, TypeVar

Step = TypeVar("Step")


class Script(Generic[Step]):
    """Steps in order, each once."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()

    def then(self, *steps: Step) -> None:
        """Have these happen to the requests that come next."""
        self._steps.extend(steps)

    def next(self) -> Step | None:
        return self._steps.popleft() if self._steps else None

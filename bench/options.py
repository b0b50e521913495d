"""The options of a benchmark."""

import msgspec

ROUNDS = 5
SECONDS_LEAST = 0.4


class Options(msgspec.Struct, frozen=True):
    """`scale` shrinks every size and time; `pending` is the number of pending rows, for benchmarks that have them."""

    rounds: int = ROUNDS
    scale: float = 1.0
    pending: int | None = None
    keep: str | None = None

    def rows(self, full: int, step: int = 1) -> int:
        """A number of rows, scaled, as a multiple of `step`."""
        return max(step, round(full * self.scale) // step * step)

    def seconds(self, full: float) -> float:
        """A time, scaled."""
        return max(min(SECONDS_LEAST, full), full * self.scale)

    def backlog(self, full: int) -> int:
        """The number of pending rows: as given, otherwise `full`; scaled."""
        return round((full if self.pending is None else self.pending) * self.scale)

"""What a reader saw: when each record was due and when it was there, and what came twice."""

import msgspec

from bench.flows import Lateness, lateness


class Arrivals(msgspec.Struct, frozen=True):
    """In the order in which they came, each occurrence once; `twice` counts those that came again."""

    due: list[int]
    at: list[int]
    twice: int

    def since(self, start: int, end: int | None = None) -> "Arrivals":
        """Those that fell due in a span of time."""
        pairs = zip(self.due, self.at, strict=True)
        kept = [(due, at) for due, at in pairs if start <= due and (end is None or due < end)]
        return Arrivals([due for due, _ in kept], [at for _, at in kept], self.twice)

    @property
    def late_us(self) -> list[int]:
        """How late each was."""
        return [at - due for due, at in zip(self.due, self.at, strict=True)]

    def lateness(self) -> Lateness:
        """The percentiles of that."""
        return lateness(self.late_us)

    def faults(self, sent: int) -> dict[str, int]:
        """What must not be: each of them has to be nought."""
        early = sum(late < 0 for late in self.late_us)
        return {"lost": sent - len(self.due), "twice": self.twice, "early": early}

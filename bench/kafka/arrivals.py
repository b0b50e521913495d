"""The records that a reader saw: due and arrival times, and duplicates."""

import msgspec

from bench.flows import Lateness, lateness


class Arrivals(msgspec.Struct, frozen=True):
    """Arrivals in order, each occurrence once; `twice` counts duplicates."""

    due: list[int]
    at: list[int]
    twice: int

    def since(self, start: int, end: int | None = None) -> "Arrivals":
        """The arrivals that were due in a span of time."""
        pairs = zip(self.due, self.at, strict=True)
        kept = [(due, at) for due, at in pairs if start <= due and (end is None or due < end)]
        return Arrivals([due for due, _ in kept], [at for _, at in kept], self.twice)

    @property
    def late_us(self) -> list[int]:
        """The lateness of each."""
        return [at - due for due, at in zip(self.due, self.at, strict=True)]

    def lateness(self) -> Lateness:
        """The percentiles of the lateness."""
        return lateness(self.late_us)

    def faults(self, sent: int) -> dict[str, int]:
        """The faults, each of which must be 0."""
        early = sum(late < 0 for late in self.late_us)
        return {"lost": sent - len(self.due), "twice": self.twice, "early": early}

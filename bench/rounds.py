"""What the rounds of a benchmark measured: medians, and how far the rounds lie apart."""

from collections.abc import Mapping
from statistics import median

from bench.report import Report


class Samples:
    """Figures by name, one value a round."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, figures: Mapping[str, float]) -> None:
        """Take the figures of one round."""
        for name, value in figures.items():
            self._values.setdefault(name, []).append(value)

    def medians(self) -> dict[str, float]:
        """The middle value of each."""
        return {name: rounded(median(values)) for name, values in self._values.items()}

    def spreads(self) -> dict[str, float]:
        """From the least to the most, as a part of the median."""
        return {name: rounded(_spread(values)) for name, values in self._values.items()}


class Rounds:
    """Our figures, the limit's, and the ratio of the two: taken in each round, because machines drift."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._figures = Samples()
        self._limits = Samples()
        self._ratios = Samples()
        self.done = 0

    def add(
        self,
        figures: Mapping[str, float],
        limits: Mapping[str, float] | None = None,
        ratios: Mapping[str, float] | None = None,
    ) -> None:
        """Take a round."""
        self.done += 1
        self.put(figures, limits, ratios)

    def put(
        self,
        figures: Mapping[str, float],
        limits: Mapping[str, float] | None = None,
        ratios: Mapping[str, float] | None = None,
    ) -> None:
        """Take figures beside the rounds: of the run as a whole, or more of a round that is counted already."""
        self._figures.add(figures)
        self._limits.add(limits or {})
        self._ratios.add(ratios or {})

    def report(self) -> Report:
        """All rounds in one."""
        return Report(
            self._name,
            self.done,
            self._figures.medians(),
            self._figures.spreads(),
            self._limits.medians(),
            self._ratios.medians(),
        )


def divided(figures: Mapping[str, float], by: Mapping[str, float]) -> dict[str, float]:
    """Each figure by the one of the same name."""
    return {name: figures[name] / value for name, value in by.items() if name in figures and value}


def rounded(value: float) -> float:
    """Four digits that count; whole numbers stay whole."""
    return float(f"{value:.4g}") if abs(value) < 10_000 else float(round(value))


def _spread(values: list[float]) -> float:
    middle = median(values)
    width = max(values) - min(values)
    return width / abs(middle) if middle else width

"""The result of a benchmark: as JSON, as a table with targets, as a saved file."""

import math
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import apsw
import msgspec

RESULTS = Path(__file__).parent / "results"

_HEADS = ("figure", "median", "spread", "limit", "ratio", "to reach", "reached")


class Report(msgspec.Struct, frozen=True):
    """Medians over rounds. `limit` is the bare machine (or what the figure is held against) in the same rounds."""

    name: str
    rounds: int
    median: dict[str, float]
    spread: dict[str, float]
    limit: dict[str, float]
    ratio: dict[str, float]


class Bar(msgspec.Struct, frozen=True):
    """The target of a figure, or of its ratio to the limit."""

    figure: str
    of: Literal["median", "ratio"]
    sign: Literal[">=", "<=", ">"]
    value: float

    def reached(self, report: Report) -> bool | None:
        """Whether the target is reached; None if it was not measured."""
        figures = report.median if self.of == "median" else report.ratio
        if self.figure not in figures:
            return None
        measured = figures[self.figure]
        match self.sign:
            case ">=":
                return measured >= self.value
            case "<=":
                return measured <= self.value
            case ">":
                return measured > self.value

    def text(self) -> str:
        """The target as it is shown beside the figure."""
        return f"{'ratio ' if self.of == 'ratio' else ''}{self.sign} {shown(self.value)}"


class Saved(msgspec.Struct, frozen=True):
    """A result with the circumstances under which it was measured."""

    name: str
    rounds: int
    median: dict[str, float]
    spread: dict[str, float]
    limit: dict[str, float]
    ratio: dict[str, float]
    reach: dict[str, str]
    reached: dict[str, bool]
    command: str
    python: str
    sqlite: str
    cores: int
    system: str


def to_json(report: Report) -> str:
    """One object on one line."""
    return msgspec.json.encode(report).decode()


def table(report: Report, bars: Sequence[Bar], title: str) -> str:
    """Every figure with its limit, its ratio and its target."""
    rows = [_HEADS, *_rows(report, bars)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    rounds = f"{report.rounds} round{'' if report.rounds == 1 else 's'}"
    return "\n".join([f"{report.name}: {title} ({rounds})", *(_line(row, widths) for row in rows)]) + "\n"


def save(report: Report, bars: Sequence[Bar], name: str) -> Path:
    """Save a result, with how it was measured."""
    reach = {f"{bar.figure}, {bar.of}": bar for bar in bars}
    reached = {label: done for label, bar in reach.items() if (done := bar.reached(report)) is not None}
    saved = Saved(
        **msgspec.structs.asdict(report),
        reach={label: bar.text() for label, bar in reach.items()},
        reached=reached,
        command=" ".join(["python -m bench", *sys.argv[1:]]),
        python=platform.python_version(),
        sqlite=apsw.sqlite_lib_version(),
        cores=os.cpu_count() or 0,
        system=platform.platform(),
    )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=2) + b"\n")
    return path


def shown(value: float) -> str:
    """A number formatted for reading."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1_000 or value == int(value) else f"{value:.3g}"


def _rows(report: Report, bars: Sequence[Bar]) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys([*report.median, *report.ratio, *report.limit]):
        cells = (
            name,
            shown(report.median[name]) if name in report.median else "",
            f"{report.spread[name] * 100:.0f} %" if name in report.spread else "",
            shown(report.limit[name]) if name in report.limit else "",
            f"{report.ratio[name]:.2f}" if name in report.ratio else "",
        )
        verdicts = [(bar.text(), _word(bar.reached(report))) for bar in bars if bar.figure == name]
        for index, verdict in enumerate(verdicts or [("", "")]):
            yield (*(cells if index == 0 else ("",) * len(cells)), *verdict)


def _word(reached: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not measured"}[reached]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if column in {0, 5, 6} else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return ("  " + "  ".join(cells)).rstrip()

"""What a person sees: tables, times, colours. Nothing here reaches a script's `--json`."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tidings.clock import SystemClock
from tidings.domain.errors import TidingsError
from tidings.edges.cli.table import Table
from tidings.edges.cli.times import clock_text, instant, relative

COLOURS = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
TONES = {
    **dict.fromkeys(("scheduled", "published", "released", "replaced", "resumed", "fired", "pending"), "green"),
    **dict.fromkeys(("sent", "delivered", "created", "closed"), "green"),
    **dict.fromkeys(("unchanged", "cancelled", "paused", "in_flight", "ended"), "yellow"),
    **dict.fromkeys(("processing", "expired", "skipped", "half_open"), "yellow"),
    **dict.fromkeys(("already_released", "unknown", "rejected", "missed", "conflict"), "red"),
    **dict.fromkeys(("failed", "bounced", "complained", "open"), "red"),
}
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class ReaderGone(TidingsError):
    """Whoever read our output has seen enough. Not an OSError, so that no one takes it for the network's."""


class Screen:
    """Standard output and error, and the moment that relative times are told from."""

    def __init__(self, now: int | None = None) -> None:
        self._now = now
        self.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def now(self) -> int:
        """The present moment, unless it was fixed."""
        return SystemClock().now() if self._now is None else self._now

    def say(self, text: str) -> None:
        """One line for the reader, at once."""
        try:
            print(text, flush=True)
        except BrokenPipeError:
            raise ReaderGone from None

    def note(self, text: str) -> None:
        """One line beside the output."""
        print(text, file=sys.stderr, flush=True)

    def json(self, document: Any) -> None:
        """One document on one line."""
        self.say(dump(document))

    def paint(self, text: str, colour: str | None) -> str:
        """The text in a colour, where there are colours."""
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.colour and colour else text

    def word(self, word: object, width: int = 0) -> str:
        """An outcome or a state in its colour."""
        return self.paint(f"{shown(word):<{width}}", TONES.get(str(word)))

    def table(
        self,
        heads: Sequence[str],
        rows: Iterable[Sequence[object]],
        heading: bool = True,
        states: bool = True,
        spare: Sequence[str] = (),
    ) -> None:
        """Columns as wide as they need to be; on a terminal they are made to fit its width.

        `states`: in their colours. `spare` are the columns to leave out first if the table is too wide.
        """
        table = Table(heads, [[shown(cell) for cell in row] for row in rows])
        left_out = table.fit(self.width, spare) if self.width is not None else []
        heads, widths = table.heads, table.widths
        if heading:
            self.say(self.paint(_line(heads, widths), "dim"))
        for row in table.rows:
            words = [
                self.word(cell, width) if states and cell in TONES else f"{cell:<{width}}"
                for cell, width in zip(row, widths, strict=True)
            ]
            self.say("  ".join(words).rstrip())
        if left_out:
            self.note(f"left out to fit the terminal: {', '.join(left_out)} (a wider one, a pipe or --json has them)")

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """A list of names and values, those without a value left out."""
        given = [(name, value) for name, value in pairs if value not in (None, "", {}, [])]
        width = max((len(name) for name, _ in given), default=0)
        for name, value in given:
            self.say(f"{self.paint(f'{name:<{width}}', 'dim')}  {self.word(value)}")

    def moment(self, text: object) -> str:
        """A time as the server wrote it: exact, in UTC, and how far from now."""
        at = instant(text)
        return "" if at is None else f"{clock_text(str(text))} ({relative(at - self.now)})"


def dump(document: Any) -> str:
    """A document as one line of JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def shown(value: object) -> str:
    """A value as text that cannot disturb a terminal."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def count_of(count: int, noun: str) -> str:
    """`1 schedule`, `2 schedules`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def late(record: dict[str, Any]) -> str:
    """How late a record left, in milliseconds."""
    due, released = instant(record.get("due_at")), instant(record.get("released_at"))
    if due is None or released is None:
        return ""
    if record.get("bus") == "kafka":
        due -= due % 1_000  # Kafka's times have milliseconds only
    return f"{(released - due) / 1_000:,.1f} ms"

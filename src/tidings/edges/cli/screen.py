"""Output for people: times, tables, colours and progress bars.

Times are formatted here and not by the domain, because that import would double the start time of a command. Output to
a pipe or a file is never shortened.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from tidings.clock import Clock, SystemClock
from tidings.domain.errors import TidingsError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

GAP = 2
COLUMN_CHARS_MIN = 10
TIGHT_CHARS_MIN = 5  # if the table is still too wide
TEXT_CHARS = 24  # what a text in the last column needs before other columns are left out
ELLIPSIS = "…"

_TIME_TEXT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d+)?(Z?)( \([^)]*\))?")

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

WIDTH = 28
REDRAW_US = 100_000
LINE_US = 5_000_000


def instant(text: object) -> int | None:
    """The instant of an RFC 3339 text, in microseconds; None if it is not one."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if moment is None or moment.tzinfo is None else (moment - _EPOCH) // _MICROSECOND


def clock_text(text: str) -> str:
    """`2026-11-20T09:00:00.250000Z` as `2026-11-20 09:00:00.250Z`: without trailing zeros."""
    day, _, rest = text.rstrip("Z").partition("T")
    whole, _, fraction = rest.partition(".")
    fraction = fraction.rstrip("0")
    digits = 3 if len(fraction) <= 3 else 6
    return f"{day} {whole}{'.' + fraction.ljust(digits, '0') if fraction else ''}Z"


def relative(us: int) -> str:
    """How far away: `in 5.0 s`, `3 min ago`."""
    if abs(us) < 1_000:
        return "now"
    return f"in {length(us)}" if us > 0 else f"{length(-us)} ago"


def length(us: int) -> str:
    """`850 ms`, `5.0 s`, `1 h 5 min`, `3 d`: the two largest units."""
    if us < 1_000_000:
        return f"{us // 1_000} ms"
    if us < 60_000_000:
        return f"{us / 1_000_000:.1f} s"
    rest = us // 1_000_000
    words: list[str] = []
    for unit, size in _UNITS:
        amount, rest = divmod(rest, size)
        if amount:
            words.append(f"{amount} {unit}")
        elif words:
            break
    return " ".join(words[:2])


class Table:
    """Heads and rows of text, shortened step by step until they fit."""

    def __init__(self, heads: Sequence[str], rows: list[list[str]]) -> None:
        self.heads = list(heads)
        self.rows = rows

    @property
    def widths(self) -> list[int]:
        """The width of each column."""
        return [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]

    def fit(self, width: int, spare: Sequence[str] = ()) -> list[str]:
        """Shorten the table to the width, as far as possible; returns the columns that were left out.

        In this order: fractions of seconds, relative times, columns without content, the columns in `spare` (while the
        last column has less room than `TEXT_CHARS`), the end of the last column and the middle of other long texts.
        """
        for pattern in (r"\1\3\4", r"\1\3"):
            if self._total > width:
                self.rows = [[_TIME_TEXT.sub(pattern, cell) for cell in row] for row in self.rows]
        if self._total > width:
            self._drop([head for head, *cells in zip(self.heads, *self.rows, strict=True) if not any(cells)])
        left_out: list[str] = []
        for head in spare:
            if head in self.heads and self._least_total > width:
                self._drop([head])
                left_out.append(head)
        for chars_min in (COLUMN_CHARS_MIN, TIGHT_CHARS_MIN):
            self._shorten(width, chars_min)
        return left_out

    @property
    def _total(self) -> int:
        return sum(self.widths) + GAP * (len(self.heads) - 1)

    @property
    def _least_total(self) -> int:
        """The total width with the last column cut to `TEXT_CHARS`, unless it is a time."""
        last = self.widths[-1]
        return self._total if self._has_times(-1) else self._total - last + min(last, TEXT_CHARS)

    def _has_times(self, index: int) -> bool:
        return any(_TIME_TEXT.fullmatch(row[index]) for row in self.rows)

    def _drop(self, heads: Sequence[str]) -> None:
        kept = [index for index, head in enumerate(self.heads) if head not in heads]
        self.heads = [self.heads[index] for index in kept]
        self.rows = [[row[index] for index in kept] for row in self.rows]

    def _shorten(self, width: int, chars_min: int) -> None:
        """Cut the widest columns to one width, so that narrow ones stay complete. Times are not cut."""
        widths = self.widths
        least = [
            size if self._has_times(index) else min(size, max(chars_min, len(self.heads[index])))
            for index, size in enumerate(widths)
        ]
        while sum(widths) + GAP * (len(widths) - 1) > width:
            room = [size - low for size, low in zip(widths, least, strict=True)]
            if not any(room):
                break
            widest = max((index for index, left in enumerate(room) if left), key=lambda index: widths[index])
            widths[widest] -= 1
        last = len(widths) - 1
        self.rows = [
            [_cut(cell, widths[index], in_middle=index != last) for index, cell in enumerate(row)] for row in self.rows
        ]


def _cut(text: str, width: int, *, in_middle: bool) -> str:
    """The text cut to a width. Ids are cut in the middle, because their ends differ."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2 if in_middle else 0
    return text[: width - 1 - end] + ELLIPSIS + (text[-end:] if end else "")


class ReaderGone(TidingsError):
    """The reader of standard output has closed it. Not an OSError, so that it is not taken for a network error."""


class Screen:
    """Standard output and standard error, and the moment that relative times refer to."""

    def __init__(self, now: int | None = None) -> None:
        self._now = now
        self.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def now(self) -> int:
        """The current time, unless it was fixed."""
        return SystemClock().now() if self._now is None else self._now

    def say(self, text: str) -> None:
        """Print one line, without buffering."""
        try:
            print(text, flush=True)
        except BrokenPipeError:
            raise ReaderGone from None

    def note(self, text: str) -> None:
        """Print one line to standard error."""
        print(text, file=sys.stderr, flush=True)

    def json(self, document: Any) -> None:
        """Print a document as one line of JSON."""
        self.say(dump(document))

    def paint(self, text: str, colour: str | None) -> str:
        """The text in a colour, if colours are used."""
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
        """Print a table; on a terminal it is shortened to fit the width.

        `states`: print states in colours. `spare` are the columns to leave out first if the table is too wide.
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
            self.note(f"columns left out to fit: {', '.join(left_out)} (see --json)")

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print names and values; those without a value are left out."""
        given = [(name, value) for name, value in pairs if value not in (None, "", {}, [])]
        width = max((len(name) for name, _ in given), default=0)
        for name, value in given:
            self.say(f"{self.paint(f'{name:<{width}}', 'dim')}  {self.word(value)}")

    def moment(self, text: object) -> str:
        """A time of the server: exact, in UTC, and relative to now."""
        at = instant(text)
        return "" if at is None else f"{clock_text(str(text))} ({relative(at - self.now)})"


def dump(document: Any) -> str:
    """A document as one line of JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def shown(value: object) -> str:
    """A value as text, with control characters escaped so that they cannot affect the terminal."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def count_of(count: int, noun: str) -> str:
    """`1 schedule`, `2 schedules`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def late(record: dict[str, Any]) -> str:
    """How late a record was released, in milliseconds."""
    due, released = instant(record.get("due_at")), instant(record.get("released_at"))
    if due is None or released is None:
        return ""
    if record.get("bus") == "kafka":
        due -= due % 1_000  # Kafka's times have milliseconds only
    return f"{(released - due) / 1_000:,.1f} ms"


class Progress:
    """The progress of an upload: lines answered, and the share of all bytes if the size is known."""

    def __init__(self, total_bytes: int | None, clock: Clock) -> None:
        self._shown = sys.stderr.isatty()
        self._total = total_bytes
        self._clock = clock
        self._sent_bytes = self._sent_lines = self._answered = self._drawn_at = 0
        self._started = clock.elapsed()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn_at:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def sent(self, block: bytes) -> None:
        """Count a block of lines that is being sent."""
        self._sent_bytes += len(block)
        self._sent_lines += block.count(b"\n")

    def answered(self, lines: int) -> None:
        """Set how many lines are answered, and redraw."""
        self._answered = lines
        now = self._clock.elapsed() if self._shown else 0
        if self._shown and now - self._drawn_at >= REDRAW_US:
            self._drawn_at = now
            sys.stderr.write(f"\r{self.line(now)}\x1b[K")
            sys.stderr.flush()

    def line(self, now: int) -> str:
        """The text of the bar."""
        rate = self._answered * 1_000_000 // max(now - self._started, 1)
        counts = f"{self._answered:,} lines  {rate:,}/s"
        if not self._total:
            return counts
        line_bytes = self._sent_bytes / max(self._sent_lines, 1)
        share = min(self._answered * line_bytes / self._total, 1.0)
        return f"[{'#' * int(share * WIDTH):<{WIDTH}}] {share:4.0%}  {counts}"


class ProgressCount:
    """The progress of a count: a bar on a terminal, otherwise a line every few seconds."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._is_bar = sys.stderr.isatty()
        self._started = self._drawn_at = clock.elapsed()

    def update(self, count: int, total: int) -> None:
        """Set how many are done, and redraw."""
        now = self._clock.elapsed()
        if now - self._drawn_at >= (REDRAW_US if self._is_bar else LINE_US):
            self._drawn_at = now
            line = self.line(count, total, now)
            sys.stderr.write(f"\r{line}\x1b[K" if self._is_bar else f"{line}\n")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the bar."""
        if self._is_bar and self._drawn_at > self._started:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def line(self, count: int, total: int, now: int) -> str:
        """The text of the bar or line."""
        rate = count * 1_000_000 // max(now - self._started, 1)
        counts = f"{count:,} of {total:,} {self._what}  {rate:,}/s"
        share = min(count / max(total, 1), 1.0)
        return f"[{'#' * int(share * WIDTH):<{WIDTH}}] {int(share * 100):3}%  {counts}" if self._is_bar else counts

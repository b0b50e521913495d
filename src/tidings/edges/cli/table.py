"""Tables that fit the width of a terminal. Output to a pipe or file is never shortened."""

import re
from collections.abc import Sequence

GAP = 2
COLUMN_CHARS_MIN = 10
ELLIPSIS = "…"

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d+)?(Z?)( \([^)]*\))?")


class Table:
    """Heads and rows of text, shortened step by step until they fit."""

    def __init__(self, heads: Sequence[str], rows: list[list[str]]) -> None:
        self.heads = list(heads)
        self.rows = rows

    @property
    def widths(self) -> list[int]:
        """How wide each column is."""
        return [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]

    def fit(self, width: int, spare: Sequence[str] = ()) -> list[str]:
        """Shorten until it fits that width as far as possible; answers the columns that were left out.

        What is least needed goes first: fractions of seconds, how far away a time is, columns without content, the
        columns in `spare`, and at last the middle of long texts.
        """
        for kept in (r"\1\3\4", r"\1\3"):
            if self._total > width:
                self.rows = [[_TIME.sub(kept, cell) for cell in row] for row in self.rows]
        if self._total > width:
            self._drop([head for head, *cells in zip(self.heads, *self.rows, strict=True) if not any(cells)])
        left_out: list[str] = []
        for head in spare:
            if self._total > width and head in self.heads:
                self._drop([head])
                left_out.append(head)
        self._shorten(width)
        return left_out

    @property
    def _total(self) -> int:
        return sum(self.widths) + GAP * (len(self.heads) - 1)

    def _drop(self, heads: Sequence[str]) -> None:
        kept = [place for place, head in enumerate(self.heads) if head not in heads]
        self.heads = [self.heads[place] for place in kept]
        self.rows = [[row[place] for place in kept] for row in self.rows]

    def _shorten(self, width: int) -> None:
        """Cut the widest columns to one width, so that the narrow ones stay whole. Times are not cut."""
        widths = self.widths
        least = [
            size
            if any(_TIME.fullmatch(row[place]) for row in self.rows)
            else min(size, max(COLUMN_CHARS_MIN, len(self.heads[place])))
            for place, size in enumerate(widths)
        ]
        while sum(widths) + GAP * (len(widths) - 1) > width:
            room = [size - low for size, low in zip(widths, least, strict=True)]
            if not any(room):
                break
            widest = max((place for place, left in enumerate(room) if left), key=lambda place: widths[place])
            widths[widest] -= 1
        last = len(widths) - 1
        self.rows = [
            [_cut(cell, widths[place], in_middle=place != last) for place, cell in enumerate(row)] for row in self.rows
        ]


def _cut(text: str, width: int, *, in_middle: bool) -> str:
    """At most that long. Ids are cut in the middle: their ends tell them apart."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2 if in_middle else 0
    return text[: width - 1 - end] + ELLIPSIS + (text[-end:] if end else "")

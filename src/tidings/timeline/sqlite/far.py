"""What is due later: a table for each day, into which every insert is an append."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import apsw

from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.rows import ARRIVAL_BITS

QUARTER_US = 900 * 1_000_000
DAY_QUARTERS = 96
DAY_US = DAY_QUARTERS * QUARTER_US
QUARTER_LAST = (1 << 63 - ARRIVAL_BITS) - 1  # in 2089; what is due later waits in that bucket

_SQL = queries("far")
_BUCKET = slice(0, 8)  # of a row as a blob (rows.sql)


class Far:
    """The days that have rows. Everything but `row` and `statement` is the writer's."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.days = days(connection)

    def insert(self, rows: Sequence[bytes], accepted: int) -> None:
        """Append encoded rows, each to its day."""
        for day, group in groupby(sorted(rows), _day_of):
            self._open(day)
            self._connection.execute(statement("insert", day), (apsw.carray(tuple(group)), accepted))

    def insert_one(self, place: int, head: tuple[int, ...], tail: tuple[object, ...]) -> None:
        """Put one row at a place; head is stream, due time and the rest of its numbers."""
        self._open(day_of(place))
        values = (*head[:2], place, *head[2:], *tail)
        self._connection.execute(statement("insert_one", day_of(place)), values)

    def delete(self, place: int) -> bool:
        """Take one row away, if it is there."""
        if day_of(place) not in self.days:
            return False
        self._connection.execute(statement("delete", day_of(place)), (place,))
        return int(self._connection.changes()) == 1

    def first(self) -> int | None:
        """The first place that holds a row."""
        for day in sorted(self.days):
            place: int | None = self._connection.execute(statement("first", day)).get
            if place is not None:
                return place
        return None

    def drop(self, day: int) -> None:
        """Forget a day that has no rows."""
        self._connection.execute(statement("drop", day))
        self.days = self.days - {day}

    def row(self, connection: apsw.Connection, place: int) -> Iterator[tuple[Any, ...]]:
        """The row at a place, read through any connection."""
        if day_of(place) not in self.days:
            return
        try:
            yield from connection.execute(statement("row", day_of(place)), (place,))
        except apsw.SQLError:  # the day was dropped since we looked: its rows are near by now
            return

    def _open(self, day: int) -> None:
        if day not in self.days:
            self._connection.execute(statement("create", day))
            self.days = self.days | {day}


def days(connection: apsw.Connection) -> frozenset[int]:
    """The days that have a table."""
    return frozenset(day for (day,) in connection.execute(_SQL["days"]))


def statement(name: str, day: int) -> str:
    """A statement of far.sql for one day."""
    return _SQL[name].replace("{table}", f"far_{day}")


def day_of(place: int) -> int:
    """The day that a place lies in."""
    return (place >> ARRIVAL_BITS) // DAY_QUARTERS


def _day_of(row: bytes) -> int:
    return int(row[_BUCKET]) // DAY_QUARTERS

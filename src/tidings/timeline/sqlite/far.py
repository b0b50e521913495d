"""What is due later: parcels of what came in bulk, and single rows."""

from collections.abc import Iterator
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from tidings.timeline.sqlite import parcels
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.parcels import Heads, Rows
from tidings.timeline.sqlite.rows import ARRIVAL_BITS, ARRIVAL_MASK

QUARTER_US = 900 * 1_000_000
DAY_QUARTERS = 96
DAY_US = DAY_QUARTERS * QUARTER_US
QUARTER_LAST = (1 << 63 - ARRIVAL_BITS) - 1  # in 2089; what is due later waits in that bucket
DAY_LAST = QUARTER_LAST // DAY_QUARTERS
PLACE_LAST = (1 << 63) - 1

SQL = queries("far")


class Far:
    """The writer's way to what is due later, inside its transactions."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def insert(self, rows: Rows, buckets: npt.NDArray[np.int64]) -> None:
        """Put rows that came together into their buckets."""
        if not len(rows):
            return
        packed = tuple(parcels.pack(rows, buckets))
        self._connection.execute(SQL["insert_parcels"], (apsw.carray(packed),))

    def insert_one(self, place: int, head: tuple[int, ...], tail: tuple[object, ...]) -> None:
        """Put one row at a place; head is stream, due time and the rest of its numbers."""
        self._connection.execute(SQL["insert_one"], (*head[:2], place, *head[2:], *tail))

    def delete(self, place: int) -> bool:
        """Take one row away, if it is there."""
        self._connection.execute(SQL["delete"], (place,))
        return int(self._connection.changes()) == 1 or self._delete_from_parcel(place)

    def _delete_from_parcel(self, place: int) -> bool:
        """Mark a row of a parcel as dead; one that is mostly dead is packed anew, so that nothing piles up."""
        found = _in_parcel(self._connection, place)
        if found is None:
            return False
        key, heads, index = found
        with self._connection.blob_open("main", "parcel", "heads", key, True) as blob:
            blob.seek(index * parcels.HEAD.itemsize + parcels.LIVE_BYTE)
            blob.write(b"\0")
        if (int(heads["live"].sum()) - 1) * 2 <= len(heads):
            self._repack(key)
        return True

    def _repack(self, key: int) -> None:
        rows = parcels.unpack(*self._connection.execute(SQL["whole"], (key,)).fetchone())
        if len(rows):
            self._connection.execute(SQL["update_parcel"], (key, rows.heads.tobytes(), b"".join(rows.bodies)))
        else:
            self._connection.execute(SQL["delete_parcel"], (key,))

    def first(self) -> int | None:
        """The first place that holds something."""
        place: int | None = self._connection.execute(SQL["first_from"], (0,)).get
        return place


def quarters(dues: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The quarter of an hour of each due time."""
    return np.minimum(dues // QUARTER_US, QUARTER_LAST)


def place_of(quarter: int) -> int:
    """The first place of a quarter of an hour, or of the last that there is."""
    return min(quarter, QUARTER_LAST) << ARRIVAL_BITS


def row_at(connection: apsw.Connection, place: int) -> Iterator[tuple[Any, ...]]:
    """The row at a place, read through any connection."""
    yield from connection.execute(SQL["row"], (place,))
    found = _in_parcel(connection, place)
    if found is not None:
        key, heads, index = found
        sizes = parcels.sizes(heads)
        start = int(sizes[:index].sum())
        body = connection.execute(SQL["body"], (key, start + 1, int(sizes[index]))).get
        if body is not None:
            yield Rows(heads[index : index + 1], [body]).plain(0)


def _in_parcel(connection: apsw.Connection, place: int) -> tuple[int, Heads, int] | None:
    """The parcel that holds a row which is alive: its place, its heads, and where in it the row stands."""
    found = connection.execute(SQL["parcel"], (place & ~ARRIVAL_MASK, place)).fetchone()
    if found is None:
        return None
    heads = parcels.read_heads(found[1])
    index = int(np.searchsorted(heads["arrival"], place & ARRIVAL_MASK))
    if index == len(heads) or heads["arrival"][index] != place & ARRIVAL_MASK or not heads["live"][index]:
        return None
    return found[0], heads, index

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
        parcel = _parcel(self._connection, place)
        if parcel is None:
            return False
        key, heads_blob, bodies = parcel
        index = _index(heads_blob, place)
        if index is None:
            return False
        with self._connection.blob_open("main", "parcel", "heads", key, True) as blob:
            blob.seek(index * parcels.HEAD.itemsize + parcels.LIVE_BYTE)
            blob.write(b"\0")
        live = parcels.read_heads(heads_blob)["live"]
        if (int(live.sum()) - 1) * 2 <= len(live):
            self._repack(key, bodies)
        return True

    def _repack(self, key: int, bodies: bytes) -> None:
        heads_blob = self._connection.execute("SELECT heads FROM parcel WHERE place = ?", (key,)).get
        rows = parcels.unpack(heads_blob, bodies)
        if len(rows):
            self._connection.execute(SQL["update_parcel"], (key, rows.heads.tobytes(), b"".join(rows.bodies)))
        else:
            self._connection.execute(SQL["delete_parcel"], (key,))

    def first(self) -> int | None:
        """The first place that holds something."""
        place: int | None = self._connection.execute(SQL["first"]).get
        return place


def quarters(dues: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The quarter of an hour of each due time."""
    return np.minimum(dues // QUARTER_US, QUARTER_LAST)


def row_at(connection: apsw.Connection, place: int) -> Iterator[tuple[Any, ...]]:
    """The row at a place, read through any connection."""
    yield from connection.execute(SQL["row"], (place,))
    parcel = _parcel(connection, place)
    if parcel is not None:
        rows = parcels.unpack(parcel[1], parcel[2])
        for index in np.flatnonzero(rows.heads["arrival"] == place & ARRIVAL_MASK).tolist():
            yield rows.plain(index)


def heads_between(connection: apsw.Connection, start: int, end: int) -> Iterator[Heads]:
    """The heads of what is due in a span of time, parcel by parcel."""
    day = min(start // QUARTER_US, QUARTER_LAST) // DAY_QUARTERS * DAY_QUARTERS
    last = min(end // QUARTER_US, QUARTER_LAST) + 1
    span = (day << ARRIVAL_BITS, min(last << ARRIVAL_BITS, PLACE_LAST))
    for _, blob in connection.execute(SQL["heads"], span):
        heads = parcels.read_heads(blob)
        yield heads[(heads["live"] == 1) & (heads["due"] >= start) & (heads["due"] < end)]


def _parcel(connection: apsw.Connection, place: int) -> tuple[int, bytes, bytes] | None:
    bucket = place & ~ARRIVAL_MASK
    found: tuple[int, bytes, bytes] | None = connection.execute(SQL["parcel"], (bucket, place)).fetchone()
    return found


def _index(heads_blob: bytes, place: int) -> int | None:
    """Where in a parcel the row of a place stands, if it is there and alive."""
    heads = parcels.read_heads(heads_blob)
    found = np.flatnonzero((heads["arrival"] == place & ARRIVAL_MASK) & (heads["live"] == 1))
    return int(found[0]) if len(found) else None

"""Packed rows: a batch is bound as one value that SQLite unpacks by itself, and rows due later are stored packed.

Binding row by row would release and take the interpreter lock for each one, which costs milliseconds a row under load;
an array of blobs does it once for a batch. Rows that are due later are stored in parcels: the heads (fixed columns) of
many rows in one blob, and their bodies in another.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from tidings.domain.schedules.command import CONTENT_BYTES
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.pending.next_due import Lookahead

ARRIVAL_BITS = 41
ARRIVAL_MASK = (1 << ARRIVAL_BITS) - 1
QUARTER_US = 900 * 1_000_000
DAY_QUARTERS = 96
DAY_US = DAY_QUARTERS * QUARTER_US
QUARTER_LAST = (1 << 63 - ARRIVAL_BITS) - 1  # in 2089; rows due later are in that bucket too
DAY_LAST = QUARTER_LAST // DAY_QUARTERS
PLACE_LAST = (1 << 63) - 1
NO_DEADLINE = 9_999_999_999_999_999
PARCEL_BYTES_MAX = 32 * 1024
REASONS = ("", "expired", "late_skipped", "late_max")
FEW = 32  # up to so many rows, plain formatting is faster than numpy

_GROUP = 10_000  # numbers are formatted four digits at a time
_DIGITS = np.frombuffer(b"".join(b"%04d" % number for number in range(_GROUP)), dtype=np.uint32)

SQL = queries("far")
_INSERT_NEAR = queries("rows")["insert_near"]

Numbers = npt.NDArray[np.int64]


def digits(count: int, widths: Sequence[int], columns: Sequence[Numbers]) -> list[bytes]:
    """Numbers as decimal text of fixed widths (multiples of four), column after column."""
    if count < FEW:
        form = b"".join(b"%%0%dd" % width for width in widths)
        return [form % row for row in zip(*(column.tolist() for column in columns), strict=True)]
    text = np.empty((count, sum(widths) // 4), dtype=np.uint32)
    end = 0
    for width, column in zip(widths, columns, strict=True):
        start, end = end, end + width // 4
        rest = column
        for group in range(end - 1, start, -1):
            rest, last = np.divmod(rest, _GROUP)
            text[:, group] = _DIGITS[last]
        text[:, start] = _DIGITS[rest]
    joined, size = text.tobytes(), sum(widths)
    return [joined[start : start + size] for start in range(0, len(joined), size)]


HEAD = np.dtype(
    [
        ("arrival", np.int64),
        ("due", np.int64),
        ("deadline", np.int64),
        ("accepted", np.int64),
        ("stream", np.int32),
        ("partition", np.int32),
        ("message_bytes", np.int32),
        ("id_bytes", np.int16),
        ("labels_bytes", np.int16),
        ("reason", np.int8),
        ("live", np.int8),
    ],
    align=True,
)
LIVE_BYTE = dict(HEAD.fields or {})["live"][1]

Heads = npt.NDArray[np.void]
Flags = npt.NDArray[np.bool_]
Plain = tuple[int, int, int, int, int, int, int, int, bytes, str, str | None, bytes]


class Rows:
    """Rows in order of arrival. A body is the concatenation of content, id, labels and message."""

    def __init__(self, heads: Heads, bodies: Sequence[bytes]) -> None:
        self.heads = heads
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.heads)

    def where(self, chosen: Flags) -> "Rows":
        """The chosen rows."""
        return Rows(self.heads[chosen], [self.bodies[index] for index in np.flatnonzero(chosen).tolist()])

    def plain(self, index: int) -> Plain:
        """One row, with the columns of `near` and `far`."""
        head, body = self.heads[index], self.bodies[index]
        id_end = CONTENT_BYTES + int(head["id_bytes"])
        labels_end = id_end + int(head["labels_bytes"])
        return (
            int(head["stream"]),
            int(head["due"]),
            int(head["partition"]),
            int(head["deadline"]),
            int(head["reason"]),
            1,
            1,
            int(head["accepted"]),
            body[:CONTENT_BYTES],
            body[CONTENT_BYTES:id_end].decode(),
            body[id_end:labels_end].decode() or None,
            body[labels_end:],
        )

    def for_near(self) -> list[bytes]:
        """The rows in the format that rows.sql unpacks."""
        heads = self.heads
        sizes = heads["reason"].astype(np.int64) * 1000 + heads["id_bytes"]
        columns = [heads[name].astype(np.int64) for name in ("arrival", "due", "stream", "partition", "deadline")]
        columns += [heads["accepted"], sizes, heads["labels_bytes"].astype(np.int64)]
        numbers = digits(len(heads), (16, 16, 8, 8, 16, 16, 4, 4), columns)
        return [number + body for number, body in zip(numbers, self.bodies, strict=True)]


def row_sizes(heads: Heads) -> npt.NDArray[np.int64]:
    """The length of each body."""
    total: npt.NDArray[np.int64] = heads["message_bytes"].astype(np.int64) + heads["id_bytes"] + heads["labels_bytes"]
    return total + CONTENT_BYTES


def read_heads(blob: bytes) -> Heads:
    """The heads of a parcel, including rows marked as deleted."""
    return np.frombuffer(blob, dtype=HEAD)


def unpack(heads_blob: bytes, bodies: bytes) -> Rows:
    """The rows of a parcel, without those marked as deleted."""
    heads = read_heads(heads_blob)
    ends = np.cumsum(row_sizes(heads)).tolist()
    cut = [bodies[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    rows = Rows(heads, cut)
    alive = heads["live"] == 1
    return rows if alive.all() else rows.where(alive)


def join(parts: list[Rows]) -> Rows:
    """Concatenate the rows of several parcels."""
    if len(parts) == 1:
        return parts[0]
    return Rows(np.concatenate([part.heads for part in parts]), [body for part in parts for body in part.bodies])


def pack(rows: Rows, buckets: npt.NDArray[np.int64]) -> Iterator[bytes]:
    """Pack rows into parcels, one or more for a bucket, in the format that far.sql unpacks."""
    order = np.argsort(buckets, kind="stable")
    sorted_buckets, heads = buckets[order], _in_order(rows.heads, order)
    bodies = [rows.bodies[index] for index in order.tolist()]
    packed, size = heads.tobytes(), HEAD.itemsize
    for start, end in _cuts(sorted_buckets, heads):
        place = int(sorted_buckets[start]) << ARRIVAL_BITS | int(heads["arrival"][start]) & ARRIVAL_MASK
        fixed = b"%020d%08d" % (place, (end - start) * size)
        yield b"".join((fixed, packed[start * size : end * size], *bodies[start:end]))


def _in_order(heads: Heads, order: npt.NDArray[np.intp]) -> Heads:
    """Reorder heads as plain numbers, which is several times as fast as field by field."""
    numbers = np.ascontiguousarray(heads).view(np.int64).reshape(len(heads), -1)
    return numbers[order].view(HEAD).reshape(len(order))


def _cuts(buckets: npt.NDArray[np.int64], heads: Heads) -> Iterator[tuple[int, int]]:
    """Where to cut: one parcel for each bucket, or more if it would be too large; a very large row is alone."""
    starts = np.flatnonzero(np.diff(buckets, prepend=-1)).tolist()
    ends = np.cumsum(row_sizes(heads))
    for start, end in zip(starts, [*starts[1:], len(buckets)], strict=True):
        first = start
        while first < end:
            before = ends[first - 1] if first else 0
            full = int(np.searchsorted(ends, before + PARCEL_BYTES_MAX, side="right"))
            last = min(end, max(full, first + 1))
            yield first, last
            first = last


class NearTable:
    """Writes the rows that are due soon, in `near`, inside the writer's transactions."""

    def __init__(self, connection: apsw.Connection, lookahead: Lookahead) -> None:
        self._connection = connection
        self._lookahead = lookahead

    def insert(self, rows: Rows) -> None:
        """Insert a batch of rows, and offer their due times to the lookahead."""
        if not len(rows):
            return
        self._connection.execute(_INSERT_NEAR, (apsw.carray(tuple(rows.for_near())),))
        streams = rows.heads["stream"]
        for stream in set(streams.tolist()):
            self._lookahead.offer(stream, int(rows.heads["due"][streams == stream].min()))


class FarTable:
    """Writes the rows that are due later, in `far` and `parcel`, inside the writer's transactions."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def insert(self, rows: Rows, buckets: npt.NDArray[np.int64]) -> None:
        """Insert a batch of rows into their buckets."""
        if not len(rows):
            return
        packed = tuple(pack(rows, buckets))
        self._connection.execute(SQL["insert_parcels"], (apsw.carray(packed),))

    def insert_one(self, place: int, head: tuple[int, ...], tail: tuple[object, ...]) -> None:
        """Insert one row at a place; `head` is the stream, the due time and the other numbers."""
        self._connection.execute(SQL["insert_one"], (*head[:2], place, *head[2:], *tail))

    def delete(self, place: int) -> bool:
        """Delete one row; False if there is none."""
        self._connection.execute(SQL["delete"], (place,))
        return int(self._connection.changes()) == 1 or self._delete_from_parcel(place)

    def _delete_from_parcel(self, place: int) -> bool:
        """Mark a row of a parcel as deleted; a parcel with mostly deleted rows is packed again."""
        found = _in_parcel(self._connection, place)
        if found is None:
            return False
        key, heads, index = found
        with self._connection.blob_open("main", "parcel", "heads", key, True) as blob:
            blob.seek(index * HEAD.itemsize + LIVE_BYTE)
            blob.write(b"\0")
        if (int(heads["live"].sum()) - 1) * 2 <= len(heads):
            self._repack(key)
        return True

    def _repack(self, key: int) -> None:
        rows = unpack(*self._connection.execute(SQL["whole"], (key,)).fetchone())
        if len(rows):
            self._connection.execute(SQL["update_parcel"], (key, rows.heads.tobytes(), b"".join(rows.bodies)))
        else:
            self._connection.execute(SQL["delete_parcel"], (key,))


def quarters(dues: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The quarter of an hour of each due time."""
    return np.minimum(dues // QUARTER_US, QUARTER_LAST)


def place_of(quarter: int) -> int:
    """The first place of a quarter of an hour, or of the last bucket."""
    return min(quarter, QUARTER_LAST) << ARRIVAL_BITS


def row_at(connection: apsw.Connection, place: int) -> Iterator[tuple[Any, ...]]:
    """The row at a place, if there is one. Any connection may be used."""
    yield from connection.execute(SQL["row"], (place,))
    found = _in_parcel(connection, place)
    if found is not None:
        key, heads, index = found
        sizes = row_sizes(heads)
        start = int(sizes[:index].sum())
        body = connection.execute(SQL["body"], (key, start + 1, int(sizes[index]))).get
        if body is not None:
            yield Rows(heads[index : index + 1], [body]).plain(0)


def _in_parcel(connection: apsw.Connection, place: int) -> tuple[int, Heads, int] | None:
    """The parcel that has a row: its place, its heads, and the index of the row; None if it is deleted."""
    found = connection.execute(SQL["parcel"], (place & ~ARRIVAL_MASK, place)).fetchone()
    if found is None:
        return None
    heads = read_heads(found[1])
    index = int(np.searchsorted(heads["arrival"], place & ARRIVAL_MASK))
    if index == len(heads) or heads["arrival"][index] != place & ARRIVAL_MASK or not heads["live"][index]:
        return None
    return found[0], heads, index

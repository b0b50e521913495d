"""Parcels: rows that arrived together and fall due in the same bucket, packed into two blobs.

A row of its own for each schedule would cost SQLite more than everything else at intake. A parcel is one row: the
fixed fields of its schedules side by side (heads), and after them what has no fixed size (bodies).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tidings.domain.command import CONTENT_BYTES
from tidings.timeline.sqlite.rows import ARRIVAL_BITS, ARRIVAL_MASK, digits

PARCEL_BYTES_MAX = 32 * 1024

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
    """Schedules in order of arrival. A body is content, id, labels and message, one after the other."""

    def __init__(self, heads: Heads, bodies: Sequence[bytes]) -> None:
        self.heads = heads
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.heads)

    def where(self, chosen: Flags) -> "Rows":
        """Those that are chosen."""
        return Rows(self.heads[chosen], [self.bodies[index] for index in np.flatnonzero(chosen).tolist()])

    def plain(self, index: int) -> Plain:
        """One of them as a row of `near` or `far`."""
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
        """As rows.sql takes them apart."""
        heads = self.heads
        sizes = heads["reason"].astype(np.int64) * 1000 + heads["id_bytes"]
        columns = [heads[name].astype(np.int64) for name in ("arrival", "due", "stream", "partition", "deadline")]
        columns += [heads["accepted"], sizes, heads["labels_bytes"].astype(np.int64)]
        numbers = digits(len(heads), (16, 16, 8, 8, 16, 16, 4, 4), columns)
        return [number + body for number, body in zip(numbers, self.bodies, strict=True)]


def sizes(heads: Heads) -> npt.NDArray[np.int64]:
    """How long each body is."""
    total: npt.NDArray[np.int64] = heads["message_bytes"].astype(np.int64) + heads["id_bytes"] + heads["labels_bytes"]
    return total + CONTENT_BYTES


def read_heads(blob: bytes) -> Heads:
    """The heads of a parcel, the dead ones among them."""
    return np.frombuffer(blob, dtype=HEAD)


def unpack(heads_blob: bytes, bodies: bytes) -> Rows:
    """The schedules of a parcel that still wait."""
    heads = read_heads(heads_blob)
    ends = np.cumsum(sizes(heads)).tolist()
    cut = [bodies[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    rows = Rows(heads, cut)
    alive = heads["live"] == 1
    return rows if alive.all() else rows.where(alive)


def join(parts: list[Rows]) -> Rows:
    """Rows of several parcels, in order of arrival."""
    if len(parts) == 1:
        return parts[0]
    return Rows(np.concatenate([part.heads for part in parts]), [body for part in parts for body in part.bodies])


def pack(rows: Rows, buckets: npt.NDArray[np.int64]) -> Iterator[bytes]:
    """Parcels, one or more for a bucket, as far.sql takes them apart."""
    order = np.argsort(buckets, kind="stable")
    sorted_buckets, heads = buckets[order], _in_order(rows.heads, order)
    bodies = [rows.bodies[index] for index in order.tolist()]
    packed, size = heads.tobytes(), HEAD.itemsize
    for start, end in _cuts(sorted_buckets, heads):
        place = int(sorted_buckets[start]) << ARRIVAL_BITS | int(heads["arrival"][start]) & ARRIVAL_MASK
        fixed = b"%020d%08d" % (place, (end - start) * size)
        yield b"".join((fixed, packed[start * size : end * size], *bodies[start:end]))


def _in_order(heads: Heads, order: npt.NDArray[np.intp]) -> Heads:
    """Taken as plain numbers, which is several times as fast as field by field."""
    numbers = np.ascontiguousarray(heads).view(np.int64).reshape(len(heads), -1)
    return numbers[order].view(HEAD).reshape(len(order))


def _cuts(buckets: npt.NDArray[np.int64], heads: Heads) -> Iterator[tuple[int, int]]:
    """One piece for each bucket, or more if it would be too large; a row that is too large stands alone."""
    starts = np.flatnonzero(np.diff(buckets, prepend=-1)).tolist()
    ends = np.cumsum(sizes(heads)).tolist()
    for start, end in zip(starts, [*starts[1:], len(buckets)], strict=True):
        first, before = start, ends[start - 1] if start else 0
        for index in range(start + 1, end) if ends[end - 1] - before > PARCEL_BYTES_MAX else ():
            if ends[index] - before > PARCEL_BYTES_MAX:
                yield first, index
                first, before = index, ends[index - 1]
        yield first, end

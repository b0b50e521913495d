"""Whole columns as parameters: PostgreSQL's binary arrays, packed here because the driver goes value by value."""

from collections.abc import Sequence
from struct import Struct

import numpy as np
import numpy.typing as npt
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER = Struct(">iiIii")
_LENGTH = Struct(">i").pack
_LENGTHS = [_LENGTH(length) for length in range(2_048)]
_FEW = len(_LENGTHS)
_NULL = _LENGTH(-1)
_INT2, _INT4, _INT8, _TEXT, _BYTEA, _UUID = 21, 23, 20, 25, 17, 2950

Numbers = npt.NDArray[np.int64]


class Array:
    """A column, packed."""

    element = 0

    def __init__(self, data: bytes) -> None:
        self.data = data


class Int2s(Array):
    element = _INT2


class Int4s(Array):
    element = _INT4


class Int8s(Array):
    element = _INT8


class Texts(Array):
    element = _TEXT


class Byteas(Array):
    element = _BYTEA


class Uuids(Array):
    element = _UUID


_OIDS = {Int2s: 1005, Int4s: 1007, Int8s: 1016, Texts: 1009, Byteas: 1001, Uuids: 2951}


def register(context: AdaptContext) -> None:
    """Let a connection take columns as parameters."""
    for kind, oid in _OIDS.items():
        context.adapters.register_dumper(kind, type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": oid}))


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj.data


def int2s(values: Sequence[int] | Numbers) -> Int2s:
    return Int2s(_fixed(values, _INT2, ">i2", 2))


def int4s(values: Sequence[int] | Numbers) -> Int4s:
    return Int4s(_fixed(values, _INT4, ">i4", 4))


def int8s(values: Sequence[int] | Numbers) -> Int8s:
    return Int8s(_fixed(values, _INT8, ">i8", 8))


def maybe_int8s(values: Sequence[int | None]) -> Int8s:
    """Numbers of which some are not there."""
    if values.count(None) == len(values):
        return Int8s(_header(len(values), _INT8, True) + _NULL * len(values))
    packed = [None if value is None else value.to_bytes(8, "big", signed=True) for value in values]
    return Int8s(_varied(packed, _INT8))


def uuids(values: Sequence[bytes]) -> Uuids:
    """Sixteen bytes each."""
    if not values:
        return Uuids(_varied([], _UUID))
    return Uuids(_header(len(values), _UUID) + _LENGTHS[16] + _LENGTHS[16].join(values))


def byteas(values: Sequence[bytes | None]) -> Byteas:
    return Byteas(_varied(values, _BYTEA))


def texts(values: Sequence[bytes | None]) -> Texts:
    """Texts that are encoded already."""
    return Texts(_varied(values, _TEXT))


def maybe_texts(values: Sequence[str | None]) -> Texts:
    if values.count(None) == len(values):
        return Texts(_header(len(values), _TEXT, True) + _NULL * len(values))
    return texts([None if value is None else value.encode() for value in values])


def _header(count: int, element: int, nulls: bool = False) -> bytes:
    if count == 0:
        return _HEADER.pack(0, 0, element, 0, 0)[:12]
    return _HEADER.pack(1, int(nulls), element, count, 1)


def _fixed(values: Sequence[int] | Numbers, element: int, form: str, size: int) -> bytes:
    rows = np.empty(len(values), dtype=[("length", ">i4"), ("value", form)])
    rows["length"], rows["value"] = size, values
    return _header(len(values), element) + rows.tobytes()


def _varied(values: Sequence[bytes | None], element: int) -> bytes:
    count = len(values)
    parts = [b""] * (2 * count + 1)
    nulls = None in values
    parts[0] = _header(count, element, nulls)
    if nulls:
        parts[1::2] = [_NULL if value is None else _LENGTH(len(value)) for value in values]
        parts[2::2] = [value or b"" for value in values]
    else:
        present: Sequence[bytes] = values  # type: ignore[assignment]
        parts[1::2] = [_LENGTHS[size] if size < _FEW else _LENGTH(size) for size in map(len, present)]
        parts[2::2] = present
    return b"".join(parts)

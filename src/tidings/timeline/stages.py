"""Reading a store stage by stage: each stage has an order of its own, and a place in it is a short text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from tidings.domain.terms import decode_terms
from tidings.domain.when import is_once
from tidings.timeline.carrying import LOAD_BYTES_MAX, LOAD_ROWS, Kind

Place = tuple[Any, ...]
Item = TypeVar("Item")

_decode = msgspec.json.Decoder(tuple[str, list[int | str]]).decode


def encode_place(stage: str, place: Place) -> str:
    """A place in a stage as text."""
    return msgspec.json.encode((stage, list(place))).decode()


def decode_place(after: str | None, first: str) -> tuple[str, Place]:
    """The stage and the place that a text stands for; the beginning of the first stage if there is none."""
    if after is None:
        return first, ()
    stage, place = _decode(after)
    return stage, tuple(place)


def following(stages: Sequence[str], stage: str) -> str | None:
    """The stage after one, None after the last."""
    index = stages.index(stage) + 1
    return stages[index] if index < len(stages) else None


def bounded(rows: Iterable[Item], size_of: Callable[[Item], int] | None = None) -> Iterator[Item]:
    """As many as one load holds, and at least one; rows are small unless it is said how large they are."""
    size = count = 0
    for row in rows:
        yield row
        count, size = count + 1, size + (size_of(row) if size_of else 0)
        if is_full(count, size):
            return


def counted(totals: Sequence[Any], policies: Iterable[Sequence[Any]]) -> dict[Kind, int]:
    """How much there is of each kind, by a store's totals and the terms of its standing schedules that pend."""
    positions, keys, receipts, documents, paused, finished, pending = totals
    recurring = sum(not is_once(decode_terms(terms).when) for (terms,) in policies)
    return {
        "positions": positions,
        "keys": keys,
        "receipts": receipts,
        "documents": documents,
        "one_shots": pending - recurring,
        "recurring": recurring,
        "paused": paused,
        "finished": finished,
    }


def is_full(count: int, size: int) -> bool:
    """Whether a load takes no more."""
    return count >= LOAD_ROWS or size >= LOAD_BYTES_MAX

"""What holds for documents in every cabinet: what is refused before anything is done, and how tags are written."""

from collections.abc import Sequence

import msgspec

from tidings.ports import NAME_BYTES_MAX, Change, Document, Place, Put, Unchanged

NUMBER_MIN = -(1 << 63)
NUMBER_MAX = (1 << 63) - 1
FIRST: Place = (NUMBER_MIN, "")  # before every document: no order is as low
LAST: Place = (NUMBER_MAX, "")  # behind every document: no order is as high

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, ...]).decode


def check(groups: Sequence[Sequence[Change]]) -> None:
    """`ValueError` if something in here was meant otherwise than it could be done."""
    for group in groups:
        if len(group) > 1 and len({change.key for change in group}) < len(group):
            raise ValueError(f"a key is in a group twice: {[change.key for change in group]}")
        for change in group:
            if isinstance(change, Put):
                _check(change)
            elif isinstance(change, Unchanged) and change.expected < 1:
                raise ValueError(f"what is to be left unchanged must be there: {change.key}")


def _check(put: Put) -> None:
    length = len(put.key.name.encode())  # which refuses what is no text
    if length > NAME_BYTES_MAX:
        raise ValueError(f"a document's name may have {NAME_BYTES_MAX:,} bytes, and this one has {length:,}")
    if put.tags:
        "".join(put.tags).encode()
        if len(set(put.tags)) < len(put.tags):
            raise ValueError(f"a tag is there twice: {put.tags}")
    if not NUMBER_MIN < put.order < NUMBER_MAX:
        raise ValueError(f"the order of a document has 64 bits at most: {put.order}")
    if put.until is not None and not NUMBER_MIN <= put.until <= NUMBER_MAX:
        raise ValueError(f"the end of a document has 64 bits at most: {put.until}")


def brought(document: Document) -> Put:
    """A document of another cabinet, to be put where there is none of its name."""
    return Put(document.key, document.body, 0, document.tags, document.order, document.until)


def is_same(document: Document, known: Document | None) -> bool:
    """Whether two are alike but for their versions, which are those of their cabinets."""
    return known is not None and brought(document) == brought(known)


def encode_tags(tags: tuple[str, ...]) -> bytes:
    """The tags of a document as they are kept with it."""
    return _encode(tags) if tags else b""


def decode_tags(packed: bytes) -> tuple[str, ...]:
    """The same, read back."""
    return _decode(packed) if packed else ()

"""What a record carries, and its packed form: the bytes that travel from intake to the bus untouched."""

import msgspec

Headers = tuple[tuple[str, bytes | None], ...]


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Key, value and headers of a record. Headers keep their order, repeats and nulls."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)

pack = _encoder.encode
unpack = _decoder.decode


# The place of the request that a message came with, "partition/offset". It is part of the stored message and is left
# out when that leaves; a tombstone has it, by which Tidings knows its own.
ORIGIN = "tidings-origin"

# In the place of a header's value: the due time in whole seconds since the epoch, written there at the release.
DUE_SECONDS = b"\0tidings due in seconds\0"

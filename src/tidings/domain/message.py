"""Messages (key, value and headers), and their packed form, which goes from intake to the bus unchanged."""

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


# A header of the stored message: "partition/offset" of the request it came with. It is removed at the release, except
# from tombstones, by which Tidings recognizes its own.
ORIGIN = "tidings-origin"

# A placeholder for the value of a header: it is replaced at the release by the due time in seconds since the epoch.
DUE_SECONDS = b"\0tidings due in seconds\0"

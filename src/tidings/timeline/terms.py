"""The terms of a standing schedule, and how stores keep them."""

import msgspec

from tidings.domain.lateness import Lateness
from tidings.domain.when import When


class Terms(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """When a standing schedule falls due, and how late it may be."""

    when: When
    lateness: Lateness
    jitter_us: int


encode_terms = msgspec.msgpack.Encoder().encode
decode_terms = msgspec.msgpack.Decoder(Terms).decode

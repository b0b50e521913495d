"""Spreading what would all fall due in the same instant."""

from hashlib import blake2b

_DIGEST_BYTES = 8


def jittered(due: int, window_us: int, identity: bytes) -> int:
    """The due time moved later by a share of the window that is stable for an identity; never earlier."""
    assert window_us >= 0, "a jitter window cannot be negative"
    share = int.from_bytes(blake2b(identity, digest_size=_DIGEST_BYTES).digest(), "big")
    return due + (share * (window_us + 1) >> 8 * _DIGEST_BYTES)

"""A Bloom filter over whole arrays: says for a thousand hashes at once which of them a run may hold."""

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

BITS_PER_ENTRY = 12
WORDS_MIN = 64
_ONE = np.uint64(1)
_SIX_BITS = np.uint64(63)
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)  # odd: spreads a hash anew for the second word


class Probes:
    """What is the same for every filter: which bits a hash sets, and the numbers that choose its two words."""

    def __init__(self, hashes: Hashes) -> None:
        first = hashes.view(np.uint64)
        second = first * _SPREAD
        self.places = first >> np.uint64(18), second >> np.uint64(18)
        self.masks = _mask(first), _mask(second)


class Filter:
    """Two words for each entry and three bits in each: about one false answer in a thousand."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self._last = np.uint64(len(words) - 1)

    @classmethod
    def sized(cls, entries: int) -> "Filter":
        """An empty filter for that many entries; its length is a power of two."""
        words = max(WORDS_MIN, entries * BITS_PER_ENTRY // 64)
        return cls(np.zeros(1 << (words - 1).bit_length(), dtype=np.uint64))

    def add(self, hashes: Hashes) -> None:
        """Enter hashes."""
        probes = Probes(hashes)
        for place, mask in zip(probes.places, probes.masks, strict=True):
            np.bitwise_or.at(self.words, place & self._last, mask)

    def test(self, probes: Probes) -> npt.NDArray[np.int64]:
        """The indexes of the hashes that may have been entered; those that were are always among them."""
        mask = probes.masks[0]
        found = np.flatnonzero((self.words[probes.places[0] & self._last] & mask) == mask)
        if len(found) == 0:
            return found
        mask = probes.masks[1][found]
        held: npt.NDArray[np.int64] = found[(self.words[probes.places[1][found] & self._last] & mask) == mask]
        return held


def _mask(keys: Words) -> Words:
    mask = _ONE << (keys & _SIX_BITS)
    mask |= _ONE << ((keys >> np.uint64(6)) & _SIX_BITS)
    mask |= _ONE << ((keys >> np.uint64(12)) & _SIX_BITS)
    return mask

"""The filter has no false negatives and few false positives."""

import numpy as np
import pytest

from tidings.timeline.sqlite.id_map import Filter, Probes


@pytest.mark.parametrize("entries", [1, 100, 32_768])
def test_every_entered_key_is_found(entries: int) -> None:
    hashes = np.random.default_rng(entries).integers(0, 2**63 - 1, entries, dtype=np.int64)
    held = Filter.sized(entries)
    held.add(hashes)
    assert held.test(Probes(hashes)).tolist() == list(range(entries))


def test_false_positives_are_rare() -> None:
    random = np.random.default_rng(7)
    held = Filter.sized(10_000)
    held.add(random.integers(0, 2**63 - 1, 10_000, dtype=np.int64))
    others = random.integers(0, 2**63 - 1, 100_000, dtype=np.int64)
    assert len(held.test(Probes(others))) < 50

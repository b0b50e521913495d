"""Seeded simulations, checked against the model; `python -m tests.sim --seeds 10000` runs more."""

import pytest

from tests.sim.simulated_node import Kind, Tally
from tests.sim.simulation import simulate

# seeds in each part, and in how many parts: a seed on SQLite takes about a tenth of a second
PARTS: list[tuple[Kind, int, int]] = [("memory", 120, 2), ("sqlite", 12, 4), ("power", 8, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first", "seeds"),
    [
        pytest.param(kind, part * seeds, seeds, id=f"{kind}-{part * seeds}", marks=[pytest.mark.slow] if part else [])
        for kind, seeds, parts in PARTS
        for part in range(parts)
    ],
)
def test_every_promise_holds(kind: Kind, first: int, seeds: int) -> None:
    total = Tally()
    for seed in range(first, first + seeds):
        total.add(simulate(kind, seed))
    assert total.seeds == seeds
    assert min(total.commands, total.released, total.missed, total.steps) > 0
    if kind != "memory":
        assert min(total.crashes, total.zombies, total.points.total()) > 0

"""Random sequences of commands are answered alike by every store: see `sequences`."""

import asyncio

import pytest

from tests.contract.sequences import run


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_sequences_have_the_same_outcomes_on_every_store(part: int) -> None:
    tally = asyncio.run(run(250 * part, 250))
    print(tally)
    assert tally.sequences == 250


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_random_sequences_have_the_same_outcomes_on_every_store_in_many_runs(part: int) -> None:
    tally = asyncio.run(run(1_000 + 500 * part, 500))
    print(tally)
    assert tally.sequences == 500

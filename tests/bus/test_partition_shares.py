"""Fair shares of a page: no partition waits forever behind a fuller one."""

from hypothesis import given
from hypothesis import strategies as some

from tests.bus.simulation import TENANT, TOPIC, FakeLog, simulated
from tidings.bus.log_reader import LogReader, partition_shares


@given(
    some.dictionaries(some.integers(0, 7), some.integers(1, 50), max_size=8),
    some.integers(1, 100),
    some.integers(0, 1_000),
)
def test_shares_are_even_and_use_the_whole_limit(waiting: dict[int, int], limit: int, turn: int) -> None:
    shares = partition_shares(waiting, limit, turn)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    for partition, share in shares.items():
        assert 0 < share <= waiting[partition]
    most = max(shares.values(), default=0)
    unserved = [shares.get(partition, 0) for partition in waiting if shares.get(partition, 0) < waiting[partition]]
    assert all(share >= most - 1 for share in unserved)


@simulated
async def test_with_a_limit_of_one_every_partition_has_its_turn() -> None:
    log = FakeLog()
    for partition in range(4):
        log.append(partition, 100)
    following = LogReader(log)
    cursor, records = None, []
    for _ in range(40):
        batch, cursor = await following.read(TENANT, TOPIC, cursor, 1, 0)
        records += batch
    assert sorted(record.partition for record in records) == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 10

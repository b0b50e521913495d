"""Partition assignment: each partition has one reader, shares are even, and a node that is not sure reads nothing."""

from collections import Counter
from uuid import UUID

import msgspec
import pytest

from tidings.domain.fleet import Report
from tidings.timeline.postgres.fleet import PartitionAssignment

NODES = [UUID(int=number) for number in range(5)]
UNTIL = 1_000


def shared(nodes: list[UUID], now: int = 0) -> list[PartitionAssignment]:
    found = [PartitionAssignment(node, lambda: now) for node in nodes]
    for sharing in found:
        sharing.update(nodes, UNTIL)
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("partitions", [1, 4, 12])
def test_each_partition_has_one_reader_and_shares_are_even(count: int, partitions: int) -> None:
    nodes = shared(NODES[:count])
    for number in range(50):
        readers = [
            [index for index, node in enumerate(nodes) if node.reads(f"topic-{number}", partition)]
            for partition in range(partitions)
        ]
        assert all(len(each) == 1 for each in readers)
        counts = Counter(index for (index,) in readers)
        assert max(counts.values()) - min(counts[index] for index in range(count)) <= 1


def test_topics_of_one_partition_are_shared_too() -> None:
    nodes = shared(NODES[:2])
    counts = [sum(node.reads(f"topic-{number}", 0) for number in range(400)) for node in nodes]
    assert sum(counts) == 400
    assert min(counts) > 140


def test_a_node_that_is_not_a_member_or_not_sure_of_it_reads_nothing() -> None:
    unlisted = PartitionAssignment(NODES[4], lambda: 0)
    assert not unlisted.reads("topic", 0), "it knows no members"
    unlisted.update(NODES[:2], UNTIL)
    assert not any(unlisted.reads("topic", partition) for partition in range(10))
    (late,) = shared(NODES[:1], now=UNTIL)
    assert not late.reads("topic", 0), "others may think that it is dead"


def test_a_node_that_learns_of_another_gives_up_its_share() -> None:
    first, second = shared(NODES[:2])
    first.update(NODES[:1], UNTIL)
    assert all(first.reads("topic", partition) for partition in range(10))
    first.update(NODES[:2], UNTIL)
    assert all(first.reads("topic", partition) != second.reads("topic", partition) for partition in range(10))


def test_a_report_says_to_which_channels_a_node_delivers() -> None:
    some = Report(channels=("email", "sms"))
    assert [some.delivers(channel) for channel in ("email", "push")] == [True, False]
    assert not Report(roles=("api", "dispatch")).delivers("email")
    older = msgspec.json.decode(b'{"name": "north", "roles": ["deliver"]}', type=Report)
    assert older.delivers("push"), "a node of an earlier version delivers to all"

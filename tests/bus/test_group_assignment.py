"""Assignment of partitions: complete, even, and with as few moves as possible."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tidings.bus.group_assignment import GroupAssignment, PartitionHolding, share
from tidings.domain.errors import NotAMember

SESSION_US = 4_000_000
names = some.sampled_from("abcdef")


@given(
    some.integers(1, 12),
    some.lists(names, unique=True, min_size=1),
    some.dictionaries(some.integers(0, 11), names),
)
def test_assignments_are_complete_and_even(partitions: int, members: list[str], owners: dict[int, str]) -> None:
    shared = share(range(partitions), members, owners)
    assert sorted(shared) == list(range(partitions))
    counts = [list(shared.values()).count(name) for name in members]
    assert sum(counts) == partitions
    assert max(counts) - min(counts) <= 1


@given(
    some.integers(1, 5),
    some.lists(some.sampled_from("abc"), unique=True, min_size=1),
    some.dictionaries(some.integers(0, 4), some.sampled_from("abc")),
)
def test_as_few_partitions_move_as_possible(partitions: int, members: list[str], owners: dict[int, str]) -> None:
    def kept(choice: tuple[str, ...]) -> int:
        return sum(owners.get(partition) == name for partition, name in enumerate(choice))

    def is_even(choice: tuple[str, ...]) -> bool:
        counts = [choice.count(name) for name in members]
        return max(counts) - min(counts) <= 1

    shared = share(range(partitions), members, owners)
    best = max(kept(choice) for choice in product(members, repeat=partitions) if is_even(choice))
    assert kept(tuple(shared[partition] for partition in range(partitions))) == best


def test_no_members_get_no_partitions() -> None:
    assert share(range(4), [], {0: "a"}) == {}


@pytest.fixture
def roster() -> GroupAssignment:
    return GroupAssignment(4, SESSION_US, lambda former: former + 1)


def test_a_partition_without_uncommitted_records_moves_at_once(roster: GroupAssignment) -> None:
    first = roster.join("a", 0)
    assert roster.readable(first) == [0, 1, 2, 3]
    second = roster.join("b", 0)
    assert (roster.readable(first), roster.readable(second)) == ([0, 1], [2, 3])


def test_a_partition_with_uncommitted_records_stays_until_the_commit(roster: GroupAssignment) -> None:
    first = roster.join("a", 0)
    first.holdings[2] = PartitionHolding(0, 0, 10)
    second = roster.join("b", 0)
    assert second.partitions == (2, 3)
    assert roster.readable(second) == [3]
    assert roster.holds(first, 2)
    roster.committed(first, {2: 9})
    assert roster.holds(first, 2)
    roster.committed(first, {2: 10})
    assert roster.readable(second) == [2, 3]
    assert not roster.holds(first, 2)


def test_an_uncommitted_partition_moves_after_one_session(roster: GroupAssignment) -> None:
    first = roster.join("a", 0)
    first.holdings[2] = PartitionHolding(0, 0, 10)
    second = roster.join("b", 1_000)
    for now in (1_000, SESSION_US):
        roster.touch("a", now - 1)
        roster.touch("b", now - 1)
        roster.sweep(now)
        assert roster.readable(second) == [3]
    assert roster.next_event() == SESSION_US + 1_000
    roster.sweep(SESSION_US + 1_000)
    assert roster.readable(second) == [2, 3]
    assert list(roster.members) == ["a", "b"]


def test_setting_the_clock_back_lengthens_no_session(roster: GroupAssignment) -> None:
    first = roster.join("a", 3_600 * SESSION_US)
    first.holdings[2] = PartitionHolding(0, 0, 10)
    second = roster.join("b", 3_600 * SESSION_US)
    roster.sweep(0)
    assert list(roster.members) == ["a", "b"]
    assert roster.next_event() == SESSION_US
    roster.touch("b", 1)
    roster.sweep(SESSION_US)
    assert list(roster.members) == ["b"]
    assert roster.readable(second) == [0, 1, 2, 3]


def test_a_partition_assigned_back_before_it_moved_keeps_its_position(roster: GroupAssignment) -> None:
    first = roster.join("a", 0)
    first.holdings[2] = PartitionHolding(0, 0, 10)
    roster.join("b", 0)
    roster.leave("b", 0)
    assert roster.readable(first) == [0, 1, 2, 3]
    assert first.holdings[2].position == 10
    roster.sweep(SESSION_US - 1)
    assert first.holdings[2].position == 10


def test_a_member_that_joins_again_keeps_its_partitions_but_no_positions(roster: GroupAssignment) -> None:
    former = roster.join("a", 0)
    former.holdings[0] = PartitionHolding(0, 0, 10)
    former.holdings[2] = PartitionHolding(0, 0, 10)
    other = roster.join("b", 0)
    changed = other.changed
    member = roster.join("a", 0)
    assert member.partitions == (0, 1)
    assert (former.holdings, member.holdings) == ({}, {})
    assert roster.readable(other) == [2, 3]
    assert other.changed == changed
    with pytest.raises(NotAMember, match="not in generation"):
        roster.present("a", former.joined)


def test_unaffected_members_keep_their_generation(roster: GroupAssignment) -> None:
    members = [roster.join(name, 0) for name in "abcd"]
    changed = [member.changed for member in members]
    idle = roster.join("e", 0)
    assert idle.partitions == ()
    roster.leave("e", 0)
    assert [member.changed for member in members] == changed

"""Group commit: as many concurrent transactions as the store allows; later commands are committed together."""

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from tests.contract.factories import NOW, add
from tests.dispatch.event_loop import turns
from tidings.domain.schedules.command import Command, Outcome
from tidings.intake.intake import Intake
from tidings.ports.tables import BulkGroups, ChangeGroup, GroupResult
from tidings.testing import SimulatedClock


class Slow:
    """A store whose transactions end when the test says so."""

    def __init__(self, intakes_max: int) -> None:
        self.intakes_max = intakes_max
        self.transactions: list[list[str]] = []
        self.ends: list[asyncio.Future[None]] = []

    def apply(self, commands: Sequence[Command], now: int) -> Awaitable[list[Outcome]]:
        names = [getattr(command, "id", None) or "" for command in commands]
        self.transactions.append(names)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ends.append(end)

        async def finish() -> list[Outcome]:
            await end
            return [Outcome(name, "scheduled") for name in names]

        return asyncio.ensure_future(finish())


@pytest.mark.parametrize(("intakes_max", "groups"), [(1, [["0"], ["1", "2", "3"]]), (3, [["0"], ["1"], ["2"], ["3"]])])
async def test_commands_that_arrive_while_all_transactions_are_busy_are_committed_together(
    intakes_max: int, groups: list[list[str]]
) -> None:
    store = Slow(intakes_max)
    intake = Intake(store, store, SimulatedClock(NOW), lambda fact: None, lambda: None)  # type: ignore[arg-type]
    waiting = [asyncio.ensure_future(intake.submit([add(str(number))])) for number in range(4)]
    await turns(3)
    assert store.transactions == groups[:intakes_max]
    while not all(task.done() for task in waiting):
        for end in store.ends:
            if not end.done():
                end.set_result(None)
        await turns(3)
    assert store.transactions == groups
    assert [task.result()[0].id for task in waiting] == ["0", "1", "2", "3"]


class SlowTables(Slow):
    """The same for groups; it keeps them as they were given to it."""

    def __init__(self) -> None:
        super().__init__(intakes_max=1)
        self.given: list[Sequence[ChangeGroup]] = []
        self.urgent: list[bool] = []

    def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> Awaitable[list[GroupResult]]:
        self.given.append(groups)
        self.urgent.append(urgent)
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ends.append(end)

        async def finish() -> list[GroupResult]:
            await end
            return [GroupResult(1)] * len(groups)

        return asyncio.ensure_future(finish())


async def test_groups_that_are_written_in_bulk_are_committed_apart_from_others() -> None:
    store = SlowTables()
    intake = Intake(store, store, SimulatedClock(NOW), lambda fact: None, lambda: None)  # type: ignore[arg-type]
    bulk = [BulkGroups(table="a", required_table="b", own_column=0, tenant="acme") for _ in range(2)]
    single = ChangeGroup(())
    calls = [intake.commit(groups) for groups in ([single], *bulk, [single], [single])]
    await turns(3)
    while not all(call.done() for call in calls):
        for end in store.ends:
            if not end.done():
                end.set_result(None)
        await turns(3)
    assert [type(groups) for groups in store.given] == [list, BulkGroups, BulkGroups, list]
    assert [len(groups) for groups in store.given] == [1, 0, 0, 2]
    assert [len(call.result()) for call in calls] == [1, 0, 0, 1, 1]


async def test_urgent_groups_do_not_wait_for_others_that_are_being_committed() -> None:
    store = SlowTables()
    intake = Intake(store, store, SimulatedClock(NOW), lambda fact: None, lambda: None)  # type: ignore[arg-type]
    single = ChangeGroup(())
    calls = [intake.commit([single]), intake.commit([single, single]), intake.commit_urgent([single])]
    await turns(3)
    assert [len(groups) for groups in store.given] == [1, 1], "the second one waits, the urgent one does not"
    assert store.urgent == [False, True]
    while not all(call.done() for call in calls):
        for end in store.ends:
            if not end.done():
                end.set_result(None)
        await turns(3)
    assert [len(call.result()) for call in calls] == [1, 2, 1]

"""Group commit: as many concurrent transactions as the store allows; later commands are committed together."""

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from tests.contract.factories import NOW, add
from tests.dispatch.event_loop import turns
from tidings.domain.schedules.command import Command, Outcome
from tidings.intake.intake import Intake
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
    intake = Intake(store, SimulatedClock(NOW), lambda fact: None, lambda: None)  # type: ignore[arg-type]
    waiting = [asyncio.create_task(intake.submit([add(str(number))])) for number in range(4)]
    await turns(3)
    assert store.transactions == groups[:intakes_max]
    while not all(task.done() for task in waiting):
        for end in store.ends:
            if not end.done():
                end.set_result(None)
        await turns(3)
    assert store.transactions == groups
    assert [task.result()[0].id for task in waiting] == ["0", "1", "2", "3"]

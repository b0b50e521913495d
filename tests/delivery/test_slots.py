"""Slots and gatherings: who goes together, and whose turn it is."""

import asyncio
from collections.abc import Sequence

import pytest

from tidings.delivery.gathering import Gathering
from tidings.delivery.slots import Slots
from tidings.domain.errors import StoreError
from tidings.testing import eventually


async def others() -> None:
    """Let all the others do what they can do now."""
    for _ in range(5):
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


class Crowd:
    """Those who hold a slot until they are told to leave."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.inside: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, tenant: str = "a", *, high: bool = False, count: int = 1) -> None:
        self._leave[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._hold(name, tenant, high, count))
        await others()

    async def go(self, name: str) -> None:
        self._leave[name].set()
        await self._tasks[name]
        await others()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait([self._tasks[name]])

    async def _hold(self, name: str, tenant: str, high: bool, count: int) -> None:
        taken = await self._slots.take(tenant, high=high, count=count)
        self.inside.append(name)
        await self._leave[name].wait()
        self.inside.remove(name)
        self._slots.leave(tenant, high=high, count=taken)


async def test_some_are_for_high_priority_alone() -> None:
    crowd = Crowd(Slots(4, 2))
    for name in ("1", "2", "3"):
        await crowd.come(name, tenant=name)
    assert crowd.inside == ["1", "2"]
    for name in ("h1", "h2", "h3"):
        await crowd.come(name, tenant=name, high=True)
    assert crowd.inside == ["1", "2", "h1", "h2"]
    await crowd.go("1")
    assert crowd.inside == ["2", "h1", "h2", "h3"], "high goes first, and takes an open one too"
    await crowd.go("h1")
    assert crowd.inside == ["2", "h2", "h3", "3"]


async def test_tenants_take_turns() -> None:
    crowd = Crowd(Slots(3, 1))
    for number in range(5):
        await crowd.come(f"a{number}", "a")
    assert crowd.inside == ["a0"], "one is left for another tenant"
    for number in range(2):
        await crowd.come(f"b{number}", "b")
    assert crowd.inside == ["a0", "b0"]
    await crowd.go("a0")
    await crowd.go("b0")
    assert sorted(crowd.inside) == ["a1", "b1"]


async def test_a_bulk_of_high_priority_leaves_room_for_another_tenants_messages() -> None:
    crowd = Crowd(Slots(16, 4))
    for number in range(40):
        await crowd.come(f"high-{number}", "a", high=True)
        await crowd.come(f"low-{number}", "a")
    assert len(crowd.inside) == 15
    await crowd.come("normal", "b")
    assert crowd.inside[-1] == "normal", "though nobody has left"
    await crowd.go("normal")
    await crowd.come("urgent", "b", high=True)
    assert crowd.inside[-1] == "urgent"


async def test_tenants_take_turns_with_high_priority_too() -> None:
    crowd = Crowd(Slots(4, 1))
    for number in range(20):
        await crowd.come(f"a{number}", "a", high=True)
    assert crowd.inside == ["a0", "a1"], "one is left for another tenant, one for what has no high priority"
    for name in ("b0", "b1", "b2"):
        await crowd.come(name, "b", high=True)
    assert crowd.inside == ["a0", "a1", "b0"]
    await crowd.go("a0")
    assert crowd.inside == ["a1", "b0", "a2"]
    await crowd.go("a1")
    assert crowd.inside == ["b0", "a2", "b1"]


@pytest.mark.parametrize(("size", "reserved"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (8, 2)])
@pytest.mark.parametrize(("high", "count"), [(False, 1), (False, 3), (True, 1), (True, 3)])
@pytest.mark.parametrize("tenant", ["a", "b"])
async def test_nobody_waits_for_ever(size: int, reserved: int, high: bool, count: int, tenant: str) -> None:
    """However few there are, and though of a bulk, of its own tenant or of others, there is always one more."""
    slots, order = Slots(size, reserved), list[str]()

    async def hold(name: str, tenant: str, high: bool, count: int = 1) -> None:
        taken = await slots.take(tenant, high=high, count=count)
        order.append(name)
        await others()
        slots.leave(tenant, high=high, count=taken)

    bulk = [hold("bulk", each, urgent) for _ in range(150) for each in "ac" for urgent in (True, False)]
    waiting = [asyncio.create_task(each) for each in bulk[:300]]
    await others()
    waiting.append(asyncio.create_task(hold("one", tenant, high, count)))
    waiting += [asyncio.create_task(each) for each in bulk[300:]]
    await asyncio.gather(*waiting)
    assert slots.in_use == 0
    assert tenant == "a" or order.index("one") < 80, "it stands behind nobody's bulk but its own"


async def test_who_gives_up_waiting_takes_nothing_away() -> None:
    slots = Slots(2, 1)
    crowd = Crowd(slots)
    await crowd.come("1")
    await crowd.come("2")
    await crowd.come("3")
    await crowd.give_up("2")
    await crowd.go("1")
    assert crowd.inside == ["3"]
    await crowd.go("3")
    assert slots.in_use == 0


async def test_what_is_asked_meanwhile_goes_together_and_what_is_urgent_at_once() -> None:
    calls: list[list[int]] = []
    gate = asyncio.Event()

    async def call(items: Sequence[int]) -> list[int]:
        calls.append(list(items))
        await gate.wait()
        return [item * 2 for item in items]

    gathering: Gathering[int, int] = Gathering(call, together_max=3)
    asked = [gathering.ask(number) for number in range(5)]
    await eventually(lambda: calls)
    asked.append(gathering.ask(99, urgent=True))
    asked[4].cancel()
    await others()
    assert calls == [[0, 1, 2], [99]], "it waits for no call of the others"
    gate.set()
    assert await asyncio.gather(*asked[:4], asked[5]) == [0, 2, 4, 6, 198]
    assert calls == [[0, 1, 2], [99], [3]]


async def test_a_failure_is_that_of_those_who_asked_and_the_next_go_on() -> None:
    async def call(items: Sequence[int]) -> list[int]:
        if 0 in items:
            raise ValueError("no")
        return list(items)

    gathering: Gathering[int, int] = Gathering(call)
    with pytest.raises(ValueError, match="no"):
        await gathering.ask(0)
    assert await gathering.ask(1) == 1


async def test_one_that_fails_fails_nobody_beside_it() -> None:
    calls: list[int] = []

    async def call(items: Sequence[int]) -> list[int]:
        calls.append(len(items))
        if 7 in items:
            raise ValueError("no")
        return [item * 2 for item in items]

    gathering: Gathering[int, int] = Gathering(call)
    answers = await asyncio.gather(*(gathering.ask(number) for number in range(100)), return_exceptions=True)
    assert [number for number, answer in enumerate(answers) if answer != number * 2] == [7]
    assert isinstance(answers[7], ValueError)
    assert len(calls) < 20, "not each by itself"


async def test_while_the_store_is_away_nobody_is_asked_for_apart() -> None:
    calls: list[int] = []

    async def call(items: Sequence[int]) -> list[int]:
        calls.append(len(items))
        raise StoreError("away")

    gathering: Gathering[int, int] = Gathering(call)
    answers = await asyncio.gather(*(gathering.ask(number) for number in range(10)), return_exceptions=True)
    assert all(isinstance(answer, StoreError) for answer in answers)
    assert calls == [10]


async def test_who_takes_several_waits_for_all_of_them_and_is_not_overtaken() -> None:
    crowd = Crowd(Slots(8, 2))
    for name in ("1", "2", "3", "4"):
        await crowd.come(name, tenant=name)
    await crowd.come("many", tenant="m", count=3)
    await crowd.come("5", tenant="5")
    assert crowd.inside == ["1", "2", "3", "4"], "two are left, which are not enough; who came later stays behind"
    await crowd.come("high", high=True, count=4)
    await crowd.go("1")
    await crowd.go("2")
    await crowd.go("3")
    assert crowd.inside == ["4", "high", "many"]
    await crowd.go("high")
    assert crowd.inside == ["4", "many", "5"]


async def test_who_wants_more_than_there_are_gets_what_he_may_hold() -> None:
    slots = Slots(4, 1)
    assert await slots.take("a", high=False, count=20) == 2, "one is left for another tenant, one for high priority"
    slots.leave("a", high=False, count=2)
    assert await slots.take("a", high=True, count=20) == 2, "one is left for others of it, one for the rest"
    assert slots.in_use == 2
    slots.leave("a", high=True, count=2)
    assert slots.in_use == 0

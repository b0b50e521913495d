"""Concurrency slots and the stages of the pipeline: the order of callers, and what is batched."""

import asyncio
import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bus.simulation import elapse, simulated
from tidings.delivery.limits.concurrency import BUNCH_S, FairSemaphore, SlotLine
from tidings.delivery.worker import stage as stage_module
from tidings.delivery.worker.stage import Stage
from tidings.domain.errors import StoreError
from tidings.testing import eventually

A_MOMENT_US = int(2 * BUNCH_S * 1_000_000)


async def run_other_tasks() -> None:
    """Let all other tasks run until they wait."""
    for _ in range(5):
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


async def take(slots: FairSemaphore, tenant: str, *, high: bool, count: int) -> int:
    """How many slots it got, once it has them."""
    granted = asyncio.get_running_loop().create_future()
    allowed = slots.count_for(high=high, count=count)
    slots.enter(lambda: granted.set_result(None), tenant, high=high, count=allowed)
    await granted
    return allowed


class SlotHolders:
    """Callers that hold a slot until `leave`."""

    def __init__(self, slots: FairSemaphore) -> None:
        self._slots = slots
        self.inside: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def enter(self, name: str, tenant: str = "a", *, high: bool = False, count: int = 1) -> None:
        self._leave[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._hold(name, tenant, high, count))
        await run_other_tasks()

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self._tasks[name]
        await run_other_tasks()

    async def _hold(self, name: str, tenant: str, high: bool, count: int) -> None:
        taken = await take(self._slots, tenant, high=high, count=count)
        self.inside.append(name)
        await self._leave[name].wait()
        self.inside.remove(name)
        self._slots.leave(tenant, high=high, count=taken)


async def test_some_slots_are_reserved_for_high_priority() -> None:
    holders = SlotHolders(FairSemaphore(4, 2))
    for name in ("1", "2", "3"):
        await holders.enter(name, tenant=name)
    assert holders.inside == ["1", "2"]
    for name in ("h1", "h2", "h3"):
        await holders.enter(name, tenant=name, high=True)
    assert holders.inside == ["1", "2", "h1", "h2"]
    await holders.leave("1")
    assert holders.inside == ["2", "h1", "h2", "h3"], "high goes first, and takes an open one too"
    await holders.leave("h1")
    assert holders.inside == ["2", "h2", "h3", "3"]


async def test_tenants_take_turns() -> None:
    holders = SlotHolders(FairSemaphore(3, 1))
    for number in range(5):
        await holders.enter(f"a{number}", "a")
    assert holders.inside == ["a0"], "one is left for another tenant"
    for number in range(2):
        await holders.enter(f"b{number}", "b")
    assert holders.inside == ["a0", "b0"]
    await holders.leave("a0")
    await holders.leave("b0")
    assert sorted(holders.inside) == ["a1", "b1"]


async def test_a_bulk_of_high_priority_leaves_room_for_another_tenants_messages() -> None:
    holders = SlotHolders(FairSemaphore(16, 4))
    for number in range(40):
        await holders.enter(f"high-{number}", "a", high=True)
        await holders.enter(f"low-{number}", "a")
    assert len(holders.inside) == 15
    await holders.enter("normal", "b")
    assert holders.inside[-1] == "normal", "although no slot was released"
    await holders.leave("normal")
    await holders.enter("urgent", "b", high=True)
    assert holders.inside[-1] == "urgent"


async def test_tenants_take_turns_with_high_priority_too() -> None:
    holders = SlotHolders(FairSemaphore(4, 1))
    for number in range(20):
        await holders.enter(f"a{number}", "a", high=True)
    assert holders.inside == ["a0", "a1"], "one is left for another tenant, one for what has no high priority"
    for name in ("b0", "b1", "b2"):
        await holders.enter(name, "b", high=True)
    assert holders.inside == ["a0", "a1", "b0"]
    await holders.leave("a0")
    assert holders.inside == ["a1", "b0", "a2"]
    await holders.leave("a1")
    assert holders.inside == ["b0", "a2", "b1"]


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 0),
        (3, 1),
        *(pytest.param(*slots, marks=pytest.mark.slow) for slots in ((2, 0), (2, 1), (3, 0), (3, 2), (8, 2))),
    ],
)
@pytest.mark.parametrize(("high", "count"), [(False, 1), (False, 3), (True, 1), (True, 3)])
@pytest.mark.parametrize("tenant", ["a", "b"])
async def test_no_caller_waits_forever(size: int, reserved: int, high: bool, count: int, tenant: str) -> None:
    """With any number of slots, beside a bulk of its own tenant or of others."""
    slots, order = FairSemaphore(size, reserved), list[str]()

    async def hold(name: str, tenant: str, high: bool, count: int = 1) -> None:
        taken = await take(slots, tenant, high=high, count=count)
        order.append(name)
        await run_other_tasks()
        slots.leave(tenant, high=high, count=taken)

    bulk = [hold("bulk", each, urgent) for _ in range(150) for each in "ac" for urgent in (True, False)]
    waiting = [asyncio.create_task(each) for each in bulk[:300]]
    await run_other_tasks()
    waiting.append(asyncio.create_task(hold("one", tenant, high, count)))
    waiting += [asyncio.create_task(each) for each in bulk[300:]]
    await asyncio.gather(*waiting)
    assert slots.in_use == 0
    assert tenant == "a" or order.index("one") < 80, "it waits only behind the bulk of its own tenant"


async def test_what_arrives_during_a_step_is_the_next_batch() -> None:
    batches: list[list[int]] = []
    gate = asyncio.Event()

    async def step(items: list[int]) -> None:
        batches.append(items)
        await gate.wait()

    stage = Stage("test", step, batch_max=3, on_error=lambda *_: None)
    stage.put([0])
    await eventually(lambda: batches)
    stage.put([1, 2])
    stage.put([3, 4])
    gate.set()
    await stage.idle()
    assert batches == [[0], [1, 2, 3], [4]]


async def test_an_item_that_fails_does_so_alone() -> None:
    batches, done, failed = list[int](), list[int](), list[int]()

    async def step(items: list[int]) -> None:
        batches.append(len(items))
        if 7 in items:
            raise ValueError("no")
        done.extend(items)

    stage = Stage("test", step, batch_max=100, on_error=lambda item, _: failed.append(item))
    stage.put(range(100))
    await stage.idle()
    assert failed == [7]
    assert sorted(done) == [number for number in range(100) if number != 7]
    assert len(batches) < 20, "not each by itself"


async def test_while_the_store_is_away_a_batch_is_tried_again_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "RETRY_S", 0.001)
    batches: list[int] = []

    async def step(items: list[int]) -> None:
        batches.append(len(items))
        if len(batches) < 4:
            raise StoreError("away")

    stage = Stage("test", step, batch_max=100, on_error=lambda *_: pytest.fail("no item is at fault"))
    stage.put(range(10))
    await stage.idle()
    assert batches == [10] * 4


class RowLocked(StoreError):
    concerns_all = False


async def test_an_item_whose_row_is_locked_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "RETRY_S", 0.001)
    monkeypatch.setattr(stage_module, "LOCKED_S", 0.05)
    done: list[int] = []
    attempts: list[int] = []
    unlocked = asyncio.Event()

    async def step(items: list[int]) -> None:
        if 7 in items and not unlocked.is_set():
            attempts.append(len(items))
            raise RowLocked("locked")
        done.extend(items)

    stage = Stage("test", step, batch_max=100, on_error=lambda *_: pytest.fail("no item is at fault"))
    stage.put(range(100))
    await eventually(lambda: len(done) == 99)
    assert attempts[:3] == [100, 7, 1], "each of these waits for the lock: few find the item"
    stage.put([100])
    await eventually(lambda: 100 in done)
    assert set(attempts[3:]) <= {1}, "it is tried again alone, after a while"
    unlocked.set()
    await eventually(lambda: 7 in done)
    assert sorted(done) == list(range(101))


async def test_a_caller_that_takes_several_slots_waits_for_all_and_is_not_overtaken() -> None:
    holders = SlotHolders(FairSemaphore(8, 2))
    for name in ("1", "2", "3", "4"):
        await holders.enter(name, tenant=name)
    await holders.enter("many", tenant="m", count=3)
    await holders.enter("5", tenant="5")
    assert holders.inside == ["1", "2", "3", "4"], "two are free, which is not enough; later callers wait behind it"
    await holders.enter("high", high=True, count=4)
    await holders.leave("1")
    await holders.leave("2")
    await holders.leave("3")
    assert holders.inside == ["4", "high", "many"]
    await holders.leave("high")
    assert holders.inside == ["4", "many", "5"]


async def test_a_caller_that_wants_more_slots_than_allowed_gets_the_maximum() -> None:
    slots = FairSemaphore(4, 1)
    assert await take(slots, "a", high=False, count=20) == 2, "one is left for another tenant, one for high priority"
    slots.leave("a", high=False, count=2)
    assert await take(slots, "a", high=True, count=20) == 2, "one is left for others of it, one for the rest"
    assert slots.in_use == 2
    slots.leave("a", high=True, count=2)
    assert slots.in_use == 0


@simulated
async def test_freed_slots_are_given_out_in_bunches_and_fewer_after_a_moment() -> None:
    slots, inside = FairSemaphore(20, 0, bunch=4), list[str]()
    for number in range(40):
        slots.enter(partial(inside.append, f"a{number}"), f"t{number % 4}", high=False)
    assert len(inside) == 20
    for number in range(3):
        slots.leave(f"t{number}", high=False)
    assert len(inside) == 20
    slots.leave("t3", high=False)
    assert len(inside) == 24, "a bunch"
    slots.leave("t0", high=False)
    assert len(inside) == 24
    await elapse(A_MOMENT_US)
    assert len(inside) == 25, "the others may take long"


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nobody_waits_for_long_while_there_is_a_slot_for_them(seed: int) -> None:
    @simulated
    async def simulate() -> None:
        chance = random.Random(seed)
        size = chance.randint(1, 40)
        slots = FairSemaphore(size, chance.randint(0, size - 1), bunch=chance.randint(1, max(1, size // 2)))
        held = list[tuple[str, bool, int]]()
        for _ in range(300):
            if held and chance.random() < 0.5:
                tenant, high, count = held.pop(chance.randrange(len(held)))
                slots.leave(tenant, high=high, count=count)
            else:
                tenant, high = chance.choice("aaab"), chance.random() < 0.3
                count = slots.count_for(high=high, count=chance.choice([1, 1, 1, 3]))
                slots.enter(partial(held.append, (tenant, high, count)), tenant, high=high, count=count)
            assert slots.in_use == sum(count for _, _, count in held) <= size
            if chance.random() < 0.1:
                await elapse(A_MOMENT_US)
                assert slots._next() is None, "someone could go"
        for _ in range(1_000):
            while held:
                tenant, high, count = held.pop()
                slots.leave(tenant, high=high, count=count)
            if not slots.waiting:
                break
            await elapse(A_MOMENT_US)
        assert (slots.in_use, slots.waiting) == (0, 0), "everyone had their turn"

    simulate()


# Lines


class Held:
    """Messages of several lines that hold their slots until `end`."""

    def __init__(self) -> None:
        self.inside: list[tuple[SlotLine[str], str]] = []
        self.order: list[str] = []

    def granted(self, line: SlotLine[str], items: list[str]) -> None:
        self.inside += [(line, item) for item in items]
        self.order += items

    def line(self, tenant: str, *slots: FairSemaphore, high: bool = False) -> SlotLine[str]:
        return SlotLine([(each, 1) for each in slots], tenant, self.granted, high=high)

    def end(self, number: int = 0) -> None:
        line, _ = self.inside.pop(number)
        line.free()


def test_a_line_takes_all_free_slots_at_once_and_keeps_them_for_the_next() -> None:
    held, slots = Held(), FairSemaphore(10, 2)
    line = held.line("a", slots)
    line.put([f"a{number}" for number in range(20)])
    assert (len(held.inside), slots.in_use) == (7, 7), "of eight, one is left for another tenant"
    for _ in range(13):
        held.end()
        assert (len(held.inside), slots.in_use) == (7, 7)
    assert held.order == [f"a{number}" for number in range(20)]
    while held.inside:
        held.end()
    assert (slots.in_use, slots.waiting) == (0, 0)
    assert line.is_idle


def test_a_line_gives_its_slots_to_others_that_wait() -> None:
    held, slots = Held(), FairSemaphore(3, 1)
    held.line("a", slots).put([f"a{number}" for number in range(50)])
    held.line("b", slots).put([f"b{number}" for number in range(50)])
    held.line("c", slots, high=True).put([f"c{number}" for number in range(50)])
    while held.inside:
        held.end()
    for tenant in "abc":
        turns = [number for number, name in enumerate(held.order) if name[0] == tenant]
        assert len(turns) == 50
        assert turns[5] < 60, f"{tenant} has its turns while the others wait"
    assert slots.in_use == 0


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_lines_over_several_semaphores_never_exceed_them_and_all_have_their_turn(
    first: int, second: int, chance: random.Random
) -> None:
    held, own, shared = Held(), [FairSemaphore(first, 0) for _ in range(3)], FairSemaphore(second, 0)
    lines = [held.line(f"t{number % 2}", own[number], shared, high=number == 2) for number in range(3)]
    wanted = 0
    for _ in range(60):
        if chance.random() < 0.4:
            count = chance.randint(1, 5)
            chance.choice(lines).put([f"{wanted + each}" for each in range(count)])
            wanted += count
        elif held.inside:
            held.end(chance.randrange(len(held.inside)))
        assert len(held.inside) <= shared.in_use <= second
        assert all(each.in_use <= first for each in own)
    while held.inside:
        held.end(chance.randrange(len(held.inside)))
    assert len(held.order) == len(set(held.order)) == wanted, "each once"
    assert not any(each.in_use for each in (shared, *own))


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
def test_lines_keep_to_a_semaphore_whose_size_changes_and_all_have_their_turn(chance: random.Random) -> None:
    held, slots, size = Held(), FairSemaphore(6, 1), 6
    lines = [held.line("a", slots), held.line("b", slots), held.line("b", slots, high=True)]
    for wanted in range(0, 90, 3):
        chance.choice(lines).put([f"{wanted + each}" for each in range(3)])
        before = slots.in_use
        if chance.random() < 0.3:
            size = chance.randint(2, 12)
            slots.resize(size, chance.randint(0, 1), 1)
        elif held.inside:
            held.end(chance.randrange(len(held.inside)))
        assert slots.in_use <= max(size, before), "what is held stays, and nothing is added"
    while held.inside:
        before = slots.in_use
        held.end(chance.randrange(len(held.inside)))
        assert slots.in_use <= max(size, before - 1), "freed slots are not given out again while there are too many"
    assert len(held.order) == len(set(held.order)) == 90, "each once"
    assert (slots.in_use, slots.waiting) == (0, 0)


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_line_passes_slots_on_in_bunches(is_last: bool) -> None:
    held, slots = Held(), FairSemaphore(40, 0, bunch=8)
    line = held.line("a", slots)
    line.put([f"a{number}" for number in range(60)])
    before = len(held.order)
    for _ in range(7):
        held.end()
    assert len(held.order) == before, "they wait for more"
    if is_last:
        held.end()
    await eventually(lambda: len(held.order) == before + 7 + is_last)


@pytest.mark.parametrize("size", [5, 10, 20])
@pytest.mark.parametrize("high", [True, False])
def test_what_was_promised_to_a_large_message_fits_after_the_semaphore_has_shrunk(size: int, high: bool) -> None:
    slots = FairSemaphore(size, 1)
    slots.resize(500, 1, 1)
    count = slots.count_for(high=high, count=400)
    slots.resize(size, 1, 1)
    assert slots.try_take("acme", high=high, count=count)

"""Gates: on the connections of a channel high priority goes first, and a time-out at the gate has sent nothing."""

import asyncio

import msgspec

from tests.delivery.world import QUICK, Recorder, ada, changed, living, words
from tidings.delivery.gates import LINES_KEPT, Gates
from tidings.domain.rendered import Rendered, Sms
from tidings.domain.verdict import Accepted, Verdict

MESSAGE = Sms("n-1/1", "+15550100", "hello")


class Lined(Recorder):
    """Has one connection, which takes its time until it is told."""

    def __init__(self) -> None:
        super().__init__("email")
        self.free = asyncio.Event()
        self.name = "line"
        self.ids: list[str] = []

    def line(self, message: Rendered) -> tuple[str, int]:
        del message
        return self.name, 1

    async def send(self, message: Rendered) -> Verdict:
        self.ids.append(message.id)
        await self.free.wait()
        return Accepted(message.id)


async def test_high_priority_goes_first_on_a_line() -> None:
    gates, channel, order = Gates(), Lined(), []

    async def go(name: str, *, high: bool = False) -> None:
        async with gates.way("smtp", channel, MESSAGE, "acme", high=high):
            order.append(name)
            await channel.free.wait()

    tasks = [asyncio.create_task(go(name)) for name in ("low-1", "low-2", "low-3")]
    tasks.append(asyncio.create_task(go("high", high=True)))
    await asyncio.wait(tasks, timeout=0)
    while not order:
        await asyncio.wait(tasks, timeout=0.001)
    channel.free.set()
    await asyncio.gather(*tasks)
    assert order == ["low-1", "high", "low-2", "low-3"]


async def test_a_channel_without_lines_takes_all_at_once() -> None:
    gates, channel = Gates(), Recorder("email")
    async with (
        gates.way("x", channel, MESSAGE, "acme", high=False),
        asyncio.timeout(5),
        gates.way("x", channel, MESSAGE, "acme", high=False),
    ):
        pass


async def test_lines_that_nobody_uses_are_forgotten() -> None:
    gates, channel = Gates(), Lined()
    async with gates.way("x", channel, MESSAGE, "acme", high=False):
        for number in range(3 * LINES_KEPT):
            channel.name = f"line-{number}"
            async with gates.way("x", channel, MESSAGE, "acme", high=False):
                pass
        channel.name = "line"
        waiting = asyncio.create_task(gates.way("x", channel, MESSAGE, "acme", high=False).__aenter__())
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done(), "the one in use was kept"
    await asyncio.wait_for(waiting, 5)


async def test_who_waits_in_vain_for_a_connection_has_sent_nothing() -> None:
    """Two e-mails, one connection that does not answer: the second may go by another way without doubt."""
    once = msgspec.structs.replace(QUICK.terms.backoff, attempts_max=1)
    settings = changed(QUICK, terms=msgspec.structs.replace(QUICK.terms, backoff=once), send_s=0.2)
    async with living() as world:
        channel = Lined()
        await world.put_user(ada())
        world.start(world.worker({"smtp": channel}, settings))
        await world.notify(words("n-1"), words("n-2"))
        found = await world.settled("n-1/1", "n-2/1")
        arrived = {each.name: each.attempts[-1].may_have_arrived for each in found}
        assert arrived == {name: name in channel.ids for name in ("n-1/1", "n-2/1")}
        assert sorted(arrived.values()) == [False, True]

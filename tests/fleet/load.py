"""The load: bulk requests, and short programs of one id each whose calls go to different nodes, some concurrently."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from tests.faults.node_process import wall_us
from tests.fleet.clients import Clients, Document, Name
from tests.fleet.model import Kind, Step
from tidings.domain.schedules.iso8601 import format_instant

TENANTS = ("default", "acme")
TOPICS = ("greetings", "orders")
SECOND_US = 1_000_000
NEAR_S = (0.2, 2.5)
LINES = (20, 60, 120)
CONTENDED_S = (0.3, 0.9)


class Load:
    """Programs run until `stop`; each returns when all of its calls are answered."""

    def __init__(self, clients: Clients, seed: int, rate: int, programs: Sequence[str] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self._clients = clients
        self._random = random.Random(seed)
        self._rate = rate
        self._numbers = count(1)
        self._stopping = False
        all_programs: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._once, 2),
            (self._changed, 5),
            (self._contended, 4),
            (self._expiring, 2),
            (self._recurring, 3),
            (self._reused, 1),
        ]
        self._programs = [each for each in all_programs if not programs or _name_of(each[0]) in programs]

    @property
    def schedules(self) -> int:
        return len(self._clients.steps)

    def stop(self) -> None:
        """Start no new program."""
        self._stopping = True

    async def run_programs(self) -> None:
        """Run program after program."""
        programs, weights = zip(*self._programs, strict=True)
        while not self._stopping:
            program = self._random.choices(programs, weights)[0]
            self.counts[_name_of(program)] += 1
            await program()

    async def run_bulk(self) -> None:
        """Send bulk requests at the planned rate."""
        while not self._stopping:
            lines = self._random.choice(LINES)
            tenant = self._random.choice(TENANTS)
            pause = asyncio.create_task(asyncio.sleep(lines / self._rate))
            await self._clients.lines(tenant, [self._document(self._name("line", tenant).id) for _ in range(lines)])
            self.counts["lines"] += lines
            await pause

    # What is sent

    def _name(self, kind: str, tenant: str | None = None) -> Name:
        return Name.of(f"{tenant or self._random.choice(TENANTS)}/{kind}/{next(self._numbers)}")

    def _document(self, schedule_id: str, seconds: float | None = None, **more: object) -> Document:
        """A one-shot; its value is a unique token."""
        due = wall_us() + int((self._random.uniform(*NEAR_S) if seconds is None else seconds) * SECOND_US)
        document: Document = {"id": schedule_id, "topic": self._random.choice(TOPICS), "at": format_instant(due)}
        document |= {"value": f"token-{next(self._numbers)}", "key": schedule_id}
        return document | {"priority": self._random.choice(("high", "normal", "low"))} | more

    async def _call(self, name: Name, kind: Kind, document: Document | None = None, *, often: int = 0) -> Step:
        patient = self._random.random() < 0.85
        return await self._clients.call(name, kind, document, often=often, patient=patient)

    async def _add(self, name: Name, document: Document, *, often: int = 0) -> None:
        await self._clients.call(name, "add", document, often=often)

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(self._random.uniform(0, seconds))

    # Programs

    async def _once(self) -> None:
        name = self._name("once")
        await self._add(name, self._document(name.id))

    async def _changed(self) -> None:
        """One change after the other."""
        name = self._name("changed")
        await self._add(name, self._document(name.id))
        for _ in range(self._random.randint(1, 4)):
            await self._rest(0.8)
            await self._change(name)

    async def _contended(self) -> None:
        """Several clients at once, at about the time when it is due."""
        name = self._name("contended")
        seconds = self._random.uniform(*CONTENDED_S)
        begun = asyncio.get_running_loop().time()
        await self._add(name, self._document(name.id, seconds))
        await asyncio.sleep(max(0.0, begun + seconds - 0.03 - asyncio.get_running_loop().time()))
        await asyncio.gather(*(self._change_soon(name) for _ in range(self._random.randint(2, 4))))

    async def _change_soon(self, name: Name) -> None:
        await self._rest(0.06)
        await self._change(name)

    async def _change(self, name: Name) -> None:
        kinds: tuple[Kind, ...] = ("cancel", "replace", "replace", "pause", "fire")
        kind = self._random.choice(kinds)
        if kind != "replace":
            await self._call(name, kind)
            if kind == "pause":
                await self._rest(0.3)
                await self._call(name, "resume")
            return
        document = self._document(name.id, self._random.uniform(0.05, 1.5))
        await self._call(name, kind, document)

    async def _expiring(self) -> None:
        """A schedule that is released or missed, as the store shows."""
        name = self._name("expiring")
        await self._add(name, self._document(name.id, expires_after="PT0.1S"))

    async def _recurring(self) -> None:
        """Occurrences a second apart, fired, held and perhaps cancelled meanwhile."""
        name, often = self._name("recurring"), self._random.randint(2, 4)
        document = self._document(name.id, 0, late=self._random.choice(("fire_all", "fire_latest")))
        del document["at"]
        start = wall_us() + int(self._random.uniform(0.2, 1.0) * SECOND_US)
        document["every"] = f"R{often}/{format_instant(start)}/PT1S"
        await self._add(name, document, often=often)
        for _ in range(self._random.randint(0, 3)):
            await self._rest(1.0)
            kinds: tuple[Kind, ...] = ("fire", "fire", "pause", "resume", "cancel")
            await self._call(name, self._random.choice(kinds))

    async def _reused(self) -> None:
        """A new generation of a released id."""
        name = self._name("reused")
        await self._add(name, self._document(name.id, 0.1))
        await self._rest(0.5)
        await self._call(name, "reuse", self._document(name.id, 0.3))


def _name_of(program: Callable[[], Awaitable[None]]) -> str:
    return getattr(program, "__name__", "").strip("_")

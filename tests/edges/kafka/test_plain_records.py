"""Plain records become columns at once. The general way is the oracle: both give the same rows, outcomes, rejections.

Records of every wire are made at random, plain ones and others, with ids that repeat. Each batch is read twice: as a
node reads it, and with `plain` switched off.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("confluent_kafka")

from tests.wires.test_any_record import OPTIONAL, REQUIRED, TOPICS, WIRES
from tidings.domain.schedules.command import Add, Command, PlainAdds
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import Headers
from tidings.domain.schedules.when import DAY_US, SECOND_US
from tidings.edges.kafka.intake import Batch
from tidings.edges.kafka.request_reader import Reading
from tidings.engine import Engine, Settings
from tidings.ports import SourceBatch
from tidings.testing import SimulatedClock
from tidings.timeline.memory.store import MemoryStore
from tidings.timeline.sqlite.pending.packed_rows import ARRIVAL_BITS, unpack
from tidings.timeline.sqlite.store import SqliteStore
from tidings.wires.record import Record
from tidings.wires.wire import Destinations, Wire

BATCHES, RECORDS = 6, 150
START_US = 1_795_165_200_000_000
ROWS = (
    "SELECT * FROM near ORDER BY stream, due, arrival",
    "SELECT * FROM far ORDER BY place",
    "SELECT arrival, stream, due, partition, id, content, message FROM standing ORDER BY arrival",
    "SELECT * FROM finished ORDER BY due, arrival",
    "SELECT topic, tenant, name FROM topic ORDER BY topic",
    "SELECT * FROM stream ORDER BY stream",
    "SELECT arrival, pending FROM tally",
)
FORMS: tuple[Callable[[str], str], ...] = (
    str,
    lambda text: text[:19] + "Z",
    lambda text: text[:21] + "Z",
    lambda text: text[:-1] + "+00:00",
    lambda text: text.lower(),
    lambda text: text[:10] + " " + text[11:],
    lambda text: text[:-1],
    lambda text: text[:-1] + "789Z",
    lambda text: text.replace("T1", "T7"),
)
PLAIN_FORMS = FORMS[:3]
TIME_OF = {"intervals": "intervals-schedule", "kaspr": "x-scheduler-deliver-at", "native": "tidings-at"}
ID_OF = {"intervals": "intervals-id", "kaspr": "x-scheduler-request-id", "native": "tidings-id"}
OTHERS: tuple[tuple[str, bytes | None], ...] = (
    ("trace", b"1"),
    ("trace", None),
    ("Tracé", b"\x00\xff"),
    ("a\0b", b"x"),
    ("tidings-unknown", b"x"),
    ("tidings-occurrence", b"a/1/1"),
)


class General:
    """A wire whose records all take the general way."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def plain(self, _tenant: str, _record: Record) -> None:
        return None

    def __getattr__(self, name: str) -> object:
        return getattr(self._wire, name)


class Maker:
    """Makes records of one wire."""

    def __init__(self, wire: str, random: Random) -> None:
        self._wire = wire
        self._random = random
        self._offset = 0

    def records(self) -> list[Record]:
        return [self._record() for _ in range(RECORDS)]

    def _record(self) -> Record:
        random, self._offset = self._random, self._offset + 1
        headers = self._usual() if random.random() < 0.7 else self._unusual()
        key = random.choice([None, b"", b"k", b"key-%d" % random.randrange(20)])
        value = random.choice([None, b"", b"v" * random.randrange(400), bytes(300), b"{}", b"v" * 90_000])
        unreadable = "has bad headers" if random.random() < 0.01 else ""
        stamp = random.choice([START_US, START_US - DAY_US, -1])
        life = random.choice(["", "life"])
        return Record(TOPICS[self._wire], 0, self._offset, stamp, key, value, tuple(headers), life, unreadable)

    def _usual(self) -> Headers:
        """What most clients send: a time, a destination, sometimes an id."""
        random = self._random
        found: list[tuple[str, bytes | None]] = [
            (name, random.choice(texts).encode()) for name, texts in REQUIRED[self._wire].items()
        ]
        if self._wire in TIME_OF:
            found = [header for header in found if header[0] != TIME_OF[self._wire]]
            found.append((TIME_OF[self._wire], self._time(PLAIN_FORMS).encode()))
            if random.random() < 0.5:
                found.append((ID_OF[self._wire], f"order-{random.randrange(200)}".encode()))
        if random.random() < 0.3:
            found.append(random.choice(OTHERS[:3]))
        random.shuffle(found)
        return tuple(found)

    def _unusual(self) -> Headers:
        """Any headers: repeated, null, empty, not UTF-8, with any value that some version of a client may send."""
        random, found = self._random, [*self._usual()]
        optional = OPTIONAL[self._wire]
        chosen = random.sample([*optional], random.randrange(min(4, len(optional)) + 1))
        found += [(random.choice([name, name.upper()]), random.choice(optional[name]).encode()) for name in chosen]
        if random.random() < 0.3 and self._wire in TIME_OF:
            found.append((TIME_OF[self._wire], self._time(FORMS).encode()))
        if random.random() < 0.2:
            found.append(random.choice(OTHERS))
        if random.random() < 0.2:
            spoiled = random.randrange(len(found))
            found[spoiled] = (found[spoiled][0], random.choice([None, b"", b"\xff", "é".encode(), b"x" * 300]))
        if random.random() < 0.1:
            del found[random.randrange(len(found))]
        random.shuffle(found)
        return tuple(found)

    def _time(self, forms: tuple[Callable[[str], str], ...]) -> str:
        random = self._random
        ahead_us = random.choice(
            [0, -1, -DAY_US, 1, 59 * SECOND_US, random.randrange(30 * DAY_US), 400 * DAY_US, 4_000 * DAY_US]
        )
        return random.choice(forms)(format_instant(START_US + ahead_us))


@asynccontextmanager
async def engine_on(path: Path) -> AsyncIterator[Engine]:
    clock = SimulatedClock(START_US)
    store = await SqliteStore.open(path)
    assert await store.acquire(0, 10**15)
    yield Engine(store, clock, Settings(bus="kafka", forbidden=Destinations().forbidden))
    await store.close()


def rows_of(engine: Engine) -> list[list[tuple[object, ...]]]:
    """All rows; those in parcels by arrival, because the two ways may cut a batch into different parcels."""
    assert isinstance(engine.store, SqliteStore)
    connection = engine.store._connection
    packed = []
    for place, *blobs in connection.execute("SELECT place, heads, bodies FROM parcel").fetchall():
        rows = unpack(*blobs)
        packed += [
            (int(rows.heads["arrival"][index]), place >> ARRIVAL_BITS, *rows.plain(index)) for index in range(len(rows))
        ]
    return [sorted(packed), *(connection.execute(sql).fetchall() for sql in ROWS)]


async def taken(engine: Engine, batch: Batch) -> tuple[object, ...]:
    """Commit a batch; everything that can be seen of it."""
    now = engine.clock.now()
    outcomes = await engine.store.apply(batch.commands, now, None, SourceBatch((), batch.on_outcomes))
    return list(batch.commands), batch.ends, batch.refused, outcomes, batch.rejections


@pytest.mark.parametrize("name", [*WIRES])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
async def test_both_ways_give_the_same(name: str, seed: int, tmp_path: Path) -> None:
    maker = Maker(name, Random(seed))
    general: object = General(WIRES[name])
    plain = 0
    async with engine_on(tmp_path / "columns.db") as columns, engine_on(tmp_path / "oracle.db") as oracle:
        for _ in range(BATCHES):
            reading = Reading(maker.records(), {})
            batch = Batch(columns, lambda _: WIRES[name], reading)
            expected = Batch(oracle, lambda _: general, reading)  # type: ignore[arg-type, return-value]
            plain += sum(len(part) for part in batch.commands.parts if isinstance(part, PlainAdds))
            assert not any(isinstance(part, PlainAdds) for part in expected.commands.parts)
            assert await taken(columns, batch) == await taken(oracle, expected)
        assert rows_of(columns) == rows_of(oracle)
    assert plain > BATCHES * RECORDS / 10 or name == "etf1"


async def test_the_commands_of_columns_are_those_of_admission() -> None:
    """Store by store: the memory store, which builds each command, answers like the one that writes columns."""
    maker = Maker("native", Random(9))
    engine = Engine(MemoryStore(), SimulatedClock(START_US), Settings(bus="kafka"))
    batch = Batch(engine, lambda _: WIRES["native"], Reading(maker.records() + maker.records(), {}))
    commands: list[Command] = list(batch.commands)
    assert len(commands) == len(batch.commands)
    assert [batch.commands[index] for index in range(len(commands))] == commands
    assert batch.commands[-1] == commands[-1]
    assert batch.commands[2:5] == commands[2:5]
    with pytest.raises(IndexError):
        batch.commands[len(commands)]
    assert any(isinstance(command, Add) and command.reuse for command in commands)

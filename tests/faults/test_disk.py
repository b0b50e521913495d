"""Full, failing or foreign disks: clear errors, nothing acknowledged is lost, and the node continues."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import apsw
import pytest

from tests.contract.factories import ACME, NOW, SECOND, add, drain, found, left, state, tend
from tests.faults.disks import Disk, inserted
from tests.faults.node_process import NodeProcess, start_plain
from tests.sim.thresholds import lowered
from tests.timeline.later_layouts import later
from tidings.clock import SystemClock
from tidings.domain.errors import StoreError
from tidings.domain.schedules.schedule import Request
from tidings.engine import Engine
from tidings.testing import eventually
from tidings.timeline.migrations import Layouts
from tidings.timeline.sqlite import database
from tidings.timeline.sqlite.store import SqliteStore

MIB = 1024 * 1024
STOP_S = 5.0
VALUE = "x" * 50_000


# A full disk


@contextlib.contextmanager
def mounted(folder: Path, size: int) -> Iterator[None]:
    """A small disk of its own; needs to be root."""
    folder.mkdir()
    if not shutil.which("mount") or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=False)
    if done.returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 6 * MIB):
        yield tmp_path / "disk"


def enlarge(folder: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={64 * MIB}", folder], check=True)


@contextlib.asynccontextmanager
async def serving(folder: Path, *argv: str) -> AsyncIterator[tuple[NodeProcess, aiohttp.ClientSession]]:
    node = await start_plain(folder, *argv)
    try:
        await node.logged("owns the timeline")
        async with aiohttp.ClientSession(await node.url()) as session:
            yield node, session
    finally:
        node.send(signal.SIGKILL)
        await node.ended(STOP_S)


async def post(session: aiohttp.ClientSession, **schedule: object) -> tuple[int, dict[str, Any], str | None]:
    async with session.post("/v1/schedules", json={"topic": "greetings", **schedule}) as response:
        return response.status, await response.json(content_type=None), response.headers.get("Retry-After")


async def fill(session: aiohttp.ClientSession) -> list[str]:
    """Schedules until the disk is full; the ids that were acknowledged. Some of them fall due meanwhile."""
    acknowledged: list[str] = []
    for number in range(10_000):
        due = f"{1 + number % 3}s" if number % 5 == 0 else "1h"
        status, document, retry_after = await post(session, id=f"n{number}", at=due, value=VALUE)
        if status == 503:
            assert "the disk is full" in document["detail"], document
            assert retry_after is not None
            return acknowledged
        assert status == 201, document
        acknowledged.append(f"n{number}")
    raise AssertionError("the disk is never full")


async def records(session: aiohttp.ClientSession) -> list[str]:
    ids: list[str] = []
    cursor = None
    while True:
        query = {"limit": "100"} | ({} if cursor is None else {"cursor": cursor})
        async with session.get("/v1/topics/greetings/records", params=query) as response:
            page = await response.json()
        ids += [record["id"] for record in page["records"]]
        cursor = page["cursor"]
        if not page["records"]:
            return ids


@pytest.mark.slow
async def test_a_full_disk_stops_intake_and_loses_nothing(small_disk: Path) -> None:
    async with serving(small_disk) as (node, session):
        acknowledged = await fill(session)
        async with session.get("/v1/schedules?limit=5") as response:
            assert response.status == 200
        due = [name for name in acknowledged if int(name[1:]) % 5 == 0]
        await asyncio.sleep(3.5)  # all of those are due now
        assert len(acknowledged) > len(due) > 0
        enlarge(small_disk)

        async def is_released() -> bool:
            return set(await records(session)) == set(due)

        await eventually(is_released, 10.0)
        assert sorted(await records(session)) == sorted(due)

        async def takes_changes() -> bool:  # once the owner has looked again, which it does every quarter of a second
            status, _, _ = await post(session, id="after", at="1h")
            return status == 201

        await eventually(takes_changes, 10.0)
        for name in acknowledged:
            async with session.get(f"/v1/schedules/{name}") as response:
                assert (await response.json())["state"] == ("released" if name in due else "pending")
        assert "Traceback" not in node.log, node.log


@pytest.mark.slow
async def test_a_clean_stop_on_a_full_disk(small_disk: Path) -> None:
    async with serving(small_disk) as (node, session):
        acknowledged = await fill(session)
        node.send(signal.SIGTERM)
        assert await node.ended(STOP_S)
        assert "Traceback" not in node.log, node.log
        assert node.status == 0, node.log
    enlarge(small_disk)
    async with serving(small_disk) as (_, session):
        for name in acknowledged:
            async with session.get(f"/v1/schedules/{name}") as response:
                assert response.status == 200


def serve(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A node that should refuse to start."""
    command = [sys.executable, "-m", "tidings", "serve", "--port", "0", *argv]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=30)


def check_refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode == 1, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_a_start_on_a_full_disk(small_disk: Path) -> None:
    with (small_disk / "ballast").open("wb") as file, contextlib.suppress(OSError):
        file.write(bytes(8 * MIB))
    check_refused(serve(small_disk), "disk is full")


@pytest.mark.slow
def test_a_read_only_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    check_refused(serve(small_disk), "tidings.db cannot be opened")


@pytest.mark.slow
def test_a_read_only_disk_with_a_store(small_disk: Path) -> None:
    asyncio.run(make_store(small_disk / "tidings.db", 20))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    check_refused(serve(small_disk), "Check that its folder exists and is writable")


# Files that are not what they should be


async def make_store(path: Path, schedules: int = 300) -> None:
    store = await SqliteStore.open(path)
    assert await store.acquire(0, SECOND)
    for number in range(schedules):
        await store.apply([add(f"n{number}", NOW + number * SECOND, value=bytes(500))], NOW)
    await store.close()


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(100_000))


def text(path: Path) -> None:
    path.write_text("Dear diary, today I was not a database.\n" * 100)


def another_program(path: Path) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE diary (day TEXT, entry TEXT)")


def newer(path: Path) -> None:
    asyncio.run(make_store(path))
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.pragma("user_version", 99)


def cut_short(path: Path) -> None:
    asyncio.run(make_store(path))
    os.truncate(path, path.stat().st_size * 2 // 5)


def overwritten(path: Path) -> None:
    """Its first pages are whole, the rest is not."""
    asyncio.run(make_store(path))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(3 * 8192)
        file.write(random.Random(1).randbytes(size - 3 * 8192))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (garbage, "is not a Tidings store"),
        (text, "is not a Tidings store"),
        (another_program, "is a database of another program"),
        (newer, "was written by a newer Tidings"),
        (cut_short, "the file is damaged"),
        (overwritten, "the file is damaged"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "tidings.db"
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    check_refused(serve(tmp_path), said)
    assert not path.is_file() or len(path.read_bytes()) == len(before), "it was changed"


# Older layouts


@pytest.mark.slow
async def test_an_older_store_migrates_itself(tmp_path: Path) -> None:
    path = tmp_path / "tidings.db"
    await make_store(path)
    layouts = later(database.LAYOUTS, tmp_path, more="CREATE TABLE more (one INTEGER);")
    store = await SqliteStore.open(path, layouts=layouts)
    assert await store.acquire(10 * SECOND, SECOND)
    assert (await found(store, "n7")).due == NOW + 7 * SECOND
    await store.close()
    await (await SqliteStore.open(path, layouts=layouts)).close()  # and only once
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("user_version") == Layouts(layouts).known
        assert connection.execute("SELECT count(*) FROM more").get == 0
    with pytest.raises(StoreError, match="newer Tidings"):
        await SqliteStore.open(path)


@pytest.mark.slow
async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tidings.db"
    await make_store(path)
    version = Layouts(database.LAYOUTS).known
    text = "CREATE TABLE more (one INTEGER); INSERT INTO nowhere VALUES (1);"
    with pytest.raises(StoreError, match="nowhere"):
        await SqliteStore.open(path, layouts=later(database.LAYOUTS, tmp_path, more=text))
    store = await SqliteStore.open(path)
    assert await store.acquire(10 * SECOND, SECOND)
    assert (await found(store, "n7")).due == NOW + 7 * SECOND
    await store.close()
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("user_version") == version


# A disk that fails for a while


@pytest.fixture
def disk() -> Iterator[Disk]:
    with inserted() as made:
        yield made


def broken(_operation: str, _name: str) -> apsw.Error | None:
    return apsw.IOError("the disk is gone")


def full(operation: str, _name: str) -> apsw.Error | None:
    return apsw.FullError("the disk is full") if operation == "write" else None


def whole(_operation: str, _name: str) -> apsw.Error | None:
    return None


@pytest.mark.slow
@pytest.mark.parametrize("fault", [broken, full])
async def test_an_engine_continues_after_a_disk_failure(
    disk: Disk, tmp_path: Path, fault: Callable[[str, str], apsw.Error | None]
) -> None:
    store = await SqliteStore.open(tmp_path / "tidings.db")
    engine = Engine(store, SystemClock())
    await engine.start()
    acknowledged: list[str] = []

    async def schedule(name: str) -> bool:
        try:
            outcome = await engine.schedule(ACME, Request("greetings", b"v", id=name, at="PT0.2S"))
        except StoreError:
            return False
        acknowledged.append(outcome.id)
        return True

    for number in range(40):
        assert await schedule(f"before{number}")
    disk.broken = fault
    for number in range(40):
        await schedule(f"during{number}")
        await asyncio.sleep(0.02)
    disk.broken = whole

    async def is_back() -> bool:
        return await schedule(f"after{len(acknowledged)}")

    await eventually(is_back, 5.0)

    async def all_left() -> bool:
        return set(acknowledged) <= set(await left(store))

    await eventually(all_left, 5.0)
    for task in engine._tasks:
        assert not task.done(), f"{task} ended"
    names = await left(store)
    assert len(names) == len(set(names)), "something left twice"
    await engine.stop()


@pytest.mark.slow
async def test_a_merge_that_fails_loses_no_id(disk: Disk, tmp_path: Path) -> None:
    """Entries kept in memory for a slice that was never written must not count as done."""
    chance = random.Random(7)
    with lowered(checkpoints=False):
        store = await SqliteStore.open(tmp_path / "tidings.db")
        assert await store.acquire(0, SECOND)
        names = [f"n{number}" for number in range(200)]
        for start in range(0, len(names), 5):
            await store.apply([add(name, NOW + SECOND) for name in names[start : start + 5]], NOW)
            for _ in range(8):
                disk.broken = full if chance.random() < 0.3 else whole
                with contextlib.suppress(StoreError):
                    await store.tend(NOW)
                disk.broken = whole
        await tend(store)
        for now in (NOW, NOW + SECOND):
            assert {await state(store, name, now) for name in names} == {"pending"}
        await store.close()
        store = await SqliteStore.open(tmp_path / "tidings.db")
        assert await store.acquire(10 * SECOND, SECOND)
        assert {await state(store, name) for name in names} == {"pending"}
        words = [outcome.outcome for outcome in await store.apply([add(name, NOW + SECOND) for name in names], NOW)]
        assert set(words) == {"unchanged"}
        await drain(store, NOW + SECOND)
        assert await left(store) == sorted(names)
        await store.close()


async def test_a_program_that_locks_the_file_is_reported_and_outlasted(tmp_path: Path) -> None:
    path = tmp_path / "tidings.db"
    with patch.object(database, "BUSY_MS", 100):
        store = await SqliteStore.open(path)
    engine = Engine(store, SystemClock())
    await engine.start()
    await engine.schedule(ACME, Request("greetings", b"v", id="before", at="PT0.1S"))
    with contextlib.closing(apsw.Connection(str(path))) as intruder:
        intruder.set_busy_timeout(10_000)
        intruder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another program"):
            await engine.schedule(ACME, Request("greetings", b"v", id="during"))
        intruder.execute("ROLLBACK")

    async def is_back() -> bool:
        with contextlib.suppress(StoreError):
            return (await engine.schedule(ACME, Request("greetings", b"v", id="after"))).outcome == "scheduled"
        return False

    await eventually(is_back)

    async def both_left() -> bool:
        return await left(store) == ["after", "before"]

    await eventually(both_left)
    await engine.stop()


# The end of power, from the first moment on


class Cut:
    """Copies what would be left at a certain operation of the disk."""

    def __init__(self, disk: Disk, operation: int, path: Path, copy: Path) -> None:
        self.left = operation
        self._disk = disk
        self._files = (path, copy)

    def __call__(self, _operation: str, _name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self._disk.lose_power(*self._files, random.Random(str(self._files)))


async def begin(path: Path, number: int, cut: Cut | None = None) -> list[str]:
    """Open a store and add to it; the ids that were acknowledged before the cut."""
    store = await SqliteStore.open(path)
    acknowledged = []
    assert await store.acquire(number * 10 * SECOND, SECOND)
    for index in range(3):
        await store.apply([add(f"{number}-{index}", NOW + index * 86_400 * SECOND)], NOW)
        if cut is None or cut.left > 0:
            acknowledged.append(f"{number}-{index}")
    await store.close()
    return acknowledged


@pytest.mark.long
@pytest.mark.slow
async def test_power_loss_while_a_store_is_created(disk: Disk, tmp_path: Path) -> None:
    """At every single operation of the disk, from making the file to its third transaction and its end."""
    for operation in count(1):
        path, copy = tmp_path / f"{operation}.db", tmp_path / f"{operation}-after.db"
        disk.watch = cut = Cut(disk, operation, path, copy)
        acknowledged = await begin(path, 1, cut)
        if cut.left > 0:
            assert operation > 50, "the disk was hardly used"
            return
        disk.watch = lambda _operation, _name: None
        await begin(copy, 2)
        store = await SqliteStore.open(copy)
        assert await store.acquire(30 * SECOND, SECOND)
        assert {await state(store, name) for name in acknowledged} <= {"pending"}
        await store.close()

"""The rows of a long list are written in several transactions, and are there all at once or not at all."""

from pathlib import Path
from typing import Any

import pytest

from tests.contract.factories import ACME, NOW, SECOND, add
from tests.contract.test_tables import change, put
from tests.timeline.sqlite.test_tables import owned
from tidings.domain.notifications.tables import NOTIFICATIONS, NOTIFICATIONS_BY_USER
from tidings.domain.schedules.command import Add, UniformAdds
from tidings.domain.schedules.when import Once
from tidings.ports.tables import ANY, BulkGroups, GroupResult
from tidings.timeline.sqlite import row_writes
from tidings.timeline.sqlite.row_writes import BulkWrite
from tidings.timeline.sqlite.store import SqliteStore

COUNT = 30
DUE = NOW + 5 * SECOND


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_writes, "AHEAD_ROWS", 12)


def _groups(versions: list[int]) -> BulkGroups:
    groups = BulkGroups(table="notification", required_table="app_user", own_column=0, tenant=ACME, are_new=True)
    adds = UniformAdds(Add(ACME, "", "notify.email", Once(DUE), b"", b"", DUE))
    for number, version in enumerate(versions):
        name = f"n{number:02}"
        groups.names.append(name)
        groups.own.append(f"u{number:02}")
        groups.versions.append(version)
        groups.bodies.append(b'{"n":%d}' % number)
        adds.ids.append(name)
        adds.messages.append(b"m")
        adds.contents.append(name.encode().ljust(16))
        adds.key_hashes.append(number)
        adds.labels.append(b"{}")
    values = put("n", batch="b", created=5).values
    groups.parts.append((values, adds))
    return groups


class World:
    """A store with users, and a list for all of them that is about to be written."""

    def __init__(self, store: SqliteStore, versions: list[int]) -> None:
        self.store = store
        self.groups = _groups(versions)
        self.write = BulkWrite(self.groups)

    @classmethod
    async def open(cls, path: Path) -> "World":
        store = await owned(path)
        await store.apply([add("first", DUE, topic="notify.email")], NOW)  # the topic is there
        for number in range(COUNT):
            assert await change(store, put(f"u{number:02}", table="app_user"))
        [(texts,)] = store._reader.execute(
            "SELECT group_concat(version) FROM (SELECT version FROM app_user ORDER BY id)"
        )
        return cls(store, [*map(int, texts.split(","))])

    async def write_ahead(self, *starts: int) -> None:
        for start in starts:
            await self.store._writer_thread.run(self.write.write_ahead, self.store._writer, start)

    async def finish(self) -> list[GroupResult]:
        return await self.store._writer_thread.run(self.store.tables._commit, self.groups, NOW, self.write)

    async def found(self) -> int:
        """How many are found by a search; whoever is found by one is found by another."""
        found = len(await self.store.tables.find(NOTIFICATIONS, ACME, (), NOW, limit=100))
        several = [(f"u{number:02}",) for number in range(COUNT)]
        assert sum(await self.store.tables.exist(NOTIFICATIONS_BY_USER, ACME, several, NOW)) == found
        return found

    def stored(self, table: str = "notification") -> int:
        count: Any = self.store._reader.execute(f"SELECT count(*) FROM {table}").get
        return int(count)


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    opened = await World.open(tmp_path / "one.db")
    yield opened
    await opened.store.close()


async def test_a_list_is_there_once_its_last_transaction_is_committed(world: World) -> None:
    assert [*world.write.ahead()] == [0, 12, 24]
    await world.write_ahead(0, 12)
    assert world.stored() == 24
    assert await world.found() == 0
    assert await change(world.store, put("other", table="inbox"))  # takes a version of its own
    await world.write_ahead(24)
    results = await world.finish()
    assert [result.version for result in results] == [*range(results[0].version, results[0].version + COUNT)]
    assert await world.found() == COUNT
    assert world.stored("unfinished") == 0
    rows = await world.store.tables.find(NOTIFICATIONS, ACME, (), NOW, limit=100)
    assert [(row.key.name, row.version) for row in rows] == [
        (name, result.version) for name, result in zip(world.groups.names, results, strict=True)
    ]
    assert await change(world.store, put("later", table="inbox"))


async def test_a_commit_writes_long_lists_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    write_ahead = BulkWrite.write_ahead

    def recorded(self: BulkWrite, writer: Any, start: int) -> None:
        starts.append(start)
        write_ahead(self, writer, start)

    monkeypatch.setattr(BulkWrite, "write_ahead", recorded)
    results = await world.store.tables.commit(world.groups, NOW)
    assert all(result.version for result in results)
    assert starts == [0, 12, 24]
    assert await world.found() == COUNT
    assert not world.store._writer.unfinished


@pytest.mark.parametrize("reason", ["known names", "twins", "short"])
async def test_other_lists_are_written_in_one_transaction(world: World, reason: str) -> None:
    if reason == "known names":
        world.groups.are_new = False
    elif reason == "twins":
        world.groups.names[3] = world.groups.names[4]
    else:
        world.groups = _groups(world.groups.versions[:12])
    assert not BulkWrite(world.groups).ahead()


async def test_what_a_crash_leaves_of_a_list_is_deleted(world: World, tmp_path: Path) -> None:
    await world.write_ahead(0, 12)
    await world.store.close()
    world.store = await owned(tmp_path / "one.db")
    assert world.stored() == 24
    assert await world.found() == 0
    while await world.store.tend(NOW + 60 * SECOND):
        pass
    assert world.stored() == world.stored("unfinished") == 0


async def test_maintenance_leaves_a_list_that_goes_on(world: World) -> None:
    await world.write_ahead(0, 12)
    while await world.store.tend(NOW + 60 * SECOND):
        pass
    assert world.stored() == 24
    assert all(result.version for result in await world.finish())
    assert await world.found() == COUNT


async def test_after_another_owner_has_deleted_its_rows_a_list_is_written_again(world: World) -> None:
    await world.write_ahead(0, 12)

    def sweep() -> None:
        with world.store._writer.transaction() as connection:
            row_writes.sweep_unfinished(connection, ())

    await world.store._writer_thread.run(sweep)
    await world.write_ahead(24)
    assert world.stored() == 0
    assert all(result.version for result in await world.finish())
    assert await world.found() == COUNT


async def test_a_part_after_a_missing_one_is_left_to_the_last_transaction(world: World) -> None:
    await world.write_ahead(12, 0, 24)
    assert world.stored() == 12
    assert all(result.version for result in await world.finish())
    assert await world.found() == COUNT


async def test_if_a_user_has_changed_nothing_is_left_of_what_was_written_ahead(world: World) -> None:
    await world.write_ahead(0, 12)
    assert await change(world.store, put("u05", b"changed", ANY, table="app_user"))
    results = await world.finish()
    assert [number for number, result in enumerate(results) if not result.version] == [5]
    assert await world.found() == world.stored() == COUNT - 1
    assert world.stored("unfinished") == 0


async def test_a_refused_schedule_leaves_no_row(world: World) -> None:
    await world.store.apply([add("n05", DUE, value=b"other"), add("n27", DUE, value=b"other")], NOW)
    await world.write_ahead(0, 12)
    results = await world.finish()
    assert [number for number, result in enumerate(results) if not result.version] == [5, 27]
    assert await world.found() == world.stored() == COUNT - 2

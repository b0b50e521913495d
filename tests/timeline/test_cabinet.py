"""The cabinet in a file: it outlives its process, its owner alone writes it, and reads search it by its keys."""

import re
from pathlib import Path

import pytest

from tests.contract.making import NOW, SECOND
from tests.contract.test_cabinet import change, got, kept, key, names, put
from tidings.domain.errors import NotOwner, StoreError
from tidings.ports import ANY, Remove
from tidings.timeline.sqlite.cabinet import SHORT_KEYS_MAX
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.store import SqliteStore


async def owned(path: Path) -> SqliteStore:
    store = await SqliteStore.open(path)
    assert await store.acquire(0, SECOND)
    return store


async def test_documents_and_their_versions_outlive_the_process(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    assert await change(store, put("ann", b"1", tags=("t",)), put("gone"))
    before, last = await kept(store, "ann"), await kept(store, "gone")
    assert await change(store, Remove(key("gone")))
    await store.close()
    store = await owned(tmp_path / "one.db")
    assert await kept(store, "ann") == before
    assert await names(store, "t") == ["ann"]
    assert await change(store, put("gone"))
    assert (await kept(store, "gone")).version > last.version
    await store.close()


async def test_only_the_owner_changes_them_and_all_may_read(tmp_path: Path) -> None:
    owner = await owned(tmp_path / "one.db")
    stands_by = await SqliteStore.open(tmp_path / "one.db")
    assert await change(owner, put("ann", tags=("t",)))
    assert await kept(stands_by, "ann") == await kept(owner, "ann")
    assert await names(stands_by, "t") == ["ann"]
    with pytest.raises(NotOwner):
        await change(stands_by, put("bob"))
    await owner.resign()
    assert await stands_by.acquire(0, SECOND)
    with pytest.raises(NotOwner):
        await change(owner, put("bob"))
    assert await change(stands_by, put("ann", b"new", (await kept(owner, "ann")).version), put("bob"))
    assert (await kept(owner, "ann")).body == b"new"
    await owner.close()
    await stands_by.close()


async def test_what_fails_changes_nothing(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    assert await change(store, put("ann", tags=("t",)))
    store._connection.execute("CREATE TEMP TRIGGER full BEFORE INSERT ON tagged BEGIN SELECT raise(ABORT, 'full'); END")
    with pytest.raises(StoreError, match="full"):
        await change(store, put("ann", b"new", ANY, tags=("t",)), put("bob", tags=("t",)))
    store._connection.execute("DROP TRIGGER full")
    assert (await kept(store, "ann")).body == b"{}"
    assert await got(store, "bob") is None
    assert await change(store, put("bob", tags=("t",)))
    await store.close()


async def test_few_and_many_are_read_alike(tmp_path: Path) -> None:
    """Few are read on the loop, more by a thread."""
    store = await owned(tmp_path / "one.db")
    every = [f"n{number}" for number in range(2 * SHORT_KEYS_MAX)]
    assert await change(store, *(put(name) for name in every))
    many = await store.cabinet.get([key(name) for name in every], NOW)
    assert many == [await kept(store, name) for name in every]
    await store.close()
    with pytest.raises(StoreError):
        await store.cabinet.get([key(name) for name in every], NOW)


@pytest.mark.parametrize(
    ("name", "searches"),
    [
        ("get", ["document USING INDEX sqlite_autoindex_document_1 (tenant=? AND kind=? AND name=?)"]),
        ("find", ["t USING PRIMARY KEY", "d USING INDEX sqlite_autoindex_document_1"]),
        ("find_newest", ["t USING PRIMARY KEY", "d USING INDEX sqlite_autoindex_document_1"]),
        ("kept", ["document USING INDEX sqlite_autoindex_document_1"]),
        ("update", ["document USING INTEGER PRIMARY KEY"]),
        ("untag", ["tagged USING PRIMARY KEY (tenant=? AND kind=? AND tag=? AND order=? AND name=?)"]),
        ("expired", ["document USING INDEX document_until (until<?)"]),
    ],
)
async def test_nothing_is_scanned_or_sorted(tmp_path: Path, name: str, searches: list[str]) -> None:
    store = await owned(tmp_path / "one.db")
    sql = queries("cabinet")[name]
    marks = set(re.findall(r"\?(\d)", sql)) or range(sql.count("?"))
    steps = [row[3] for row in store._connection.execute("EXPLAIN QUERY PLAN " + sql, [0] * len(marks))]
    for step, search in zip(steps, searches, strict=True):
        assert step.startswith(f"SEARCH {search}"), steps
    await store.close()

"""The cabinet in a file: it outlives its process, its owner alone writes it, and reads search it by its keys."""

import asyncio
import re
from pathlib import Path

import apsw
import pytest

from tests.contract.factories import NOW, SECOND
from tests.contract.stores import opened
from tests.contract.test_documents import change, got, kept, key, names, put
from tidings.domain.errors import NotOwner, StoreError
from tidings.ports import ANY, Key, Put, Remove
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.documents import SHORT_KEYS_MAX
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
    many = await store.documents.get([key(name) for name in every], NOW)
    assert many == [await kept(store, name) for name in every]
    await store.close()
    with pytest.raises(StoreError):
        await store.documents.get([key(name) for name in every], NOW)


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
    sql = queries("documents")[name]
    marks = set(re.findall(r"\?(\d)", sql)) or range(sql.count("?"))
    steps = [row[3] for row in store._connection.execute("EXPLAIN QUERY PLAN " + sql, [0] * len(marks))]
    for step, search in zip(steps, searches, strict=True):
        assert step.startswith(f"SEARCH {search}"), steps
    await store.close()


async def test_what_was_removed_is_in_no_file(tmp_path: Path) -> None:
    """Neither what was changed before, nor what lay on pages of its own, nor the tags."""
    async with opened("sqlite", tmp_path) as store:
        others = [[Put(Key("acme", "user", f"bob{n}"), b"bob" * 50, 0, ("all", f"user:bob{n}"))] for n in range(200)]
        await store.documents.change(others, NOW)
        for turn in range(3):
            groups = [
                [Put(Key("acme", "user", f"ada{n}"), b"%d-lovelace" % turn * (n * 9 + 1), -1, ("all", "at:ada"))]
                for n in range(200)
            ]
            await store.documents.change(groups, NOW)
        assert _said(tmp_path, b"lovelace", b"at:ada")
        for first in (0, 100):
            gone = [[Remove(Key("acme", "user", f"ada{n}"))] for n in range(first, first + 100)]
            assert all(await store.documents.change(gone, NOW))
        await store.documents.wipe()
        assert not _said(tmp_path, b"lovelace", b"at:ada")
        assert _said(tmp_path, b"bob199")


async def test_who_reads_holds_up_nobody_but_who_wipes(tmp_path: Path) -> None:
    store = await owned(tmp_path / "one.db")
    assert await change(store, put("ada", b"lovelace"))
    reader = apsw.Connection(str(tmp_path / "one.db"))
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM document").get == 1
    assert await change(store, Remove(key("ada")))
    wiping = asyncio.create_task(store.documents.wipe())
    assert await change(store, put("bob"))
    assert not wiping.done()
    reader.execute("ROLLBACK")
    await wiping
    assert not _said(tmp_path, b"lovelace")
    reader.close()
    await store.close()


def _said(folder: Path, *words: bytes) -> bool:
    return any(word in file.read_bytes() for file in folder.iterdir() if file.is_file() for word in words)

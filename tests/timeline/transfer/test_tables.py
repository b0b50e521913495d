"""Rows of the tables move from one store to another like everything else: complete, once, and without overwriting."""

import apsw
import pytest

from tests.contract.factories import DAY, NOW
from tests.contract.test_tables import ODD, change, got, kept, key, names, put
from tests.timeline.transfer.test_transfer import WAYS, AnyStore, Places, live, moved, places
from tidings.domain.notifications import tables as declared
from tidings.domain.notifications.tables import TABLES, Index
from tidings.ports.tables import ANY, Remove
from tidings.timeline.transfer.protocol import Move, Progress, encode_move, encode_progress

__all__ = ["places"]

pytestmark = [pytest.mark.slow]

COUNT = 2_300  # more than two chunks

Whole = tuple[bytes, int | None]


async def every(store: AnyStore, table: str, tenant: str = "acme") -> dict[str, Whole]:
    """All rows of a table, by key, without their versions."""
    found = await store.tables.find(Index(table, f"{table}_all"), tenant, (), NOW, limit=2 * COUNT)
    return {row.key.name: (row.body, row.until) for row in found}


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_rows_arrive_as_they_were(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source = await live(await places.open(begin))
    many = [put(f"n{number}", b"x" * number, batch=f"t{number % 3}", created=number) for number in range(COUNT)]
    odd = [put(name, b"", until=NOW + 1_000 * DAY, created=-1, tenant="odd") for name in ODD]
    large = [put(f"large {number}", b"y" * 1_500_000) for number in range(4)]
    tables = [put("one", table.encode(), table=table, tenant="each") for table in TABLES]
    assert await change(source, *many, *odd, *large, *tables, put("over", until=1))
    before = await every(source, "notification")
    await source.close()

    target, done = await moved(places, begin, end)
    total = COUNT + len(ODD) + 4 + len(TABLES) + 1
    assert done.progress.moved == {"rows": total}, "also what has expired, which is then deleted there"
    assert not done.progress.conflicts
    assert await every(target, "notification") == before
    assert list(await every(target, "notification", "odd")) == sorted(ODD)
    assert await names(target, declared.NOTIFICATIONS_BY_GROUP, "t1", limit=3) == ["n1", "n4", "n7"]
    found = await target.tables.get([key("one", table, "each") for table in TABLES], NOW)
    assert [row.body for row in found if row is not None] == [table.encode() for table in TABLES]
    assert await change(target, put("n7", b"new", (await kept(target, "n7")).version))


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_a_second_run_brings_nothing_back(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source = await live(await places.open(begin))
    assert await change(source, *(put(f"n{number}") for number in range(50)))
    await source.close()
    target, first = await moved(places, begin, end)
    assert await change(target, Remove(key("n7")), put("n8", b"new", ANY))
    await target.close()

    target, second = await moved(places, begin, end)
    assert second.progress == first.progress
    assert await got(target, "n7") is None
    assert (await kept(target, "n8")).body == b"new"


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_a_row_that_is_there_is_never_overwritten(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source, target = await live(await places.open(begin)), await live(await places.open(end))
    assert await change(source, *(put(name, b"1") for name in ("same", "other", "expired", "new")))
    there = [put("same", b"1"), put("other", b"theirs"), put("expired", b"2", until=1)]
    assert await change(target, *there)
    await source.close()
    await target.close()

    target, done = await moved(places, begin, end)
    assert done.progress.moved == {"rows": 2}
    assert done.progress.existing == {"rows": 1}
    assert done.progress.conflicts == {"rows": 1}
    assert done.progress.named == ("notification acme/other",)
    bodies = {name: body for name, (body, _) in (await every(target, "notification")).items()}
    assert bodies == {"same": b"1", "other": b"theirs", "expired": b"1", "new": b"1"}


@pytest.mark.parametrize("after", ['["documents",[7]]', '["zones",["UTC",""]]', '["finished",[0,0]]'])
async def test_a_copy_that_version_0_1_began_is_resumed(places: Places, after: str) -> None:
    """It moved documents, which both stores have migrated to rows since; its mark has no counts."""
    begin, end = places.new("sqlite"), places.new("sqlite")
    source, target = await live(await places.open(begin)), await live(await places.open(end))
    rows = [put(f"n{number}") for number in range(20)]
    there = rows if "finished" in after else rows[:7]
    assert await change(source, *rows)
    assert await change(target, *there)
    mark = Move(transfer="t", to="there", identity=target.identity, at=NOW)
    seen = {} if "zones" in after else {"documents": len(there)}
    execute(begin, "INSERT INTO moved VALUES (1, ?)", encode_move(mark))
    execute(end, "INSERT INTO carried VALUES ('t', ?)", encode_progress(Progress(after=after, moved=seen)))
    await source.close()
    await target.close()

    target, done = await moved(places, begin, end)
    assert not done.progress.conflicts
    assert len(await every(target, "notification")) == 20


def execute(place: tuple[str, str], statement: str, value: bytes) -> None:
    connection = apsw.Connection(place[1])
    connection.execute(statement, (value,))
    connection.close()

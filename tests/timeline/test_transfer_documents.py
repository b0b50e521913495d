"""Documents move from one store to another like everything else: complete, once, and without overwriting."""

import pytest

from tests.contract.factories import ACME, DAY, NOW, SECOND, add, applied, drain, found
from tests.contract.test_documents import ODD, change, kept, key, names, put
from tests.contract.test_rules import scheduled
from tests.timeline.test_transfer import WAYS, AnyStore, Places, check_refused, live, moved, places
from tidings.domain.recurrence.rule import Local
from tidings.ports import ANY, Document, Remove

__all__ = ["places"]

pytestmark = [pytest.mark.slow]

COUNT = 2_300  # more than two chunks


async def every(store: AnyStore) -> dict[str, Document]:
    """All users under a tag, by name."""
    found = await store.documents.find(ACME, "user", "all", NOW, limit=2 * COUNT)
    return {document.key.name: document for document in found}


def bare(documents: dict[str, Document]) -> dict[str, tuple[object, ...]]:
    """Without their versions, which are those of a store."""
    return {name: (each.key, each.body, each.tags, each.order, each.until) for name, each in documents.items()}


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_documents_arrive_as_they_were(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source = await live(await places.open(begin))
    many = [put(f"n{number}", b"x" * number, tags=("all", f"t{number % 3}"), order=number) for number in range(COUNT)]
    odd = [put(name, b"", tags=("all",), until=NOW + 1_000 * DAY, order=-1) for name in ODD]
    large = [put(f"large {number}", b"y" * 1_500_000, tags=("all",)) for number in range(4)]
    assert await change(source, *many, *odd, *large, put("over", until=1))
    before = await every(source)
    assert len(before) == COUNT + len(ODD) + 4
    await source.close()

    target, done = await moved(places, begin, end)
    assert done.progress.moved == {"documents": len(before) + 1}, "also what has ended, which is then removed there"
    assert not done.progress.conflicts
    assert bare(await every(target)) == bare(before)
    assert await names(target, "t1", limit=3) == ["n1", "n4", "n7"]
    document = await kept(target, "n7")
    assert await change(target, put("n7", b"new", document.version))


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_a_second_run_brings_nothing_back(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source = await live(await places.open(begin))
    assert await change(source, *(put(f"n{number}", tags=("all",)) for number in range(50)))
    await source.close()
    target, first = await moved(places, begin, end)
    assert await change(target, Remove(key("n7")), put("n8", b"new", ANY))
    await target.close()

    target, second = await moved(places, begin, end)
    assert second.progress == first.progress
    assert len(await every(target)) == 48
    assert (await kept(target, "n8")).body == b"new"


@pytest.mark.parametrize(("origin", "goal"), WAYS)
async def test_a_document_that_is_there_is_never_overwritten(places: Places, origin: str, goal: str) -> None:
    begin, end = places.new(origin), places.new(goal)
    source, target = await live(await places.open(begin)), await live(await places.open(end))
    assert await change(source, *(put(name, b"1", tags=("all",)) for name in ("same", "other", "ended", "new")))
    there = [put("same", b"1", tags=("all",)), put("other", b"theirs", tags=("all",)), put("ended", b"2", until=1)]
    assert await change(target, *there)
    await source.close()
    await target.close()

    target, done = await moved(places, begin, end)
    assert done.progress.moved == {"documents": 2}
    assert done.progress.existing == {"documents": 1}
    assert done.progress.conflicts == {"documents": 1}
    assert done.progress.named == ("user acme/other",)
    bodies = {name: each.body for name, each in (await every(target)).items()}
    assert bodies == {"same": b"1", "other": b"theirs", "ended": b"1", "new": b"1"}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_notification_that_no_worker_has_read_is_not_left_behind(places: Places, kind: str) -> None:
    begin, end = places.new(kind), places.new("sqlite")
    source = await live(await places.open(begin))
    told = [add("one", topic="notify.email"), add("two", topic="notify.sms.high"), add("dead", topic="notify.dead")]
    await applied(source, *told, add("other", topic="notify.other"))
    await drain(source)
    for topic in ("notify.email", "notify.sms.high"):
        text = f"tidings.deliver on acme/{topic}: 1 record\n"
        await check_refused(source, places, end, text)
    for name, topic in (("one", "notify.email"), ("two", "notify.sms.high")):
        partition = (await found(source, name)).partition
        assert partition is not None
        await source.commit(ACME, topic, "tidings.deliver", {partition: 1})
    await source.close()
    await moved(places, begin, end)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_one_wall_time_is_counted_as_a_one_shot(places: Places, kind: str) -> None:
    begin, end = places.new(kind), places.new("sqlite")
    source = await live(await places.open(begin))
    await applied(source, scheduled(Local((NOW + DAY) // SECOND, "Europe/Berlin")))
    await source.close()
    _, done = await moved(places, begin, end)
    assert (done.counts["one_shots"], done.counts["recurring"]) == (1, 0)
    assert done.progress.moved["one_shots"] == 1

"""The library: the same engine in process, on a file and in memory."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tidings
from tidings.clock import SystemClock
from tidings.dispatch.dispatcher import Dispatcher
from tidings.domain.errors import Invalid, NotOwner, TidingsError
from tidings.library import Record, Tidings

PATIENCE_S = 10.0


@pytest.fixture(params=["memory", "file"])
async def t(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tidings]:
    path = ":memory:" if request.param == "memory" else str(tmp_path / "tidings.db")
    async with tidings.open(path) as opened:
        yield opened


async def take(t: Tidings, topic: str, count: int) -> list[Record]:
    """The next records of a topic."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        async for record in t.follow(topic):
            records.append(record)
            if len(records) == count:
                break
    return records


async def test_schedule_and_follow(t: Tidings) -> None:
    before = datetime.fromtimestamp(SystemClock().now() / 1e6, UTC)
    outcome = await t.schedule(
        "greetings", {"hello": "wörld"}, at="+50ms", id="a", key="k", headers=[("x", "1"), ("x", None)]
    )
    assert (outcome.id, outcome.outcome) == ("a", "scheduled")
    [record] = await take(t, "greetings", 1)
    assert record.value == '{"hello":"wörld"}'.encode()
    assert record.json() == {"hello": "wörld"}
    assert (record.key, record.headers) == (b"k", (("x", b"1"), ("x", None)))
    assert (record.id, record.occurrence) == ("a", "a/1/1")
    assert record.due_at - before >= timedelta(milliseconds=49)
    assert record.released_at >= record.due_at
    assert record.late_ms >= 0
    assert record.late_ms == pytest.approx((record.released_at - record.due_at).total_seconds() * 1000)


@pytest.mark.parametrize(
    ("value", "bytes_"),
    [
        ("text", b"text"),
        (b"\xff\x00", b"\xff\x00"),
        (bytearray(b"\xff"), b"\xff"),
        (memoryview(b"\xff"), b"\xff"),
        ([1, None], b"[1,null]"),
        (None, None),
    ],
)
async def test_values_are_released_unchanged(t: Tidings, value: object, bytes_: bytes | None) -> None:
    await t.publish("values", value, headers={"a": b"\xfe"})
    [record] = await take(t, "values", 1)
    assert record.value == bytes_
    assert record.headers == (("a", b"\xfe"),)


async def test_times_in_every_form(t: Tidings) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert (await t.schedule("x", at=at, id="1")).due_at == at
    assert (await t.schedule("x", at=at.astimezone().isoformat(), id="2")).due_at == at
    now = datetime.now(UTC)
    due = (await t.schedule("x", at=timedelta(hours=1), id="3")).due_at
    assert due is not None
    assert timedelta(minutes=59) < due - now < timedelta(minutes=61)
    assert (await t.schedule("x", at=timedelta(hours=1), id="3")).outcome == "unchanged"
    with pytest.raises(Invalid, match="no time zone"):
        await t.schedule("x", at=datetime(2030, 1, 1))  # noqa: DTZ001 - a naive one is what is refused


async def test_changes_and_reads(t: Tidings) -> None:
    await t.schedule("x", "1", at="1h", id="a", labels={"n": "1"}, expires_after=timedelta(minutes=1))
    assert (await t.replace("a", "x", "2", at="1h")).outcome == "replaced"
    assert (await t.pause("a")).outcome == "paused"
    found = await t.find("a")
    assert found is not None
    assert found.state == "paused"
    assert (await t.resume("a")).outcome == "resumed"
    assert (await t.fire("a")).outcome == "fired"
    [record] = await take(t, "x", 1)
    assert record.text == "2"
    assert (await t.cancel("a")).outcome == "already_released"
    assert (await t.cancel("b")).outcome == "unknown"
    assert await t.find("b") is None
    assert [event.event for event in await t.explain("a")][-1] == "released"
    assert await t.explain("b") == []
    assert (await t.replace("a", "x", "3", at="1h", reuse=True)).outcome == "scheduled"
    assert [schedule.id async for schedule in t.list(state="pending")] == ["a"]


async def test_a_batch_with_one_invalid_schedule(t: Tidings) -> None:
    requests = [tidings.make_request("many", str(n), f"id-{n}", at="1h") for n in range(1_500)]
    requests[7] = tidings.make_request("not a topic!", "7", "bad")
    outcomes = await t.schedule_many(requests)
    assert [outcome.id for outcome in outcomes] == [request.id for request in requests]
    assert [outcome.outcome for outcome in outcomes].count("scheduled") == 1_499
    assert outcomes[7].outcome == "rejected"
    assert outcomes[7].reason is not None
    assert outcomes[7].reason.startswith("topic: ")
    assert outcomes[7].field == "topic"
    assert len([schedule async for schedule in t.list(prefix="id-1")]) == 611


async def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "tidings.db")
    async with tidings.open(path, tenant="a") as a:
        await a.schedule("x", "1", at="1h", id="1")
    async with tidings.open(path, tenant="b") as b:
        assert await b.find("1") is None
        assert b.tenant == "b"


async def test_a_schedule_shows_its_message(t: Tidings) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    await t.schedule("x", {"n": 1}, id="a", at=at, key="k", headers={"h": "1"}, labels={"l": "2"}, priority="low")
    found = await t.find("a")
    assert found is not None
    assert (found.json(), found.text, found.value) == ({"n": 1}, '{"n":1}', b'{"n":1}')
    assert (found.key, found.headers, found.labels, found.priority) == (b"k", (("h", b"1"),), {"l": "2"}, "low")
    assert (found.id, found.topic, found.state, found.due_at) == ("a", "x", "pending", at)
    assert (found.occurrence, found.generation, found.finished_at, found.reason) == (1, 1, None, None)
    [listed] = [schedule async for schedule in t.list(label=("l", "2"))]
    assert listed.id == "a"
    [event] = await t.explain("a")
    assert (event.event, event.at, event.due_at) == ("accepted", found.accepted_at, at)
    await t.cancel("a")
    cancelled = await t.find("a")
    assert cancelled is not None
    assert cancelled.finished_at is not None
    assert (cancelled.state, cancelled.labels) == ("cancelled", {"l": "2"})


async def break_engine(t: Tidings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the dispatcher raise an unexpected error."""

    async def fail(_dispatcher: Dispatcher) -> int:
        raise OSError("broken")

    monkeypatch.setattr(Dispatcher, "tick", fail)
    t.engine.lanes.wake()
    with pytest.raises(TidingsError, match=r"releases nothing any more: OSError\('broken'\)"):
        await take(t, "x", 1)


async def test_a_program_is_informed_that_its_engine_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = tidings.open(":memory:")
    t = await opened.__aenter__()
    await break_engine(t, monkeypatch)
    for call in (t.publish("x"), t.find("a"), t.cancel("a"), t.schedule_many([tidings.make_request("x")])):
        with pytest.raises(TidingsError, match="releases nothing any more"):
            await call
    with pytest.raises(TidingsError, match="releases nothing any more"):
        t.follow("x")
    with pytest.raises(TidingsError, match="releases nothing any more"):
        await opened.__aexit__(None, None, None)


async def test_an_error_of_the_program_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = tidings.open(":memory:")
    await break_engine(await opened.__aenter__(), monkeypatch)
    mine = ValueError("mine")
    await opened.__aexit__(ValueError, mine, None)


@pytest.mark.slow
async def test_a_file_in_use_is_refused_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.library.embedded.OWNERSHIP_TIMEOUT_S", 0.3)
    path = str(tmp_path / "tidings.db")
    async with tidings.open(path) as first:
        with pytest.raises(NotOwner, match="another process owns"):
            async with tidings.open(path):
                pytest.fail("two owners")
        assert (await first.publish("x", "1")).outcome in {"scheduled", "released"}


async def test_tidings_must_be_opened_before_use() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await tidings.open(":memory:").cancel("a")


def test_the_package_exports_its_public_names() -> None:
    assert all(getattr(tidings, name) is not None for name in tidings.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(tidings, "nothing")  # noqa: B009 - mypy knows that it is not there
    assert set(tidings.__all__) <= set(dir(tidings))

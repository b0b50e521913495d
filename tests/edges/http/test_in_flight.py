"""Schedules in flight to Kafka: they cannot be changed, and show the reason if they are held."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.stores import new_sqlite
from tests.edges.http.site import Site, serving
from tidings.__main__ import NodeHooks
from tidings.edges.cli.main import main
from tidings.engine import Settings
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore

WHY = "there is no such topic on Kafka: make it"
OTHER = {"topic": "orders", "value": "other"}


@pytest.fixture(params=["memory", "sqlite"])
async def flying(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """A server that releases to Kafka, without a forwarder: `one` stays in flight."""
    store = MemoryStore() if request.param == "memory" else await new_sqlite(tmp_path / "tidings.db")
    async with serving(store, settings=Settings(bus="kafka")) as site:
        await site.add(id="one", topic="orders", at="+0.01s", value="v")
        await site.state_of("one", "in_flight")
        yield site


async def hold(site: Site) -> None:
    (lane,) = site.engine.store.lanes()
    await lane.hold([record.offset for record in await lane.outgoing(0, 10)], WHY)


async def recurring(site: Site) -> None:
    """A recurring schedule whose first occurrence is in the outbox."""
    await site.add(id="daily", topic="orders", every="R/2026-01-01T00:00:00Z/P10Y", value="v")
    (lane,) = site.engine.store.lanes()

    async def is_there() -> bool:
        return "daily" in [record.id for record in await lane.outgoing(0, 10)]

    assert await eventually(is_there)


async def command(site: Site, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    capsys.readouterr()
    code = await asyncio.to_thread(main, [*argv, "--url", site.url], NodeHooks())
    return code, "".join(capsys.readouterr())


CHANGES = [
    ("DELETE", "/v1/schedules/one", None),
    ("POST", "/v1/schedules/one/pause", None),
    ("PUT", "/v1/schedules/one", OTHER),
]
RECURRING_CHANGES = [
    *CHANGES,
    ("POST", "/v1/schedules/one/resume", None),
    ("POST", "/v1/schedules/one/fire", None),
]


@pytest.mark.parametrize(("method", "path", "document"), CHANGES, ids=["cancel", "pause", "replace"])
async def test_a_refused_change_has_the_reason_why_it_is_held(
    flying: Site, method: str, path: str, document: dict[str, str] | None
) -> None:
    under_way = (await flying.call(method, path, document)).problem
    assert (under_way["status"], under_way["outcome"]) == (409, "in_flight")
    assert "reason" not in under_way
    assert "on its way to Kafka" in under_way["detail"]
    await hold(flying)
    kept = (await flying.call(method, path, document)).problem
    assert (kept["outcome"], kept["reason"]) == ("in_flight", WHY)
    assert kept["detail"].endswith(f"held for now: {WHY}")


@pytest.mark.parametrize("kept_back", [False, True], ids=["on its way", "kept back"])
@pytest.mark.parametrize(
    ("method", "path", "document"), RECURRING_CHANGES, ids=["cancel", "pause", "replace", "resume", "fire"]
)
async def test_a_change_of_a_recurring_schedule_names_the_occurrence_in_flight(
    flying: Site, method: str, path: str, document: dict[str, str] | None, kept_back: bool
) -> None:
    await recurring(flying)
    if kept_back:
        await hold(flying)
    reply = await flying.call(method, path.replace("one", "daily"), document)
    assert (reply.status, reply.document["in_flight"]) == (200, 1)
    if method == "DELETE":
        again = await flying.call(method, "/v1/schedules/daily")
        assert (again.status, again.document) == (200, reply.document)


async def test_the_command_line_shows_it_too(flying: Site, capsys: pytest.CaptureFixture[str]) -> None:
    await recurring(flying)
    code, text = await command(flying, capsys, "cancel", "daily")
    assert code == 0
    assert "note: occurrence 1 is on its way to Kafka already, and will appear" in text


async def test_explain_shows_the_reason_and_no_release(flying: Site, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = await command(flying, capsys, "explain", "one")
    assert code == 0
    assert text.splitlines()[0] == "one in_flight"
    assert "released" not in text, "it has left the timeline and is not on Kafka"
    await hold(flying)
    code, text = await command(flying, capsys, "explain", "one")
    assert text.splitlines()[0] == f"one in_flight, held: {WHY}"
    explained = (await flying.call("GET", "/v1/schedules/one/explain")).document
    assert (explained["reason"], [event["event"] for event in explained["history"]]) == (WHY, ["accepted"])


async def test_the_command_line_names_its_own_commands(flying: Site, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = await command(flying, capsys, "cancel", "one")
    assert code == 4
    assert "explain` shows its state" in text
    await hold(flying)
    code, text = await command(flying, capsys, "cancel", "one")
    assert code == 4
    assert text.rstrip().endswith(f"held for now: {WHY}")


async def test_rejection_records_are_listed_only_by_their_topic(flying: Site) -> None:
    refusals = "rejections.default"
    pending_refusal = (await flying.add(topic=refusals, at="+0.01s", value="why"))["id"]
    await flying.state_of(pending_refusal, "in_flight")
    mine = (await flying.add(topic=refusals, value="mine"))["id"]
    named = (await flying.add(id="two", topic=refusals, at="+0.01s"))["id"]
    await flying.state_of(named, "in_flight")

    async def ids(query: str) -> set[str]:
        listed = (await flying.call("GET", f"/v1/schedules{query}")).document["schedules"]
        return {row["id"] for row in listed}

    assert await ids("") == {"one", mine, named}
    assert await ids("?state=in_flight") == {"one", named}
    assert await ids(f"?topic={refusals}") == {pending_refusal, mine, named}

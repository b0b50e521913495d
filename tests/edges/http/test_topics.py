"""Topics over HTTP: publish, read, wait, follow."""

import asyncio
import base64
import json
from typing import Any

import aiohttp
import pytest

from tests.edges.http.site import FAR, Site, serving
from tidings.bus.log_reader import encode
from tidings.domain.schedules.iso8601 import parse_instant
from tidings.domain.schedules.schedule import Limits
from tidings.edges.http import streams
from tidings.engine import Settings
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore

FIELDS = {"topic", "partition", "offset", "key", "value", "headers", "id", "occurrence", "due_at", "released_at"}


async def test_a_published_record_can_be_read(each_site: Site) -> None:
    made = await each_site.publish("greetings", key="k", value={"b": 1, "a": 1.50}, headers={"x": "y"})
    assert made["outcome"] in {"scheduled", "released"}
    [record] = await each_site.records("greetings")
    assert record.keys() == FIELDS
    assert (record["key"], record["value"], record["headers"]) == ("k", '{"b":1,"a":1.5}', [["x", "y"]])
    assert (record["topic"], record["offset"], record["id"]) == ("greetings", 0, made["id"])
    assert record["occurrence"] == f"{made['id']}/1/1"
    assert parse_instant(record["released_at"]) >= parse_instant(record["due_at"])


async def test_bytes_are_returned_unchanged(each_site: Site) -> None:
    raw = bytes(range(256))
    text = base64.b64encode(raw).decode()
    await each_site.publish("bytes", key_base64=text, value_base64=text, headers=[["h", {"base64": text}], ["n", None]])
    [record] = await each_site.records("bytes")
    assert record["key_base64"] == record["value_base64"] == text
    assert "key" not in record
    assert "value" not in record
    assert record["headers"] == [["h", {"base64": text}], ["n", None]]


async def test_topics_are_listed_with_their_sizes(each_site: Site) -> None:
    await each_site.publish("b", value="x")
    await each_site.publish("a", value="x")
    await each_site.publish("a", value="y")
    found = (await each_site.call("GET", "/v1/topics")).document["topics"]
    assert [(topic["name"], topic["records"]) for topic in found] == [("a", 2), ("b", 1)]
    assert sum(part["next"] for part in found[0]["partitions"]) == 2
    assert found[0]["bytes"] > 0


async def test_pages_continue_with_the_cursor(each_site: Site) -> None:
    for n in range(7):
        await each_site.publish("pages", key=f"k{n}", value=str(n))
    seen: list[str] = []
    cursor = ""
    for _ in range(4):
        page = (await each_site.call("GET", f"/v1/topics/pages/records?limit=2{cursor}")).document
        seen += [record["value"] for record in page["records"]]
        cursor = f"&cursor={page['cursor']}"
    assert sorted(seen) == [str(n) for n in range(7)]
    empty = (await each_site.call("GET", f"/v1/topics/pages/records?{cursor[1:]}")).document
    assert empty == {"records": [], "cursor": cursor.removeprefix("&cursor="), "bus": "log"}


async def test_latest_is_the_end(each_site: Site) -> None:
    await each_site.publish("late", value="old")
    page = (await each_site.call("GET", "/v1/topics/late/records?cursor=latest")).document
    assert page["records"] == []
    await each_site.publish("late", value="new")
    page = (await each_site.call("GET", f"/v1/topics/late/records?cursor={page['cursor']}")).document
    assert [record["value"] for record in page["records"]] == ["new"]


async def test_large_records_make_short_pages() -> None:
    limits = Limits(page_bytes_max=500)
    async with serving(MemoryStore(), settings=Settings(limits=limits)) as site:
        for n in range(8):
            await site.publish("large", key=str(n), value="x" * (1_000 if n == 3 else 100))
        sizes: list[int] = []
        cursor = ""
        while sum(sizes) < 8:
            page = (await site.call("GET", f"/v1/topics/large/records?limit=1000{cursor}")).document
            sizes.append(len(page["records"]))
            cursor = f"&cursor={page['cursor']}"
        assert min(sizes) >= 1
        assert max(sizes) <= 5
        assert sum(sizes) == 8


async def test_a_long_poll_ends_with_the_first_record(each_site: Site) -> None:
    waiting = asyncio.create_task(each_site.call("GET", "/v1/topics/poll/records?wait=30s"))
    await each_site.publish("poll", value="here")
    reply = await asyncio.wait_for(waiting, 10)
    assert [record["value"] for record in reply.document["records"]] == ["here"]


@pytest.mark.parametrize("wait", ["0", "0s", "PT0.01S", "10ms"])
async def test_a_short_wait_ends_with_nothing(site: Site, wait: str) -> None:
    reply = await site.call("GET", f"/v1/topics/poll/records?wait={wait}")
    assert reply.document["records"] == []


async def test_a_client_that_disconnects_stops_the_wait(site: Site) -> None:
    waiting = asyncio.create_task(site.call("GET", "/v1/topics/poll/records?wait=60"))
    bells = site.engine.following._signals
    await eventually(lambda: bool(bells))
    waiting.cancel()
    await eventually(lambda: not bells)


class Events:
    """A reader of server-sent events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.last_id = ""

    async def next(self) -> tuple[str, Any]:
        """The id and data of the next event that has data."""
        data = None
        while True:
            line = (await asyncio.wait_for(self._response.content.readline(), 10)).decode()
            assert line, "the stream ended"
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "data":
                data = json.loads(value)
            elif name == "" and data is not None:
                return self.last_id, data


def follow(site: Site, query: str = "", **headers: str) -> Any:
    return site.session.get(site.at(f"/v1/topics/news/stream{query}"), headers=headers)


async def test_a_stream_sends_records_as_they_are_released(each_site: Site) -> None:
    async with follow(each_site, "?cursor=latest") as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = Events(response)
        for n in range(3):
            await each_site.call("POST", "/v1/topics/news/records", {"value": str(n)})
            _, record = await events.next()
            assert record["value"] == str(n)
            assert record.keys() == FIELDS


async def test_a_stream_resumes_behind_the_last_event(each_site: Site) -> None:
    body = b"\n".join(json.dumps({"key": f"k{n}", "value": str(n)}).encode() for n in range(30))
    headers = {"Content-Type": "application/x-ndjson"}
    assert len((await each_site.call("POST", "/v1/topics/news/records", data=body, headers=headers)).lines) == 30
    seen: list[str] = []
    last: dict[str, str] = {}
    while len(seen) < 30:  # cut after every third event
        async with follow(each_site, "", **last) as response:
            events = Events(response)
            for _ in range(3):
                position, record = await events.next()
                seen.append(record["value"])
                last = {"Last-Event-ID": position}
    assert sorted(seen, key=int) == [str(n) for n in range(30)]
    # What the browser sends again with the old URL goes before its cursor.
    async with follow(each_site, "?cursor=latest", **last) as response:
        await each_site.call("POST", "/v1/topics/news/records", {"value": "30"})
        assert (await Events(response).next())[1]["value"] == "30"


async def test_a_client_cut_off_before_the_first_record_resumes_from_its_position(site: Site) -> None:
    await site.publish("news", value="before")
    async with follow(site, "?cursor=latest") as response:
        lines = [(await response.content.readline()).decode() for _ in range(2)]
    assert lines[0].startswith("retry: ")
    position = lines[1].removeprefix("id: ").strip()
    await site.publish("news", value="while away")
    async with follow(site, **{"Last-Event-ID": position}) as response:
        assert (await Events(response).next())[1]["value"] == "while away"


async def test_an_idle_stream_sends_heartbeats(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.01)
    async with follow(site) as response:
        await asyncio.wait_for(response.content.readuntil(b": keep-alive\n\n"), 10)


async def test_a_wrong_position_to_resume_from_is_refused(site: Site) -> None:
    await site.publish("news", value="x")
    for wrong in ("zzz", encode((9, 9, 9, 9))):
        async with follow(site, **{"Last-Event-ID": wrong}) as response:
            assert response.status == 400
            assert "latest" in (await response.json())["detail"]


async def test_the_next_occurrences_are_previewed(site: Site) -> None:
    document = {"every": "R/2030-01-31T09:00:00Z/P1M", "count": 3}
    shown = (await site.call("POST", "/v1/preview", document)).document
    assert [moment["due_at"][:10] for moment in shown["moments"]] == ["2030-01-31", "2030-02-28", "2030-03-31"]
    assert [moment["occurrence"] for moment in shown["moments"]] == [1, 2, 3]
    assert shown["more"] is True
    ended = (await site.call("POST", "/v1/preview", {"every": "R2/2030-01-01T00:00:00Z/PT1H"})).document
    assert (len(ended["moments"]), ended["more"]) == (2, False)
    past = (await site.call("POST", "/v1/preview", {"every": "R/2020-01-01T00:00:00Z/P1D", "count": 1})).document
    assert parse_instant(past["moments"][0]["due_at"]) >= site.engine.clock.now() - 60_000_000
    over = (await site.call("POST", "/v1/preview", {"every": "R2/2020-01-01T00:00:00Z/P1D"})).document
    assert (over["moments"], over["more"], over["passed"]) == ([], False, 2)
    assert over["note"].startswith("2 occurrences have passed already; scheduled now, fire_latest (the default) would")
    assert "fire_all each one, skip those up to late_grace late" in over["note"]
    many = (await site.call("POST", "/v1/preview", {"every": "R/2020-01-01T00:00:00Z/PT1M"})).document
    assert many["moments"]
    assert "fire_all is refused for so many (limits.catch_up_max)" in many["note"]
    once = (await site.call("POST", "/v1/preview", {"scheduled_at": FAR})).document
    assert once == {"moments": [{"occurrence": 1, "due_at": "2030-01-01T00:00:00.000000Z"}], "more": False}
    assert (await site.engine.count()).pending == 0


async def test_the_forecast_counts_pending_occurrences(each_site: Site) -> None:
    for n in range(3):
        await each_site.add(at=f"2030-01-01T00:0{n // 2}:30Z")
    query = "by=minute&from=2030-01-01T00:00:00Z&to=2030-01-01T01:00:00Z"
    shown = (await each_site.call("GET", f"/v1/forecast?{query}")).document
    assert shown["steps"] == [
        {"at": "2030-01-01T00:00:00.000000Z", "pending": 2},
        {"at": "2030-01-01T00:01:00.000000Z", "pending": 1},
    ]
    assert (shown["by"], shown["complete"]) == ("minute", True)
    hour = (await each_site.call("GET", "/v1/forecast")).document
    assert parse_instant(hour["to"]) - parse_instant(hour["from"]) == 3_600_000_000
    assert hour["steps"] == []


async def test_only_the_log_is_a_bus_without_kafka(site: Site) -> None:
    await site.publish("buses", value="x")
    assert len((await site.call("GET", "/v1/topics/buses/records?bus=log")).document["records"]) == 1
    for path in ("/v1/topics?bus=kafka", "/v1/topics/buses/records?bus=kafka", "/v1/topics/buses/stream?bus=kafka"):
        reply = await site.call("GET", path)
        assert reply.status == 400
        assert "--kafka" in reply.problem["detail"]
    assert "log, kafka" in (await site.call("GET", "/v1/topics?bus=pigeon")).problem["detail"]

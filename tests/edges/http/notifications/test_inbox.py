"""Inboxes over HTTP: lines, how many are unread, marking them, and following."""

from typing import Any

import aiohttp
import pytest

from tests.edges.http.notifications.notification_server import Desk, Events
from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.notifications.user import InboxEntry, entry_name, entry_tags
from tidings.ports import Key, Put
from tidings.wires.answers import encode

ONE = "/v1/inbox/ada"


async def tell(desk: Desk, what: str, user: str = "ada") -> str:
    ask = {"user": user, "template": "line", "variables": {"what": what}}
    told = await desk.done("POST", "/v1/notifications", ask)
    await desk.settled(told["id"])
    return f"{told['id']}/1"


async def test_lines_are_listed_and_marked(each_desk: Desk) -> None:
    await each_desk.welcome("ada", "bob")
    names = [await tell(each_desk, what) for what in ("one", "two", "three")]
    await tell(each_desk, "other", "bob")
    page = await each_desk.done("GET", f"{ONE}?limit=2")
    assert [line["body"] for line in page["lines"]] == ["It is three.", "It is two."]
    rest = await each_desk.done("GET", f"{ONE}?limit=2&cursor={page['cursor']}")
    assert ([line["id"] for line in rest["lines"]], rest["cursor"]) == ([names[0]], None)
    assert await each_desk.done("GET", f"{ONE}/unread") == {"unread": 3, "more": False}
    marked = await each_desk.done("POST", f"{ONE}/read", {"ids": [names[1], "nothing"]})
    assert marked == {"user": "ada", "outcome": "read", "read": 1, "unknown": ["nothing"]}
    unread = await each_desk.done("GET", f"{ONE}?unread=true")
    assert [line["id"] for line in unread["lines"]] == [names[2], names[0]]
    [read] = [line for line in (await each_desk.done("GET", ONE))["lines"] if "read_at" in line]
    assert read["id"] == names[1]
    assert (await each_desk.done("POST", f"{ONE}/read", {"all": True}))["read"] == 2
    assert (await each_desk.done("GET", f"{ONE}/unread"))["unread"] == 0
    assert (await each_desk.done("GET", "/v1/inbox/bob/unread"))["unread"] == 1


def follow(desk: Desk, last: str | None = None, query: str = "") -> Any:
    headers = {} if last is None else {"Last-Event-ID": last}
    return desk.site.session.get(desk.site.at(f"{ONE}/stream{query}"), headers=headers)


async def test_messages_are_streamed_and_resume_after_the_last_one(each_desk: Desk) -> None:
    await each_desk.welcome()
    await tell(each_desk, "before")
    async with follow(each_desk) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = Events(response)
        first, second = await tell(each_desk, "one"), await tell(each_desk, "two")
        last, line = await events.next()
        assert (line["id"], line["body"]) == (first, "It is one.")
        assert (await events.next())[1]["id"] == second
    async with follow(each_desk, last) as response:
        seen = [line["id"] for _, line in [await Events(response).next()]]
        while second not in seen:
            seen.append((await Events(response).next())[1]["id"])
        assert first not in seen, "what was seen last does not come again"


@pytest.mark.slow
async def test_a_message_that_appears_after_a_later_one_is_not_lost(desk: Desk) -> None:
    """Of two that are written at once, that of the earlier time may be there second."""
    clock, cabinet = desk.site.engine.clock, desk.site.engine.store.documents
    now = clock.now()

    async def write(name: str, at: int) -> None:
        line = InboxEntry(name, "ada", "t", "b", at)
        key = Key(DEFAULT_TENANT, "inbox", entry_name("ada", name))
        await cabinet.change([[Put(key, encode(line), 0, entry_tags(line), at)]], clock.now())

    async with follow(desk, query=f"?cursor={now}.") as response:
        events = Events(response)
        await write("later", now + 400_000)
        assert (await events.next())[1]["id"] == "later"
        await write("earlier", now + 300_000)
        assert (await events.next())[1]["id"] == "earlier"


async def test_wrong_requests(desk: Desk) -> None:
    for path in (f"{ONE}?unread=yes", f"{ONE}?cursor=x", f"{ONE}/stream?cursor=x", "/v1/inbox/a%20b", f"{ONE}?limit=0"):
        assert (await desk.call("GET", path)).status == 400, path
    async with follow(desk, "not a place") as response:
        assert isinstance(response, aiohttp.ClientResponse)
        assert response.status == 400
    documents: list[Any] = [
        {},
        {"ids": []},
        {"ids": ["a"], "all": True},
        {"id": "a"},
        {"ids": "a"},
        {"ids": ["a"] * 1_001},
    ]
    for document in documents:
        assert (await desk.call("POST", f"{ONE}/read", document)).status == 400, document
    assert (await desk.call("DELETE", ONE)).status == 405

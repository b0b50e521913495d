"""Inboxes over HTTP: messages, the number of unread ones, marks, and streams."""

from typing import Any

import aiohttp
import pytest

from tests.edges.http.notifications.notification_server import Events, NotificationServer
from tidings.delivery.rows import change, inbox_put
from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.notifications.user import InboxEntry

ONE = "/v1/inbox/ada"


async def notify(server: NotificationServer, what: str, user: str = "ada") -> str:
    ask = {"user": user, "template": "line", "variables": {"what": what}}
    accepted = await server.ok("POST", "/v1/notifications", ask)
    await server.settled(accepted["id"])
    return f"{accepted['id']}/1"


async def test_messages_are_listed_and_marked_as_read(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users("ada", "bob")
    names = [await notify(server_on_each_store, what) for what in ("one", "two", "three")]
    await notify(server_on_each_store, "other", "bob")
    page = await server_on_each_store.ok("GET", f"{ONE}?limit=2")
    assert [line["body"] for line in page["lines"]] == ["It is three.", "It is two."]
    rest = await server_on_each_store.ok("GET", f"{ONE}?limit=2&cursor={page['cursor']}")
    assert ([line["id"] for line in rest["lines"]], rest["cursor"]) == ([names[0]], None)
    assert await server_on_each_store.ok("GET", f"{ONE}/unread") == {"unread": 3, "more": False}
    marked = await server_on_each_store.ok("POST", f"{ONE}/read", {"ids": [names[1], "nothing"]})
    assert marked == {"user": "ada", "outcome": "read", "read": 1, "unknown": ["nothing"]}
    unread = await server_on_each_store.ok("GET", f"{ONE}?unread=true")
    assert [line["id"] for line in unread["lines"]] == [names[2], names[0]]
    [read] = [line for line in (await server_on_each_store.ok("GET", ONE))["lines"] if "read_at" in line]
    assert read["id"] == names[1]
    assert (await server_on_each_store.ok("POST", f"{ONE}/read", {"all": True}))["read"] == 2
    assert (await server_on_each_store.ok("GET", f"{ONE}/unread"))["unread"] == 0
    assert (await server_on_each_store.ok("GET", "/v1/inbox/bob/unread"))["unread"] == 1


def follow(server: NotificationServer, last: str | None = None, query: str = "") -> Any:
    headers = {} if last is None else {"Last-Event-ID": last}
    return server.site.session.get(server.site.at(f"{ONE}/stream{query}"), headers=headers)


async def test_messages_are_streamed_and_resume_after_the_last_one(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    await notify(server_on_each_store, "before")
    async with follow(server_on_each_store) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = Events(response)
        first, second = await notify(server_on_each_store, "one"), await notify(server_on_each_store, "two")
        last, line = await events.next()
        assert (line["id"], line["body"]) == (first, "It is one.")
        assert (await events.next())[1]["id"] == second
    async with follow(server_on_each_store, last) as response:
        seen = [line["id"] for _, line in [await Events(response).next()]]
        while second not in seen:
            seen.append((await Events(response).next())[1]["id"])
        assert first not in seen, "what was seen last does not come again"


@pytest.mark.slow
async def test_a_message_that_appears_after_a_later_one_is_not_lost(server: NotificationServer) -> None:
    """Of two messages written concurrently, the earlier one may appear second."""
    clock, tables = server.site.engine.clock, server.site.engine.store.tables
    now = clock.now()

    async def write(name: str, at: int) -> None:
        line = InboxEntry(name, "ada", "t", "b", at)
        await change(tables, [[inbox_put(DEFAULT_TENANT, line, 0, None)]], clock.now())

    async with follow(server, query=f"?cursor={now}.") as response:
        events = Events(response)
        await write("later", now + 400_000)
        assert (await events.next())[1]["id"] == "later"
        await write("earlier", now + 300_000)
        assert (await events.next())[1]["id"] == "earlier"


async def test_wrong_requests(server: NotificationServer) -> None:
    for path in (f"{ONE}?unread=yes", f"{ONE}?cursor=x", f"{ONE}/stream?cursor=x", "/v1/inbox/a%20b", f"{ONE}?limit=0"):
        assert (await server.call("GET", path)).status == 400, path
    async with follow(server, "not a place") as response:
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
        assert (await server.call("POST", f"{ONE}/read", document)).status == 400, document
    assert (await server.call("DELETE", ONE)).status == 405

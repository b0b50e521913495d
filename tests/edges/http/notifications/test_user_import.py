"""The import of users over HTTP: progress, bad lines, and files that are refused as a whole."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import NotificationServer
from tests.edges.http.site import NDJSON
from tidings.delivery.people.user_import import BATCH_LINES, LINE_CHARS_MAX

IMPORT = "/v1/users/import"
CSV = {"Content-Type": "text/csv; charset=utf-8"}


async def lines(server: NotificationServer, body: Any, headers: dict[str, str]) -> list[Any]:
    reply = await server.call("POST", IMPORT, data=body, headers=headers)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/x-ndjson"), reply.body
    return reply.lines


async def test_csv_with_a_bad_line(server_on_each_store: NotificationServer) -> None:
    body = b'id,email,preferences.news\nada,ada@example.com,no\nbob,nope,\n"eve",eve@example.com,yes\n'
    *progress, total = await lines(server_on_each_store, body, CSV)
    assert total == {"lines": 4, "created": 2, "replaced": 0, "bad": 1, "bad_lines": [], "done": True}
    [bad] = [bad for line in progress for bad in line["bad_lines"]]
    assert (bad["line"], bad["field"]) == (3, "email")
    assert (await server_on_each_store.ok("GET", "/v1/users/ada"))["preferences"] == {"news": False}
    *_, total = await lines(server_on_each_store, body, CSV)
    assert (total["created"], total["replaced"]) == (0, 2)


async def test_ndjson_is_imported_while_it_arrives(server_on_each_store: NotificationServer) -> None:
    count = 3 * BATCH_LINES + 7

    async def body() -> AsyncIterator[bytes]:
        for number in range(count):
            yield json.dumps({"id": f"u{number}", "locale": "de"}).encode() + b"\n"
            if number == 10:
                yield b'{"id": "x", "zone": "Mars"}\n\n{\n"\xff"\n'

    *progress, total = await lines(server_on_each_store, body(), NDJSON)
    assert len(progress) >= 3, "progress is reported"
    assert [line["lines"] for line in progress] == sorted(line["lines"] for line in progress)
    assert (total["created"], total["bad"]) == (count, 3)
    bad = [bad for line in progress for bad in line["bad_lines"]]
    assert [(each["line"], each["field"]) for each in bad] == [(12, "zone"), (14, "body"), (15, "line")]
    assert (await server_on_each_store.ok("GET", f"/v1/users/u{count - 1}"))["locale"] == "de"


async def test_long_lines_are_refused(server: NotificationServer) -> None:
    longer = b'{"id":"' + b"x" * (LINE_CHARS_MAX + 1) + b'"}\n'
    longest = b'{"id":"' + b"x" * (2 << 20) + b'"}\n'
    *progress, total = await lines(server, longer + longest + b'{"id":"ada"}', NDJSON)
    assert (total["created"], total["bad"], total["lines"]) == (1, 2, 3)
    assert {bad["field"] for line in progress for bad in line["bad_lines"]} == {"line"}


@pytest.mark.slow
async def test_an_unclosed_quote_is_reported_without_a_long_wait(server: NotificationServer) -> None:
    body = b'id,name\nada,"' + b"\n" * (2 * LINE_CHARS_MAX) + b"eve,Eve\n"
    async with asyncio.timeout(10):
        *progress, total = await lines(server, body, CSV)
    assert total["bad"] >= 1
    assert progress[0]["bad_lines"][0]["line"] == 2


async def test_an_empty_import_is_valid(server: NotificationServer) -> None:
    *_, total = await lines(server, b"", NDJSON)
    assert total == {"lines": 0, "created": 0, "replaced": 0, "bad": 0, "bad_lines": [], "done": True}


async def test_imports_that_are_refused_as_a_whole(server: NotificationServer) -> None:
    header = await server.call("POST", IMPORT, data=b"id,emial\nada,x\n", headers=CSV)
    assert (header.status, header.problem["errors"][0]["field"]) == (400, "emial")
    plain = await server.call("POST", IMPORT, data=b"[]", headers={"Content-Type": "text/plain"})
    assert (plain.status, "text/csv" in plain.problem["detail"]) == (415, True)
    assert (await server.call("POST", IMPORT, {"id": "ada"})).status == 415
    packed = CSV | {"Content-Encoding": "gzip"}
    assert (await server.call("POST", IMPORT, data=b"x", headers=packed)).status == 415
    assert (await server.call("POST", f"{IMPORT}?x=1", data=b"", headers=CSV)).status == 400


async def test_a_webhook_with_an_address_that_is_never_called_is_a_bad_line(server: NotificationServer) -> None:
    body = b'{"id": "ada", "webhook": "https://10.1.0.1/"}\n{"id": "eve", "webhook": "https://10.2.0.1/"}\n'
    *progress, total = await lines(server, body, NDJSON)
    assert (total["created"], total["bad"]) == (1, 1)
    [bad] = [bad for line in progress for bad in line["bad_lines"]]
    assert (bad["line"], bad["field"]) == (2, "webhook")

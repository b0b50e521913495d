"""The import of users over HTTP: progress, bad lines, and files that are refused as a whole."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import Desk
from tests.edges.http.site import NDJSON
from tidings.delivery.importing import BATCH_LINES, LINE_CHARS_MAX

IMPORT = "/v1/users/import"
CSV = {"Content-Type": "text/csv; charset=utf-8"}


async def lines(desk: Desk, body: Any, headers: dict[str, str]) -> list[Any]:
    reply = await desk.call("POST", IMPORT, data=body, headers=headers)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/x-ndjson"), reply.body
    return reply.lines


async def test_csv_with_a_bad_line(each_desk: Desk) -> None:
    body = b'id,email,preferences.news\nada,ada@example.com,no\nbob,nope,\n"eve",eve@example.com,yes\n'
    *progress, total = await lines(each_desk, body, CSV)
    assert total == {"lines": 4, "created": 2, "replaced": 0, "bad": 1, "bad_lines": [], "done": True}
    [bad] = [bad for line in progress for bad in line["bad_lines"]]
    assert (bad["line"], bad["field"]) == (3, "email")
    assert (await each_desk.done("GET", "/v1/users/ada"))["preferences"] == {"news": False}
    *_, total = await lines(each_desk, body, CSV)
    assert (total["created"], total["replaced"]) == (0, 2)


async def test_lines_of_json_stream_in(each_desk: Desk) -> None:
    count = 3 * BATCH_LINES + 7

    async def body() -> AsyncIterator[bytes]:
        for number in range(count):
            yield json.dumps({"id": f"u{number}", "locale": "de"}).encode() + b"\n"
            if number == 10:
                yield b'{"id": "x", "zone": "Mars"}\n\n{\n"\xff"\n'

    *progress, total = await lines(each_desk, body(), NDJSON)
    assert len(progress) >= 3, "somebody watches"
    assert [line["lines"] for line in progress] == sorted(line["lines"] for line in progress)
    assert (total["created"], total["bad"]) == (count, 3)
    bad = [bad for line in progress for bad in line["bad_lines"]]
    assert [(each["line"], each["field"]) for each in bad] == [(12, "zone"), (14, "body"), (15, "line")]
    assert (await each_desk.done("GET", f"/v1/users/u{count - 1}"))["locale"] == "de"


async def test_long_lines_are_refused(desk: Desk) -> None:
    longer = b'{"id":"' + b"x" * (LINE_CHARS_MAX + 1) + b'"}\n'
    longest = b'{"id":"' + b"x" * (2 << 20) + b'"}\n'
    *progress, total = await lines(desk, longer + longest + b'{"id":"ada"}', NDJSON)
    assert (total["created"], total["bad"], total["lines"]) == (1, 2, 3)
    assert {bad["field"] for line in progress for bad in line["bad_lines"]} == {"line"}


@pytest.mark.slow
async def test_a_quote_that_is_never_closed_takes_no_longer_than_what_follows_it(desk: Desk) -> None:
    body = b'id,name\nada,"' + b"\n" * (2 * LINE_CHARS_MAX) + b"eve,Eve\n"
    async with asyncio.timeout(10):
        *progress, total = await lines(desk, body, CSV)
    assert total["bad"] >= 1
    assert progress[0]["bad_lines"][0]["line"] == 2


async def test_nothing_is_something_too(desk: Desk) -> None:
    *_, total = await lines(desk, b"", NDJSON)
    assert total == {"lines": 0, "created": 0, "replaced": 0, "bad": 0, "bad_lines": [], "done": True}


async def test_what_is_refused_as_a_whole(desk: Desk) -> None:
    header = await desk.call("POST", IMPORT, data=b"id,emial\nada,x\n", headers=CSV)
    assert (header.status, header.problem["errors"][0]["field"]) == (400, "emial")
    plain = await desk.call("POST", IMPORT, data=b"[]", headers={"Content-Type": "text/plain"})
    assert (plain.status, "text/csv" in plain.problem["detail"]) == (415, True)
    assert (await desk.call("POST", IMPORT, {"id": "ada"})).status == 415
    packed = CSV | {"Content-Encoding": "gzip"}
    assert (await desk.call("POST", IMPORT, data=b"x", headers=packed)).status == 415
    assert (await desk.call("POST", f"{IMPORT}?x=1", data=b"", headers=CSV)).status == 400

"""Many schedules in one request: an outcome for each line, in order, as they become durable."""

import asyncio
import json
from codecs import BOM_UTF8
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edges.http.site import FAR, NDJSON, Site, serving
from tidings.domain.errors import StoreError
from tidings.domain.schedules.command import Command, Outcome
from tidings.edges.http import ndjson
from tidings.edges.http.ndjson import Lines
from tidings.edges.http.readers import BufferedAnswers
from tidings.ports import IdempotencyKey, SourceBatch
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore


def line(schedule_id: str, **more: Any) -> bytes:
    return json.dumps({"id": schedule_id, "topic": "many", "at": FAR, "value": {"n": 1}} | more).encode()


@pytest.mark.slow
async def test_five_thousand_lines_with_bad_ones_between(each_site: Site) -> None:
    lines = [line(f"id-{n}") for n in range(5000)]
    lines[10] = b"nonsense"
    lines[999] = line("id-999", topic="no spaces")
    lines[1000] = line("id-0", value="other")
    lines[4999] = b'{"id": "last"}'
    reply = await each_site.call("POST", "/v1/schedules", data=b"\n".join(lines), headers=NDJSON)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/x-ndjson"
    answers = reply.lines
    assert len(answers) == 5000
    assert answers[10]["outcome"] == "rejected"
    assert answers[10]["line"] == 11
    assert answers[10]["errors"][0]["field"] == "body"
    assert (answers[999]["id"], answers[999]["line"]) == ("id-999", 1000)
    assert answers[999]["errors"][0]["field"] == "topic"
    assert (answers[1000]["id"], answers[1000]["outcome"]) == ("id-0", "rejected")
    assert "replace" in answers[1000]["reason"]
    assert answers[4999]["errors"][0]["field"] == "topic"
    bad = {10, 999, 1000, 4999}
    assert [answer["line"] for answer in answers] == list(range(1, 5001))
    for n, answer in enumerate(answers):
        if n not in bad:
            assert (answer["id"], answer["outcome"]) == (f"id-{n}", "scheduled")
    assert (await each_site.engine.count()).pending == 4996


async def test_a_line_of_two_megabytes_is_passed_over(each_site: Site) -> None:
    body = b"\n".join([line("a"), line("b", value="x" * 2_000_000), line("c")])
    answers = (await each_site.call("POST", "/v1/schedules", data=body, headers=NDJSON)).lines
    assert [answer["outcome"] for answer in answers] == ["scheduled", "rejected", "scheduled"]
    assert answers[1]["line"] == 2
    assert "send less" in answers[1]["errors"][0]["detail"]


async def test_blank_lines_and_carriage_returns_are_passed_over(site: Site) -> None:
    body = b"\r\n\n" + line("a") + b"\r\n  \n" + b"{\n" + line("b")
    answers = (await site.call("POST", "/v1/schedules", data=body, headers=NDJSON)).lines
    assert [(answer["outcome"], answer.get("line")) for answer in answers] == [
        ("scheduled", 3),
        ("rejected", 5),
        ("scheduled", 6),
    ]


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "marked"}])
async def test_a_byte_order_mark_is_passed_over(site: Site, key: dict[str, str]) -> None:
    body = BOM_UTF8 + line("a") + b"\n" + BOM_UTF8 + line("b")
    answers = (await site.call("POST", "/v1/schedules", data=body, headers=NDJSON | key)).lines
    assert [answer["outcome"] for answer in answers] == ["scheduled", "rejected"]


async def test_nothing_is_answered_with_nothing(site: Site) -> None:
    for body in (b"", b"\n\n"):
        reply = await site.call("POST", "/v1/schedules", data=body, headers=NDJSON)
        assert (reply.status, reply.body) == (200, b"")


@pytest.mark.slow
async def test_an_array_is_answered_with_an_array(each_site: Site) -> None:
    documents = [json.loads(line(f"id-{n}")) for n in range(2500)]
    documents[7] = {"topic": "many", "rrule": "FREQ=NEVER"}
    documents[8] = 5
    reply = await each_site.call("POST", "/v1/schedules", documents)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    answers = reply.document
    assert len(answers) == 2500
    assert [answer["line"] for answer in answers] == list(range(1, 2501))
    assert answers[7]["errors"][0]["field"] == "rrule"
    assert "send a JSON object" in answers[8]["errors"][0]["detail"]
    assert {answer["outcome"] for n, answer in enumerate(answers) if n not in {7, 8}} == {"scheduled"}
    lines = await each_site.call("POST", "/v1/schedules", documents, headers={"Accept": "application/x-ndjson"})
    assert {answer["outcome"] for n, answer in enumerate(lines.lines) if n not in {7, 8}} == {"unchanged"}
    assert (await each_site.call("POST", "/v1/schedules", [])).document == []


async def test_many_are_published_at_once(each_site: Site) -> None:
    body = b"\n".join(json.dumps({"id": f"p-{n}", "value": n}).encode() for n in range(20))
    answers = (await each_site.call("POST", "/v1/topics/many/records", data=body, headers=NDJSON)).lines
    assert len(answers) == 20
    await each_site.state_of("p-19", "released")
    found = await eventually(lambda: _all_records(each_site, 20))
    assert sorted(int(record["value"]) for record in found) == list(range(20))


async def _all_records(site: Site, count: int) -> Any:
    records = await site.records("many")
    return records if len(records) == count else None


async def test_answers_come_while_the_body_is_still_being_sent(each_site: Site) -> None:
    sent = asyncio.Queue[bytes | None]()

    async def body() -> AsyncIterator[bytes]:
        while (part := await sent.get()) is not None:
            yield part

    whole = line("c")
    sent.put_nowait(line("a") + b"\n" + line("b") + b"\n" + whole[:9])
    async with each_site.session.post(each_site.at("/v1/schedules"), data=body(), headers=NDJSON) as response:
        first = [json.loads(await response.content.readline()) for _ in range(2)]
        assert [answer["id"] for answer in first] == ["a", "b"]
        for place in range(9, len(whole)):
            sent.put_nowait(whole[place : place + 1])
        sent.put_nowait(b"\n")
        assert json.loads(await response.content.readline())["id"] == "c"
        sent.put_nowait(None)
        assert await response.read() == b""


async def test_a_disconnect_keeps_what_was_answered(each_site: Site) -> None:
    reader, writer = await asyncio.open_connection(each_site.host, each_site.port)
    head = f"POST /v1/schedules HTTP/1.1\r\nHost: {each_site.host}\r\nContent-Type: application/x-ndjson\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    part = line("a") + b"\n" + line("b")[:-3]
    writer.write(b"%x\r\n%s\r\n" % (len(part), part))
    assert b'"scheduled"' in await reader.readuntil(b"}\n")
    writer.close()
    await writer.wait_closed()
    assert (await each_site.add(id="c"))["outcome"] == "scheduled"
    assert (await each_site.engine.count()).pending == 2


@pytest.mark.slow
async def test_a_client_may_send_all_before_it_reads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndjson, "ANSWERS_BYTES_MAX", 64 * 1024 * 1024)
    count = 60_000
    reader, writer = await asyncio.open_connection(site.host, site.port, limit=1024)
    body = b"".join(b'{"topic":"many","at":"2030-01-01T00:00:00Z","late":"%d"}\n' % n for n in range(count))
    head = (
        f"POST /v1/schedules HTTP/1.1\r\nHost: {site.host}\r\nContent-Type: application/x-ndjson\r\nConnection: close"
    )
    writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    async with asyncio.timeout(60):
        await writer.drain()
        answer = await reader.read(-1)
    assert answer.count(b'"rejected"') == count
    writer.close()
    await writer.wait_closed()


async def test_a_repeat_under_the_same_key_is_cut_and_answered_alike(each_site: Site) -> None:
    headers = NDJSON | {"Idempotency-Key": "import-7"}
    lines = [json.dumps({"topic": "many", "at": FAR, "value": n}).encode() for n in range(2500)]
    lines[5] = b"nonsense"

    async def slowly() -> AsyncIterator[bytes]:
        for one in lines:
            yield one + b"\n"

    first = await each_site.call("POST", "/v1/schedules", data=b"\n".join(lines), headers=headers)
    again = await each_site.call("POST", "/v1/schedules", data=slowly(), headers=headers)
    assert first.lines == again.lines
    assert (await each_site.engine.count()).pending == 2499
    other = [*lines[:2000], line("new")]
    reply = await each_site.call("POST", "/v1/schedules", data=b"\n".join(other), headers=headers)
    assert reply.lines[:2000] == first.lines[:2000]
    problem = reply.lines[2000]
    assert (problem["status"], problem["line"]) == (422, 2001)
    assert "new key" in problem["detail"]
    reused = await each_site.call("POST", "/v1/schedules", data=line("x"), headers=headers)
    assert (reused.status, reused.problem["status"]) == (422, 422)


class FailingStore(MemoryStore):
    """Fails from the second batch on."""

    batches = 0

    async def apply(
        self, commands: Any, now: int, idempotency: IdempotencyKey | None = None, taken: SourceBatch | None = None
    ) -> list[Outcome]:
        self.batches += 1
        if self.batches > 1:
            raise StoreError("the disk is full: make room")
        commands_taken: list[Command] = list(commands)
        return await super().apply(commands_taken, now, idempotency, taken)


async def test_a_failing_store_is_reported_in_place_of_the_outcomes() -> None:
    async with serving(FailingStore()) as site:
        body = b"\n".join(line(f"id-{n}") for n in range(3000))
        reply = await site.call("POST", "/v1/schedules", data=body, headers=NDJSON)
        assert reply.status == 200
        *answers, problem = reply.lines
        assert {answer["outcome"] for answer in answers} == {"scheduled"}
        assert (problem["status"], problem["line"]) == (503, len(answers) + 1)
        assert "make room" in problem["detail"]
        at_once = await site.call("POST", "/v1/schedules", data=line("x"), headers=NDJSON)
        assert (at_once.status, at_once.headers["Retry-After"]) == (503, "1")
        one = await site.call("POST", "/v1/schedules", json.loads(line("x")))
        assert (one.status, one.headers["Retry-After"]) == (503, "1")
        assert "make room" in one.problem["detail"]


async def test_a_paused_endless_stream_ends_when_the_store_fails() -> None:
    sent = asyncio.Queue[bytes | None]()

    async def body() -> AsyncIterator[bytes]:
        while (part := await sent.get()) is not None:
            yield part

    async with serving(FailingStore()) as site:
        sent.put_nowait(line("a") + b"\n")
        async with site.session.post(site.at("/v1/schedules"), data=body(), headers=NDJSON) as response:
            assert json.loads(await response.content.readline())["id"] == "a"
            sent.put_nowait(line("b") + b"\n")
            assert json.loads(await response.content.readline())["status"] == 503
            assert await response.content.read() == b""
            sent.put_nowait(None)


async def test_expect_continue_is_honoured(site: Site) -> None:
    timeout = aiohttp.ClientTimeout(total=10)
    reply = await site.call("POST", "/v1/schedules", data=line("a"), headers=NDJSON, expect100=True, timeout=timeout)
    assert reply.lines[0]["outcome"] == "scheduled"


async def test_unread_answers_are_bounded() -> None:
    reading = asyncio.Event()
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        await reading.wait()
        sent.append(message["body"])

    kept = BufferedAnswers()
    outbox = ndjson.AnswerBuffer(send, 100, kept)
    for _ in range(10):
        await outbox.put(b"x" * 10)
    full = asyncio.create_task(outbox.put(b"y"))
    done, _ = await asyncio.wait({full}, timeout=0.01)
    assert not done
    reading.set()
    await full
    await outbox.finish()
    assert b"".join(sent) == b"x" * 100 + b"y"
    assert kept.size_bytes == 0


async def test_answers_of_all_clients_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndjson, "ANSWERS_IN_ALL_BYTES_MAX", 250)
    monkeypatch.setattr(ndjson, "ANSWERS_SMALL_BYTES", 50)
    never = asyncio.Event()

    async def send(_: Any) -> None:
        await never.wait()

    kept = BufferedAnswers()
    first, second, third = (ndjson.AnswerBuffer(send, 1_000, kept) for _ in range(3))
    await first.put(b"x" * 200)
    await second.put(b"x" * 40)
    full = asyncio.create_task(third.put(b"x" * 60))
    done, _ = await asyncio.wait({full}, timeout=0.01)
    assert not done
    full.cancel()
    await second.put(b"x" * 5)  # a little is always taken
    for outbox in (first, second, third):
        outbox.close()
    assert kept.size_bytes == 0


def cut(body: bytes, sizes: list[int], line_bytes_max: int) -> list[bytes | None]:
    """The lines of a body that arrives in chunks of these sizes, and the rest in one."""
    lines = Lines(line_bytes_max)
    found: list[bytes | None] = []
    for size in sizes:
        found += lines.feed(body[:size])
        body = body[size:]
    return found + lines.feed(body) + lines.finish()


@pytest.mark.slow
@given(
    st.binary(max_size=200).map(lambda body: body.replace(b"a", b"\n")),
    st.lists(st.integers(0, 20)),
    st.integers(1, 30),
)
def test_chunks_do_not_matter(body: bytes, sizes: list[int], line_bytes_max: int) -> None:
    whole = body.split(b"\n")
    if not whole[-1]:
        whole.pop()
    expected = [line if len(line) <= line_bytes_max else None for line in whole]
    assert cut(body, sizes, line_bytes_max) == expected


@pytest.mark.parametrize("chunk", [1, 10, 1000])
def test_a_long_line_is_discarded(chunk: int) -> None:
    lines = Lines(100)
    for _ in range(10_000 // chunk):
        assert lines.feed(b"x" * chunk) == []
        assert sum(map(len, lines._parts)) <= 100
    assert lines.feed(b"\ngood\n") == [None, b"good"]

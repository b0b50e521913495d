"""Wrong input of every kind: refused with the field at fault and what to change."""

import asyncio
import json
from typing import Any

import pytest

from tests.edges.http.site import FAR, NDJSON, Site
from tidings.domain.schedules.schedule import Limits, make_id

GOOD = {"topic": "greetings", "at": FAR}
DEEP = "[" * 100_000

# What is added to a good schedule, the field that is named, and words of the advice.
DOCUMENTS: list[tuple[dict[str, Any], str, str]] = [
    ({"topic": None}, "topic", "say where it goes"),
    ({"topic": 5}, "topic", "text"),
    ({"topic": "no spaces"}, "topic", "letters"),
    ({"topic": ".."}, "topic", "letters"),
    ({"topic": "x" * 250}, "topic", "249"),
    ({"topc": "x"}, "topc", "did you mean 'topic'"),
    ({"zzz": 1}, "zzz", "unknown field: leave it out"),
    ({"at": None, "rrule": "FREQ=NEVER"}, "rrule", "is not one of YEARLY"),
    ({"cron": "* * * * *"}, "at", "either 'at' or 'cron'"),
    ({"zone": "Europe/Berlin"}, "at", "has an offset, and a zone is given too"),
    ({"start": FAR}, "start", "every"),
    ({"count": 3}, "count", "every"),
    ({"until": FAR}, "until", "every"),
    ({"bus": "kafka"}, "bus", "leave it out"),
    ({"scheduled_at": FAR}, "scheduled_at", "only one of them"),
    ({"every": "PT10M"}, "at", "either 'at' or 'every'"),
    ({"at": 5}, "at", "2026-11-20T09:00:00Z"),
    ({"at": ""}, "at", "2026-11-20T09:00:00Z"),
    ({"at": "at noon"}, "at", "2026-11-20T09:00:00Z"),
    ({"at": "2030-01-01T00:00:00"}, "at", "add Z"),
    ({"at": "2090-01-01T00:00:00Z"}, "at", "days ahead, the most that is accepted (limits.horizon)"),
    ({"expires_after": "soon"}, "expires_after", "such as PT5S, P1DT12H, 5s"),
    ({"at": None, "every": "PT0.1S"}, "every", "shortest"),
    ({"at": None, "every": 5}, "every", "PT10M"),
    ({"id": ""}, "id", "leave it out"),
    ({"id": "x" * 201}, "id", "200"),
    ({"id": "a\nb"}, "id", "printable"),
    ({"id": make_id(1, 1, 0)}, "id", "choose another"),
    ({"id": 7}, "id", "text"),
    ({"key": 5}, "key", "key_base64"),
    ({"key": "a", "key_base64": "YQ=="}, "key", "not both"),
    ({"key_base64": "***"}, "key_base64", "alphabet"),
    ({"key": "k" * 16_385}, "key", "16384"),
    ({"value": 1, "value_base64": "YQ=="}, "value", "not both"),
    ({"value_base64": "YQ"}, "value_base64", "alphabet"),
    ({"value_base64": "Y Q=="}, "value_base64", "spaces"),
    ({"value": "x" * (1024 * 1024 + 1)}, "value", "1048576"),
    ({"headers": 5}, "headers", '[["name", "value"], ...]'),
    ({"headers": [["a", 1]]}, "headers[0][1]", '{"base64": "..."}'),
    ({"headers": [["a"]]}, "headers[0]", '[["name", "value"], ...]'),
    ({"headers": {"a": ["b"]}}, "headers.a", '{"name": "value"}'),
    ({"headers": {"a": {"base64": "!"}}}, "headers.a", "alphabet"),
    ({"headers": {"a": {"base32": "!"}}}, "headers.a.base32", "unknown field"),
    ({"headers": [["a", "b"]] * 65}, "headers", "64"),
    ({"headers": [["a", "b" * 20_000]]}, "headers", "16384"),
    ({"priority": "urgent"}, "priority", "high, normal, low"),
    ({"late": "never"}, "late", "fire_latest, fire_all, skip"),
    ({"expires_after": "soon"}, "expires_after", "PT5S"),
    ({"expires_after": "PT0S"}, "expires_after", "PT5S"),
    ({"late_grace": "P1M"}, "late_grace", "P30D"),
    ({"late_max": 5}, "late_max", "PT1H"),
    ({"jitter": "P2D"}, "jitter", "86400"),
    ({"labels": {"a": 1}}, "labels.a", "is a number: send text"),
    ({"labels": {str(n): "x" for n in range(17)}}, "labels", "16"),
    ({"labels": {"note": "a\0b"}}, "labels", "NUL"),
]


async def test_a_wrong_field_is_named(site: Site) -> None:
    for wrong, field, advice in DOCUMENTS:
        document = {name: value for name, value in (GOOD | wrong).items() if value is not None}
        reply = await site.call("POST", "/v1/schedules", document)
        assert reply.status == 400, wrong
        [error] = reply.problem["errors"]
        assert error["field"] == field
        assert advice in error["detail"]
        assert reply.problem["detail"].startswith(field)
        as_line = await site.call("POST", "/v1/schedules", data=json.dumps(document).encode(), headers=NDJSON)
        assert as_line.lines[0]["errors"] == [error]


BODIES: list[tuple[bytes, str]] = [
    (b"", "is empty: send a JSON object"),
    (b" \n", "is empty: send a JSON object"),
    (b"{", "is incomplete JSON"),
    (b'{"topic": "a",}', "byte 14"),
    (b"nonsense", "is not valid JSON"),
    (b'{"topic": "a"} x', "trailing"),
    (b'"text"', "send a JSON object"),
    (b"5", "send a JSON object"),
    (b"[1", "is incomplete JSON"),
    (b'{"topic": "\xff"}', "UTF-8"),
    (b'{"topic": "a", "value": "\xff"}', "UTF-8"),
    (b'{"topic": "a", "value": {"b": "\xff"}}', "UTF-8"),
    (b'{"topic": "a", "value": "\\ud800"}', "surrogate"),
    (b'{"topic": "a", "value": ' + DEEP.encode() + b"}", "nested too deeply"),
    (b'{"topic": "a", "value": 01}', "is not valid JSON"),
    (b'{"topic": "a", "value": NaN}', "is not valid JSON"),
    (b"\xef\xbb\xbf{}", "is not valid JSON"),
]


async def test_a_body_that_is_not_json_is_refused_with_the_position(site: Site) -> None:
    for body, advice in BODIES:
        reply = await site.call("POST", "/v1/schedules", data=body, headers={"Content-Type": "application/json"})
        assert reply.status == 400, body[:40]
        assert advice in reply.problem["detail"]


QUERIES: list[tuple[str, str, str]] = [
    ("/v1/schedules?stat=pending", "stat", "topic, state"),
    ("/v1/schedules?state=done", "state", "pending, paused"),
    ("/v1/schedules?limit=0", "limit", "1 to 1000"),
    ("/v1/schedules?limit=1001", "limit", "1 to 1000"),
    ("/v1/schedules?limit=ten", "limit", "whole number"),
    ("/v1/schedules?limit=%D9%A1", "limit", "whole number"),
    ("/v1/schedules?limit=1&limit=2", "limit", "once"),
    ("/v1/schedules?from=yesterday", "from", "2026-11-20T09:00:00Z"),
    ("/v1/schedules?to=2030-13-01T00:00:00Z", "to", "not a valid time"),
    ("/v1/schedules?label=autumn", "label", "name=value"),
    ("/v1/schedules?label=a%00:b", "label", "NUL"),
    ("/v1/schedules?prefix=%00", "prefix", "NUL"),
    ("/v1/schedules?topic=%FF", "query", "UTF-8"),
    ("/v1/schedules?" + "x" * 9000, "query", "8192"),
    ("/v1/schedules/a?x=1", "x", "leave it out"),
    ("/v1/schedules/%FF", "id", "UTF-8"),
    ("/v1/schedules/a%00b", "id", "NUL"),
    ("/v1/schedules/a%00b/explain", "id", "NUL"),
    ("/v1/topics/a%00b/records", "topic", "NUL"),
    ("/v1/topics/a%00b/stream", "topic", "NUL"),
    ("/v1/calendars/a%00b", "name", "NUL"),
    ("/v1/users/a%00b", "id", "NUL"),
    ("/v1/templates/a%00b", "name", "NUL"),
    ("/v1/notifications/a%00b", "id", "NUL"),
    ("/v1/topics?x=1", "x", "use bus"),
    ("/v1/topics/t/records?wait=61", "wait", "60 s"),
    ("/v1/topics/t/records?wait=1M", "wait", "PT5S"),
    ("/v1/topics/t/records?wait=-1", "wait", "PT5S"),
    ("/v1/topics/t/records?cursor=zzz", "cursor", "latest"),
    ("/v1/topics/t/stream?cursor=zzz", "cursor", "latest"),
    ("/v1/topics/t/stream?limit=5", "limit", "cursor"),
    ("/v1/forecast?by=week", "by", "minute"),
    ("/v1/schedules?from=2030-01-01T00:00:00Z&to=2029-01-01T00:00:00Z", "to", "before 'from'"),
    ("/v1/forecast?from=2030-01-01T00:00:00Z&to=2029-01-01T00:00:00Z", "to", "before 'from'"),
    ("/v1/forecast?from=2030-01-01T00:00:00Z&to=2030-01-01T00:00:00Z", "to", "after 'from'"),
    ("/v1/forecast?to=2020-01-01T00:00:00Z", "to", "now if it is left out"),
    ("/v1/forecast?by=second&to=P30D", "to", "coarser"),
    ("/healthz?x=1", "x", "leave it out"),
]


async def test_a_wrong_parameter_is_named(site: Site) -> None:
    for path, field, advice in QUERIES:
        reply = await site.call("GET", path)
        assert reply.status == 400, path
        [error] = reply.problem["errors"]
        assert error["field"] == field, path
        assert advice in error["detail"]


METHODS = [
    ("PATCH", "/v1/schedules", "GET, POST, HEAD"),
    ("POST", "/v1/schedules/a", "GET, PUT, PATCH, DELETE, HEAD"),
    ("GET", "/v1/schedules/a/pause", "POST"),
    ("POST", "/v1/schedules/a/explain", "GET, HEAD"),
    ("DELETE", "/v1/topics/a/records", "GET, POST, HEAD"),
    ("GET", "/v1/topics/a/groups/b/join", "POST"),
    ("POST", "/healthz", "GET, HEAD"),
    ("OPTIONS", "/v1/schedules", "GET, POST, HEAD"),
]


async def test_a_wrong_method_lists_the_allowed_ones(site: Site) -> None:
    for method, path, allowed in METHODS:
        reply = await site.call(method, path)
        assert reply.status == 405, path
        assert reply.headers["Allow"] == allowed
        assert "use" in reply.problem["detail"]


async def test_an_unknown_path_is_a_problem_too(site: Site) -> None:
    for path in ("/v1", "/v1/schedules/", "/v2/schedules", "/v1/topics/a", "/v1/topics/a/groups/b"):
        reply = await site.call("GET", path)
        assert reply.status == 404, path
        assert "/docs" in reply.problem["detail"]


async def test_an_unknown_verb_lists_the_known_ones(site: Site) -> None:
    for path in ("/v1/schedules/a/stop", "/v1/schedules/a/b/stop", "/v1/schedules/a%2Fb/stop"):
        reply = await site.call("POST", path)
        assert reply.status == 404, path
        assert reply.problem["detail"].endswith("POST .../pause or .../resume or .../fire")


async def test_a_wrong_type_is_described_in_json_terms(site: Site) -> None:
    for path, document, said in (
        ("/v1/schedules", {"topic": 5}, 'topic: is a number: send text, for example "greetings"'),
        ("/v1/preview", {"count": "5"}, "count: is text: send a whole number from 1 on"),
        ("/v1/preview", {"count": 1.5}, "count: is a number with a fraction: send a whole number from 1 on"),
        ("/v1/preview", {"count": 1001}, "count: is too large: send a whole number of at most 1000"),
        ("/v1/preview", {"count": 0}, "count: is too small: send a whole number of at least 1"),
        ("/v1/preview", [], "body: is an array: send a JSON object"),
        ("/v1/keys", {"name": "x", "admin": "yes"}, "admin: is text: send true or false"),
    ):
        assert (await site.call("POST", path, document)).problem["detail"] == said


async def test_a_wrong_content_type_says_which_to_send(site: Site) -> None:
    for kind in ("text/plain", "application/xml", "", "application/x-www-form-urlencoded"):
        for method, path in (("POST", "/v1/schedules"), ("PUT", "/v1/schedules/a"), ("POST", "/v1/preview")):
            reply = await site.call(method, path, data=b"{}", headers={"Content-Type": kind})
            assert reply.status == 415, kind
            assert "application/json" in reply.problem["detail"]
    assert (await site.call("PUT", "/v1/schedules/a", data=b"{}", headers=NDJSON)).status == 415
    packed = await site.call("POST", "/v1/schedules", GOOD, headers={"Content-Encoding": "gzip"}, compress=None)
    assert packed.status == 415
    assert "uncompressed" in packed.problem["detail"]


async def test_every_json_media_type_is_accepted(site: Site) -> None:
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"):
        headers = {"Content-Type": kind}
        reply = await site.call("POST", "/v1/schedules", data=json.dumps(GOOD).encode(), headers=headers)
        assert reply.status == 201, kind


async def test_bodies_over_their_limit_are_refused(site: Site) -> None:
    large = 2 * Limits().line_bytes_max + 1
    document = json.dumps(GOOD | {"value": "x" * large}).encode()
    headers = {"Content-Type": "application/json"}
    for method, path, body in (
        ("POST", "/v1/schedules", document),
        ("PUT", "/v1/schedules/a", document),
        ("POST", "/v1/schedules", b"[" + b" " * (16 * 1024 * 1024)),
        ("POST", "/v1/preview", b" " * 70_000),
        ("POST", "/v1/topics/t/groups/g/join", b" " * 70_000),
    ):
        reply = await site.call(method, path, data=body, headers=headers)
        assert reply.status == 413, path
        assert "is larger than" in reply.problem["detail"]


async def test_a_body_without_a_length_is_bounded_too(site: Site) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 10_000

    reply = await site.call("POST", "/v1/preview", data=endless(), headers={"Content-Type": "application/json"})
    assert reply.status == 413


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
async def test_a_wrong_idempotency_key_is_refused(site: Site, key: str) -> None:
    reply = await site.call("POST", "/v1/schedules", GOOD, headers={"Idempotency-Key": key})
    assert reply.status == 400
    assert "UUID" in reply.problem["detail"]


async def test_put_refuses_another_id_and_a_wrong_switch(site: Site) -> None:
    reply = await site.call("PUT", "/v1/schedules/a", GOOD | {"id": "b"})
    assert reply.problem["errors"][0]["field"] == "id"
    reply = await site.call("PUT", "/v1/schedules/a?reuse=yes", GOOD)
    assert "true, false" in reply.problem["detail"]


async def test_publishing_refuses_a_time_and_another_topic(site: Site) -> None:
    for wrong, advice in (
        ({"at": FAR}, "/v1/schedules"),
        ({"every": "PT1H"}, "/v1/schedules"),
        ({"topic": "b"}, "path"),
    ):
        reply = await site.call("POST", "/v1/topics/a/records", wrong)
        assert reply.status == 400
        assert advice in reply.problem["detail"]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"at": FAR, "scheduled_at": FAR}, "scheduled_at"),
        ({"at": FAR, "every": "PT1H"}, "at"),
        ({"every": "PT1H", "count": 0}, "count"),
        ({"every": "PT1H", "count": 1001}, "count"),
        ({"every": "nonsense"}, "every"),
        ({"topic": "x"}, "topic"),
    ],
)
async def test_a_wrong_preview_is_refused(site: Site, document: dict[str, Any], field: str) -> None:
    reply = await site.call("POST", "/v1/preview", document)
    assert reply.status == 400
    assert reply.problem["errors"][0]["field"] == field


async def test_a_request_that_is_not_http_is_answered(site: Site) -> None:
    reader, writer = await asyncio.open_connection(site.host, site.port)
    writer.write(b"nonsense\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400")
    writer.close()
    await writer.wait_closed()


async def test_names_that_cannot_be_stored_are_refused_in_changes_too(site: Site) -> None:
    """Before the store is asked: PostgreSQL takes no NUL in a text, and would answer for itself."""
    calls: list[tuple[str, str, str]] = [
        ("DELETE", "/v1/schedules/a%00b", "id"),
        ("POST", "/v1/schedules/a%00b/pause", "id"),
        ("POST", "/v1/schedules/a%00b/fire", "id"),
        ("POST", "/v1/topics/a/groups/a%00b/join", "group"),
        ("POST", "/v1/topics/a%00b/groups/a/join", "topic"),
        ("DELETE", "/v1/calendars/a%00b", "name"),
        ("DELETE", f"/v1/schedules/{'x' * 1_000}", "id"),
    ]
    for method, path, field in calls:
        reply = await site.call(method, path)
        assert reply.status == 400, (method, path, reply.status)
        assert [error["field"] for error in reply.problem["errors"]] == [field], path
    for body in ({"id": "a\0b", "topic": "t"}, {"topic": "a\0b"}, {"topic": "t", "labels": {"a\0": "b"}}):
        assert (await site.call("POST", "/v1/schedules", json=body)).status == 400


# Several wrong fields of one schedule, and those that are named: all of a kind that is checked together.
SEVERAL: list[tuple[dict[str, Any], set[str]]] = [
    ({"topic": 5, "at": 6, "zzz": 1, "headers": [["a", 1]]}, {"topic", "at", "zzz", "headers[0][1]"}),
    ({"priority": "urgent", "late": "never", "labels": {"a": 1}}, {"priority", "late", "labels.a"}),
    ({"topic": "no spaces", "at": "at noon", "jitter": "P9D"}, {"topic", "at", "jitter"}),
    ({"id": "", "expires_after": "soon", "late_grace": "PT0S", "late_max": "x"},
     {"id", "expires_after", "late_grace", "late_max"}),
    ({"at": None, "rrule": "FREQ=NEVER", "zone": "Mars/Base", "labels": {"a": "\0"}}, {"rrule", "zone", "labels"}),
    ({"key": "a", "key_base64": "YQ==", "value_base64": "!", "scheduled_at": FAR},
     {"key", "value_base64", "scheduled_at"}),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "fields"), SEVERAL)
async def test_all_wrong_fields_are_named_at_once(site: Site, wrong: dict[str, Any], fields: set[str]) -> None:
    problem = (await site.call("POST", "/v1/schedules", GOOD | wrong)).problem
    assert problem["status"] == 400
    assert {error["field"] for error in problem["errors"]} == fields
    assert len(problem["errors"]) == len(fields)
    assert all(error["detail"] in problem["detail"] for error in problem["errors"])
    line = json.dumps(GOOD | wrong).encode() + b"\n"
    [answer] = (await site.call("POST", "/v1/schedules", data=line, headers=NDJSON)).lines
    assert answer["errors"] == problem["errors"]

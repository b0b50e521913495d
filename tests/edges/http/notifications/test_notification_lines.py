"""Notifications as NDJSON: an answer for each line, repeats, bad lines, and few transactions."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import NotificationServer
from tidings.delivery.accept.acceptance import PreparedBulk
from tidings.delivery.accept.request import NotificationRequest
from tidings.domain.errors import StoreError
from tidings.ports.tables import ChangeGroup, GroupResult

LIST = "/v1/notifications"
LINES = {"Content-Type": "application/x-ndjson"}


def line(**given: Any) -> str:
    return json.dumps({"user": "ada", "content": {"text": "Tea"}, "channel": "email", "at": "+1h"} | given)


async def send(server: NotificationServer, lines: Sequence[str], **headers: str) -> list[Any]:
    reply = await server.call("POST", LIST, data="\n".join(lines).encode(), headers=LINES | headers)
    assert reply.status == 200, reply.body
    return [json.loads(each) for each in reply.body.splitlines()]


async def test_each_line_has_an_outcome_in_order(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    first = await send(server, [line(id="a"), "", "{", line(id="b", user="bob"), line(id="c", at="noonish"), line()])
    assert [(each["line"], each["outcome"]) for each in first] == [
        (1, "scheduled"), (3, "rejected"), (4, "rejected"), (5, "rejected"), (6, "scheduled"),
    ]  # fmt: skip
    assert [each["errors"][0]["field"] for each in first[1:4]] == ["body", "user", "at"]
    assert (first[2]["id"], "due_at" in first[0]) == ("b", True)
    again = await send(
        server,
        [line(id="a"), line(id="a", priority="high"), line(id="d", dedupe_key="k"), line(id="e", dedupe_key="k")],
    )
    assert [each["outcome"] for each in again] == ["unchanged", "conflict", "scheduled", "skipped"]
    assert again[3]["first"] == "d"
    assert (await server.ok("GET", f"{LIST}/{first[4]['id']}"))["state"] == "pending"


async def test_lines_of_lists_and_of_unknown_fields_are_rejected(server: NotificationServer) -> None:
    await server.create_users()
    found = await send(server, [line(user=None, users=["ada"]), line(usr="x"), line(at=5), "[]"])
    assert [each["outcome"] for each in found] == ["rejected"] * 4
    assert [each["errors"][0]["field"] for each in found[:3]] == ["users", "usr", "at"]


async def test_a_line_for_a_webhook_that_is_never_called_is_rejected(server: NotificationServer) -> None:
    hook = {"channel": "webhook", "content": {"text": "x"}, "at": "+1h"}
    lines = [json.dumps(hook | {"to": f"https://{host}/hook"}) for host in ("10.2.0.1", "10.1.0.1", "hooks.example")]
    found = await send(server, lines)
    assert [each["outcome"] for each in found] == ["rejected", "scheduled", "scheduled"]
    assert found[0]["errors"][0]["field"] == "to"


async def test_a_repeat_under_an_idempotency_key_has_the_same_answer(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    lines = [line(), line(id="a"), line(at="noonish")]
    first = await send(server, lines, **{"Idempotency-Key": "k1"})
    again = await send(server, lines, **{"Idempotency-Key": "k1"})
    assert [each["outcome"] for each in first] == ["scheduled", "scheduled", "rejected"]
    assert (again[0], again[1]["outcome"]) == (first[0], "unchanged")
    reply = await server.call("POST", LIST, data=line(id="z").encode(), headers=LINES | {"Idempotency-Key": "k1"})
    assert reply.status == 422


@pytest.mark.slow
async def test_thousands_of_lines_need_few_transactions(
    server_on_each_store: NotificationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_on_each_store
    await server.create_users()
    tables, committed = server.site.engine.store.tables, []
    commit = tables.commit

    async def counted(groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        committed.append(len(groups))
        return await commit(groups, now, urgent=urgent)

    monkeypatch.setattr(tables, "commit", counted)
    found = await send(server, [line(id=f"n-{number}") for number in range(3_000)])
    assert {each["outcome"] for each in found} == {"scheduled"}
    assert [each["line"] for each in found] == list(range(1, 3_001))
    assert (sum(committed), len(committed) <= 30) == (3_000, True), committed


async def test_a_number_out_of_range_is_refused_in_its_own_line(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users("ada")
    lines = [
        b'{"user": "ada", "content": {"text": "x"}, "id": "n-%d", "at": "+1h"}' % number for number in range(1_200)
    ]
    lines[700] = b'{"user": "ada", "content": {"text": "x", "data": {"n": 1e999}}, "id": "n-700", "at": "+1h"}'
    reply = await server_on_each_store.call("POST", LIST, data=b"\n".join(lines), headers=LINES)
    outcomes = [json.loads(line) for line in reply.body.splitlines()]
    assert len(outcomes) == 1_200
    [refused] = [each for each in outcomes if each["outcome"] != "scheduled"]
    assert (refused["line"], refused["outcome"], refused["errors"][0]["field"]) == (701, "rejected", "content.data")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", LIST, b'{"user": "ada", "content": {"text": "x", "data": {"n": 1e999}}}'),
        ("POST", LIST, b'{"user": "ada", "template": "reminder", "variables": {"what": 1e999}}'),
        ("PUT", "/v1/users/ada", b'{"variables": {"n": 1e999}}'),
        ("PATCH", "/v1/users/ada", b'{"variables": {"n": 1e999}}'),
        ("PUT", "/v1/templates/big", b'{"parts": {"webhook": {"en": {"body": {"n": 1e999}}}}}'),
    ],
)
async def test_a_number_out_of_range_is_refused_with_its_field(
    server: NotificationServer, method: str, path: str, body: bytes
) -> None:
    await server.create_users("ada")
    reply = await server.call(method, path, data=body, headers={"Content-Type": "application/json"})
    assert reply.status == 400, reply.body
    assert "out of range" in reply.body.decode()


async def test_lines_that_differ_only_in_their_user_are_answered_in_order_over_several_batches(
    server_on_each_store: NotificationServer,
) -> None:
    server = server_on_each_store
    await server.create_users("ada", "bob")
    users = ["ada", "bob", "nobody"] * 900
    found = await send(server, [line(user=user) for user in users])
    assert [each["line"] for each in found] == list(range(1, len(users) + 1))
    outcomes = [(each.get("user"), each["outcome"]) for each in found]
    assert outcomes == [(None, "rejected") if user == "nobody" else (user, "scheduled") for user in users]


async def test_a_failure_while_a_batch_is_prepared_leaves_the_one_before_it_answered(
    server: NotificationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.create_users()
    acceptance, prepared = server.services.acceptance, []
    prepare = acceptance.prepare_bulk

    async def failing(tenant: str, request: NotificationRequest, users: Sequence[str]) -> PreparedBulk:
        prepared.append(len(users))
        if len(prepared) == 2:
            raise StoreError("the disk is full")
        return await prepare(tenant, request, users)

    monkeypatch.setattr(acceptance, "prepare_bulk", failing)
    *found, problem = await send(server, [line() for _ in range(2_000)])
    assert (len(found), {each["outcome"] for each in found}) == (1_000, {"scheduled"})
    assert (problem["line"], problem["outcome"], problem["status"]) == (1_001, "rejected", 503)

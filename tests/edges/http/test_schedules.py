"""Schedules over HTTP: every row of the contract's table."""

import re
from typing import Any
from urllib.parse import quote

import pytest

from tests.edges.http.site import FAR, Site, serving
from tidings.domain.schedules.iso8601 import format_instant, parse_instant
from tidings.domain.schedules.schedule import make_id
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.memory.store import HOUR_US, MemoryStore

NEW = {
    "id": "order-42-reminder",
    "topic": "greetings",
    "at": "2030-11-20T09:00:00Z",
    "key": "order-42",
    "value": {"hello": "world"},
    "headers": [["trace", "abc"], ["trace", "def"], ["empty", None]],
    "priority": "high",
    "expires_after": "PT1H",
    "late": "fire_latest",
    "labels": {"campaign": "autumn"},
}


async def test_a_new_schedule_is_accepted_and_can_be_read(each_site: Site) -> None:
    reply = await each_site.call("POST", "/v1/schedules", NEW)
    assert reply.status == 201
    assert reply.headers["Location"] == "/v1/schedules/order-42-reminder"
    assert reply.document == {
        "id": "order-42-reminder",
        "outcome": "scheduled",
        "due_at": "2030-11-20T09:00:00.000000Z",
    }
    shown = (await each_site.call("GET", reply.headers["Location"])).document
    assert shown["state"] == "pending"
    assert shown["due_at"] == shown["at"] == "2030-11-20T09:00:00.000000Z"
    assert (shown["key"], shown["value"]) == ("order-42", '{"hello":"world"}')
    assert shown["headers"] == NEW["headers"]
    assert (shown["priority"], shown["late"], shown["expires_after"]) == ("high", "fire_latest", "PT1H")
    assert shown["labels"] == {"campaign": "autumn"}
    assert (shown["occurrence"], shown["generation"]) == (1, 1)


async def test_a_past_time_is_sent_at_once_with_a_note(each_site: Site) -> None:
    sent = {"id": "past", "topic": "greetings", "at": "2020-01-01T00:00:00Z"}
    before = each_site.engine.clock.now()
    made = await each_site.call("POST", "/v1/schedules", sent)
    assert parse_instant(made.document["due_at"]) >= before
    assert re.fullmatch(r"due \d+ years ago: sent now", made.document["note"])
    await each_site.state_of("past", "released")
    [record] = await each_site.records("greetings")
    assert record["due_at"] == made.document["due_at"]
    assert (await each_site.call("POST", "/v1/schedules", sent)).document["outcome"] == "unchanged"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [({"late": "skip"}, "late_skipped"), ({"late_max": "PT1H"}, "late_max"), ({"expires_after": "PT1H"}, "expired")],
)
async def test_a_past_time_too_late_for_its_policy_is_missed(
    each_site: Site, policy: dict[str, str], reason: str
) -> None:
    sent = {"topic": "greetings", "at": "2020-01-01T00:00:00Z", **policy}
    lines = [sent | {"id": f"many-{number}"} for number in range(3)]  # written together, and one by itself
    many = await each_site.call("POST", "/v1/schedules", lines)
    one = await each_site.call("POST", "/v1/schedules", sent | {"id": "one"})
    for document in (*many.document, one.document):
        assert (document["outcome"], document["due_at"]) == ("scheduled", "2020-01-01T00:00:00.000000Z")
        assert document["note"].endswith(f"will not be released: missed ({reason})")
        shown = await each_site.state_of(document["id"], "missed")
        assert shown["reason"] == reason

    async def is_counted() -> bool:
        figures = (await each_site.call("GET", "/metrics")).body
        return f'tidings_missed_total{{reason="{reason}"}} 4'.encode() in figures

    assert await eventually(is_counted)  # it is published after the commit
    assert await each_site.records("greetings") == []


async def test_a_past_time_is_refused_if_requested(each_site: Site) -> None:
    sent = {"topic": "greetings", "at": "2020-01-01T00:00:00Z", "past": "refuse"}
    reply = await each_site.call("POST", "/v1/schedules", sent)
    assert reply.status == 400
    [error] = reply.problem["errors"]
    assert error["field"] == "at"
    assert error["detail"].endswith(" in the past: give a future time, or past=send to send it now")
    assert (await each_site.call("POST", "/v1/schedules", sent | {"at": "+1h"})).status == 201
    wrong = await each_site.call("POST", "/v1/schedules", sent | {"past": "maybe"})
    assert (wrong.status, wrong.problem["errors"][0]["field"]) == (400, "past")


@pytest.mark.parametrize("past", ["send", "refuse"])
async def test_a_repeat_after_its_time_is_answered_as_a_repeat(past: str) -> None:
    clock = SimulatedClock()
    sent = {"topic": "greetings", "at": format_instant(clock.now() + HOUR_US), "past": past}
    async with serving(MemoryStore(), clock) as site:
        key = {"Idempotency-Key": "k-1"}
        first = await site.call("POST", "/v1/schedules", sent, headers=key)
        assert (await site.call("POST", "/v1/schedules", sent | {"id": "mine"})).status == 201
        clock.advance(3 * HOUR_US)
        again = await site.call("POST", "/v1/schedules", sent, headers=key)
        assert (again.status, again.document) == (201, first.document)
        same = await site.call("POST", "/v1/schedules", sent | {"id": "mine"})
        assert (same.status, same.document["outcome"], "note" in same.document) == (200, "unchanged", False)


async def test_past_times_in_a_batch_are_rejected_if_requested(each_site: Site) -> None:
    sent = {"topic": "greetings", "at": "2020-01-01T00:00:00Z", "past": "refuse"}
    reply = await each_site.call("POST", "/v1/schedules", [sent | {"id": "a"}, sent | {"id": "b", "at": FAR}])
    a, b = reply.document
    assert (a["outcome"], a["id"], b["outcome"]) == ("rejected", "a", "scheduled")
    assert (a["errors"][0]["field"], a["errors"][0]["detail"][:10]) == ("at", "is 6 years")


async def test_without_an_id_one_is_generated(each_site: Site) -> None:
    made = await each_site.add(value="x")
    assert (await each_site.call("GET", f"/v1/schedules/{made['id']}")).document["value"] == "x"


async def test_a_repeat_is_unchanged_and_other_content_is_a_conflict(each_site: Site) -> None:
    await each_site.call("POST", "/v1/schedules", NEW)
    again = await each_site.call("POST", "/v1/schedules", NEW)
    assert (again.status, again.document["outcome"]) == (200, "unchanged")
    other = await each_site.call("POST", "/v1/schedules", NEW | {"value": "other"})
    assert other.status == 409
    assert (other.problem["id"], other.problem["outcome"]) == ("order-42-reminder", "rejected")
    assert "another id" in other.problem["detail"]


async def test_put_adds_replaces_and_leaves_unchanged(each_site: Site) -> None:
    path = "/v1/schedules/mine"
    document = {"topic": "greetings", "at": FAR, "value": 1}
    added = await each_site.call("PUT", path, document)
    assert (added.status, added.document["outcome"]) == (201, "scheduled")
    same = await each_site.call("PUT", path, document | {"id": "mine"})
    assert (same.status, same.document["outcome"]) == (200, "unchanged")
    other = await each_site.call("PUT", path, document | {"value": 2})
    assert (other.status, other.document["outcome"]) == (200, "replaced")
    assert (await each_site.call("GET", path)).document["value"] == "2"


async def test_put_replaces_generated_ids_but_adds_none(each_site: Site) -> None:
    made = await each_site.add(value=1)
    replaced = await each_site.call("PUT", f"/v1/schedules/{made['id']}", {"topic": "greetings", "at": FAR, "value": 2})
    assert (replaced.status, replaced.document["outcome"]) == (200, "replaced")
    free = make_id(99, parse_instant(FAR), 1)
    added = await each_site.call("PUT", f"/v1/schedules/{free}", {"topic": "greetings", "at": FAR})
    assert added.status == 400
    assert "choose another" in added.problem["detail"]


async def test_cancel_and_cancel_again(each_site: Site) -> None:
    path = f"/v1/schedules/{(await each_site.add())['id']}"
    for _ in range(2):
        reply = await each_site.call("DELETE", path)
        assert (reply.status, reply.document["outcome"]) == (200, "cancelled")
    assert (await each_site.call("GET", path)).document["state"] == "cancelled"
    for method, tail, document in (("POST", "/pause", None), ("PUT", "", {"topic": "greetings", "value": "new"})):
        reply = await each_site.call(method, path + tail, document)
        assert (reply.status, reply.problem["outcome"]) == (409, "cancelled")
        assert "reuse=true" in reply.problem["detail"]


async def test_a_released_schedule_cannot_be_changed_but_its_id_can_be_reused(each_site: Site) -> None:
    await each_site.publish("greetings", id="gone", value="x")
    for method, path, document in (
        ("DELETE", "/v1/schedules/gone", None),
        ("PUT", "/v1/schedules/gone", {"topic": "greetings", "at": FAR}),
        ("POST", "/v1/schedules", {"topic": "greetings", "id": "gone", "at": FAR}),
        ("POST", "/v1/schedules/gone/pause", None),
        ("POST", "/v1/schedules/gone/fire", None),
    ):
        reply = await each_site.call(method, path, document)
        assert (reply.status, reply.problem["outcome"]) == (409, "already_released"), (method, path)
        assert reply.problem["id"] == "gone"
    reused = await each_site.call("PUT", "/v1/schedules/gone?reuse=true", {"topic": "greetings", "at": FAR})
    assert (reused.status, reused.document["outcome"]) == (201, "scheduled")
    assert (await each_site.call("GET", "/v1/schedules/gone")).document["generation"] == 2


async def test_an_unknown_schedule_is_answered_with_remembered_since(each_site: Site) -> None:
    for method, path in (("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/fire")):
        reply = await each_site.call(method, f"/v1/schedules/nothing{path}")
        assert reply.status == 404
        assert (reply.problem["id"], reply.problem["outcome"]) == ("nothing", "unknown")
        assert parse_instant(reply.problem["remembered_since"]) >= 0
    for path in ("", "/explain"):
        reply = await each_site.call("GET", f"/v1/schedules/nothing{path}")
        assert (reply.status, reply.problem["outcome"]) == (404, "unknown")
        assert parse_instant(reply.problem["remembered_since"]) <= each_site.engine.clock.now()


async def test_pause_resume_and_fire(each_site: Site) -> None:
    path = f"/v1/schedules/{(await each_site.add(value='now'))['id']}"
    for verb, outcome in (("pause", "paused"), ("pause", "paused"), ("resume", "resumed"), ("resume", "unchanged")):
        reply = await each_site.call("POST", f"{path}/{verb}")
        assert (reply.status, reply.document["outcome"]) == (200, outcome)
    fired = await each_site.call("POST", f"{path}/fire")
    assert (fired.status, fired.document["outcome"]) == (200, "fired")
    await each_site.state_of(fired.document["id"], "released")
    assert [record["value"] for record in await each_site.records("greetings")] == ["now"]


async def test_explain_shows_the_history_with_lateness(each_site: Site) -> None:
    made = await each_site.publish("greetings", value="x")
    explained = (await each_site.call("GET", f"/v1/schedules/{made['id']}/explain")).document
    assert explained["state"] == "released"
    words = [event["event"] for event in explained["history"]]
    assert words == ["accepted", "released"]
    released = explained["history"][-1]
    late_us = parse_instant(released["at"]) - parse_instant(released["due_at"])
    assert released["late_ms"] * 1000 == pytest.approx(late_us)
    assert released["late_ms"] >= 0


async def test_recurring_schedules_show_their_interval(each_site: Site) -> None:
    sent = "R5/2030-01-31T00:00:00Z/P1M/2031-01-31T00:00:00Z"
    made = await each_site.add(every=sent)
    shown = (await each_site.call("GET", f"/v1/schedules/{made['id']}")).document
    assert shown["every"] == "R5/2030-01-31T00:00:00.000000Z/P1M/2031-01-31T00:00:00.000000Z"


async def test_ids_may_contain_any_printable_character(each_site: Site) -> None:
    for schedule_id in ("a/b", "a/explain", "explain", "grüße 日本", "a%2Fb", "x?y#z", "a+b", "..", "a//b"):
        path = f"/v1/schedules/{quote(schedule_id, safe='')}"
        made = await each_site.call("PUT", path, {"topic": "greetings", "at": FAR, "value": "x"})
        assert made.document["id"] == schedule_id
        assert made.headers["Location"] == path
        assert (await each_site.call("GET", path)).document["id"] == schedule_id
        assert (await each_site.call("GET", f"{path}/explain")).document["history"]
        cancelled = (await each_site.call("DELETE", path)).document
        assert (cancelled["id"], cancelled["outcome"]) == (schedule_id, "cancelled")


async def test_an_id_with_plain_slashes_is_understood(site: Site) -> None:
    await site.add(id="orders/42")
    assert (await site.call("GET", "/v1/schedules/orders/42")).document["id"] == "orders/42"
    assert (await site.call("POST", "/v1/schedules/orders/42/pause")).document["outcome"] == "paused"


async def test_lists_are_filtered(each_site: Site) -> None:
    await each_site.add(id="a-1", at="2030-01-01T00:00:00Z", labels={"campaign": "autumn"})
    await each_site.add(id="a-2", at="2030-01-02T00:00:00Z", topic="other", value="never shown in lists")
    await each_site.add(id="b-1", at="2030-01-03T00:00:00Z")
    await each_site.call("POST", "/v1/schedules/b-1/pause")

    async def ids(query: str) -> list[str]:
        reply = await each_site.call("GET", f"/v1/schedules?{query}")
        assert reply.status == 200, reply.body
        assert reply.document["cursor"] is None
        return [row["id"] for row in reply.document["schedules"]]

    assert sorted(await ids("")) == ["a-1", "a-2", "b-1"]
    assert await ids("topic=other") == ["a-2"]
    assert await ids("state=paused") == ["b-1"]
    assert sorted(await ids("prefix=a-")) == ["a-1", "a-2"]
    assert await ids("label=campaign=autumn") == await ids("label=campaign:autumn") == ["a-1"]
    assert await ids("from=2030-01-02T00:00:00Z&to=2030-01-03T00:00:00Z") == ["a-2"]
    assert await ids("from=2030-01-02T01:00:00+01:00&to=2030-01-03T00:00:00%2B00:00") == ["a-2"]
    assert await ids("to=+1h") == []
    rows = (await each_site.call("GET", "/v1/schedules?topic=other")).document["schedules"]
    assert "value" not in rows[0]


async def test_lists_continue_with_a_cursor(each_site: Site) -> None:
    wanted = [f"id-{n}" for n in range(7)]
    for n, schedule_id in enumerate(wanted):
        await each_site.add(id=schedule_id, at=f"2030-01-0{n + 1}T00:00:00Z")
    found: list[str] = []
    cursor = ""
    while True:
        page = (await each_site.call("GET", f"/v1/schedules?limit=3{cursor}")).document
        assert len(page["schedules"]) <= 3
        found += [row["id"] for row in page["schedules"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={quote(page['cursor'], safe='')}"
    assert sorted(found) == wanted


async def test_etags_guard_changes(each_site: Site) -> None:
    path = "/v1/schedules/guarded"
    document: dict[str, Any] = {"topic": "greetings", "at": FAR, "value": 1}
    none_yet = {"If-None-Match": "*"}
    assert (await each_site.call("PUT", path, document, headers=none_yet)).status == 201
    there = await each_site.call("PUT", path, document, headers=none_yet)
    assert (there.status, there.problem["title"]) == (412, "The precondition is not met")
    etag = (await each_site.call("GET", path)).headers["ETag"]
    assert (await each_site.call("GET", path, headers={"If-None-Match": etag})).status == 304
    assert (await each_site.call("GET", path, headers={"If-None-Match": '"other"'})).status == 200
    mine = {"If-Match": etag}
    assert (await each_site.call("PUT", path, document | {"value": 2}, headers=mine)).document["outcome"] == "replaced"
    for method, sent in (("PUT", document | {"value": 3}), ("DELETE", None)):
        stale = await each_site.call(method, path, sent, headers=mine)
        assert stale.status == 412
        assert "GET it" in stale.problem["detail"]
    now = {"If-Match": f'"zzz", {(await each_site.call("GET", path)).headers["ETag"]}'}
    assert (await each_site.call("DELETE", path, headers=now)).document["outcome"] == "cancelled"
    nothing = await each_site.call("DELETE", "/v1/schedules/nothing", headers={"If-Match": "*"})
    assert nothing.status == 412


async def test_an_idempotency_key_replays_the_answer(each_site: Site) -> None:
    headers = {"Idempotency-Key": "4f0c"}
    document = {"topic": "greetings", "at": "+1h", "value": "x"}
    first = await each_site.call("POST", "/v1/schedules", document, headers=headers)
    again = await each_site.call("POST", "/v1/schedules", document, headers=headers)
    assert (first.status, first.document) == (again.status, again.document)
    assert len((await each_site.call("GET", "/v1/schedules")).document["schedules"]) == 1
    other = await each_site.call("POST", "/v1/schedules", document | {"value": "y"}, headers=headers)
    assert other.status == 422
    assert "new key" in other.problem["detail"]
    elsewhere = await each_site.call("POST", "/v1/topics/greetings/records", {"value": "x"}, headers=headers)
    assert elsewhere.status == 422
    assert "was used before for another request" in elsewhere.problem["detail"]


async def test_an_idempotency_key_makes_fire_happen_once(each_site: Site) -> None:
    made = await each_site.add(every="R/2030-01-01T00:00:00Z/P1D", value="extra")
    headers = {"Idempotency-Key": "fire-1"}
    for _ in range(2):
        reply = await each_site.call("POST", f"/v1/schedules/{made['id']}/fire", headers=headers)
        assert reply.document["outcome"] == "fired"
    page = (await each_site.call("GET", "/v1/topics/greetings/records?wait=5")).document
    assert len(page["records"]) == 1
    await each_site.publish("greetings", value="later")
    assert len(await each_site.records("greetings")) == 2


async def test_head_is_get_without_a_body(site: Site) -> None:
    await site.add(id="mine")
    for path in ("/v1/schedules", "/v1/schedules/mine", "/v1/topics", "/healthz", "/docs", "/v1/topics/t/stream"):
        reply = await site.call("HEAD", path)
        assert (reply.status, reply.body) == (200, b""), path
    assert "ETag" in (await site.call("HEAD", "/v1/schedules/mine")).headers

"""PATCH of a schedule: only the given fields change."""

from typing import Any

import pytest

from tests.edges.http.site import FAR, Site

ONE = "/v1/schedules/one"
LATER = "2031-01-01T00:00:00.000000Z"


async def put(site: Site, **document: Any) -> None:
    given = {"topic": "greetings", "at": FAR, "key": "k", "value": {"a": 1}, "labels": {"run": "7"}} | document
    assert (await site.call("PUT", ONE, given)).status == 201


async def shown(site: Site) -> Any:
    return (await site.call("GET", ONE)).document


async def test_the_time_alone_or_the_content_alone(site: Site) -> None:
    await put(site, priority="high", late="skip")
    before = await shown(site)
    moved = await site.call("PATCH", ONE, {"at": LATER})
    assert (moved.status, moved.document["outcome"], moved.document["due_at"]) == (200, "replaced", LATER)
    changed = await site.call("PATCH", ONE, {"value": {"a": 2}, "labels": None})
    assert (changed.document["outcome"], changed.document["due_at"]) == ("replaced", LATER)
    after = await shown(site)
    assert (after["value"], after["key"], after["priority"], after["late"]) == ('{"a":2}', "k", "high", "skip")
    assert ("labels" in before, "labels" in after) == (True, False)


@pytest.mark.parametrize("when", [{"every": "R/PT1H"}, {"cron": "0 9 * * *"}, {"rrule": "FREQ=DAILY;BYHOUR=9"}])
async def test_a_recurring_one_keeps_its_time_and_its_number(site: Site, when: dict[str, str]) -> None:
    await put(site, at=None, **when)
    before = await shown(site)
    for number in range(3):
        reply = await site.call("PATCH", ONE, {"value": number})
        assert (reply.status, reply.document["outcome"]) == (200, "replaced"), reply.body
    after = await shown(site)
    assert (after["due_at"], after["occurrence"], after["value"]) == (before["due_at"], before["occurrence"], "2")


async def test_a_recurring_one_keeps_its_jitter(site: Site) -> None:
    await put(site, at=None, every="R/PT1H", jitter="PT30M")
    before = await shown(site)
    assert (await site.call("PATCH", ONE, {"value": 1})).document["due_at"] == before["due_at"]
    found = await site.engine.store.find("default", "one", site.engine.clock.now())
    assert found is not None
    assert found.jitter_window_us == 1_800_000_000
    removed = await site.call("PATCH", ONE, {"jitter": None})
    assert removed.document["due_at"] < before["due_at"]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"topc": "x"}, "topc"),
        ({"topc": None}, "topc"),
        ({"at": None}, "at"),
        ({"at": "noonish"}, "at"),
        ({"id": "two"}, "id"),
    ],
)
async def test_wrong_changes_are_refused_by_field(site: Site, document: dict[str, Any], field: str) -> None:
    await put(site)
    reply = await site.call("PATCH", ONE, document)
    assert (reply.status, field in [each["field"] for each in reply.document["errors"]]) == (400, True), reply.body


async def test_unknown_and_finished_schedules_and_preconditions(site: Site) -> None:
    assert (await site.call("PATCH", ONE, {"at": FAR})).status == 404
    await put(site)
    stale = await site.call("PATCH", ONE, {"at": LATER}, headers={"If-Match": '"x"'})
    assert stale.status == 412
    assert (await site.call("DELETE", ONE)).status == 200
    assert (await site.call("PATCH", ONE, {"at": FAR})).status == 409


@pytest.mark.parametrize("when", [{"at": FAR}, {"at": None, "every": "R/PT1H"}, {"at": None, "cron": "0 9 * * *"}])
async def test_nothing_is_written_if_nothing_changes(site: Site, when: dict[str, Any]) -> None:
    await put(site, late="skip", late_grace="PT5S", expires_after="PT1H", **when)
    before = await shown(site)
    for changes in ({}, {"value": {"a": 1}}, {"key": "k", "late": "skip"}, {"labels": {"run": "7"}}):
        reply = await site.call("PATCH", ONE, changes)
        assert (reply.status, reply.document["outcome"]) == (200, "unchanged"), changes
        assert reply.document["due_at"] == before["due_at"]
    assert await shown(site) == before
    if when["at"] is not None:
        assert (await site.call("PATCH", ONE, {"at": FAR})).document["outcome"] == "unchanged"


async def test_an_empty_body_is_refused(site: Site) -> None:
    await put(site)
    for method, path in (("PATCH", ONE), ("PUT", ONE), ("POST", "/v1/schedules"), ("POST", "/v1/preview")):
        for body in (b"", b" \n"):
            reply = await site.call(method, path, data=body, headers={"Content-Type": "application/json"})
            assert reply.status == 400, (method, path)
            assert reply.document["detail"].startswith("body: is empty"), reply.body
    for verb in ("pause", "resume", "fire"):
        assert (await site.call("POST", f"{ONE}/{verb}", {"at": FAR})).status == 400


@pytest.mark.parametrize("at", ["+1h", "PT1H"])
async def test_a_duration_is_a_new_time_in_a_patch_and_the_same_content_in_a_put(site: Site, at: str) -> None:
    given = {"topic": "greetings", "at": at, "value": 1}
    assert (await site.call("PUT", ONE, given)).status == 201
    due = (await shown(site))["due_at"]
    again = await site.call("PUT", ONE, given)
    assert (again.document["outcome"], again.document["due_at"]) == ("unchanged", due)
    for _ in range(2):
        moved = await site.call("PATCH", ONE, {"at": at})
        assert (moved.status, moved.document["outcome"]) == (200, "replaced"), moved.body
        assert moved.document["due_at"] > due
        due = (await shown(site))["due_at"]
        assert moved.document["due_at"] == due


async def test_a_wrong_duration_is_refused_with_all_other_wrong_fields(site: Site) -> None:
    await put(site)
    reply = await site.call("PATCH", ONE, {"at": "+1x", "expires_after": "soon"})
    assert {each["field"] for each in reply.document["errors"]} == {"at", "expires_after"}, reply.body

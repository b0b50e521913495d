"""Changing notifications over HTTP: replace, patch, pause, resume, and using an id again."""

from itertools import product
from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import FAR, NINE, NotificationServer
from tidings.domain.notifications.message import Email
from tidings.testing import eventually

LIST = "/v1/notifications"
ONE = f"{LIST}/n-1"
TEA: dict[str, Any] = {"user": "ada", "channel": "email", "content": {"text": "Tea", "title": "Tea"}}


def texts(server: NotificationServer) -> list[str]:
    """What was sent, in order."""
    return [message.text for message in server.mail.calls if isinstance(message, Email)]


async def test_put_creates_replaces_and_repeats(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    new = await server.call("PUT", ONE, NINE | {"at": FAR})
    assert (new.status, new.document["outcome"], new.headers["location"]) == (201, "scheduled", ONE)
    again = await server.call("PUT", ONE, NINE | {"at": FAR})
    assert (again.status, again.document["outcome"]) == (200, "unchanged")
    other = NINE | {"at": "+2s", "variables": {"what": "ten"}}
    replaced = await server.call("PUT", ONE, other | {"id": "n-1"})
    assert (replaced.status, replaced.document["outcome"]) == (200, "replaced")
    await server.ok("PATCH", ONE, {"at": "+10ms"})
    await server.settled("n-1")
    assert texts(server) == ["It is ten."]
    late = await server.call("PUT", ONE, NINE)
    assert (late.status, late.document["outcome"]) == (409, "already_released")
    assert (await server.call("PATCH", ONE, {"at": FAR})).document["outcome"] == "already_released"


async def test_a_sent_notification_has_one_state_in_every_refusal(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("PUT", ONE, NINE)
    await server.settled("n-1")
    state = (await server.ok("GET", ONE))["state"]
    calls = [("PUT", ONE, NINE), ("PATCH", ONE, {"at": FAR}), ("POST", f"{ONE}/pause", None), ("DELETE", ONE, None)]
    for method, path, body in calls:
        late = await server.call(method, path, body)
        assert (late.status, late.problem["outcome"], late.problem["state"]) == (409, "already_released", state)
        assert late.problem["detail"].startswith("it was sent or has ended: "), late.problem


async def test_patch_changes_only_what_is_given(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    await server.ok("PUT", ONE, NINE | {"at": FAR, "priority": "high", "category": "news"})
    moved = await server.ok("PATCH", ONE, {"at": "2031-01-01T00:00:00Z"})
    assert (moved["outcome"], moved["due_at"]) == ("replaced", "2031-01-01T00:00:00.000000Z")
    changed = await server.ok("PATCH", ONE, {"variables": {"what": "ten"}})
    assert (changed["outcome"], changed["due_at"]) == ("replaced", "2031-01-01T00:00:00.000000Z")
    shown = await server.ok("GET", ONE)
    assert (shown["variables"], shown["priority"], shown["category"]) == ({"what": "ten"}, "high", "news")
    assert shown["due_at"] == "2031-01-01T00:00:00.000000Z"
    await server.ok("PATCH", ONE, {"content": {"text": "Cake"}, "category": None})
    shown = await server.ok("GET", ONE)
    assert ("template" in shown, shown["content"], shown["category"]) == (False, {"text": "Cake"}, "transactional")
    await server.ok("PATCH", ONE, {"at": "+10ms"})
    await server.settled("n-1")
    assert texts(server) == ["Cake"]


@pytest.mark.slow
async def test_a_patched_recurring_notification_continues(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("PUT", ONE, TEA | {"every": "R/PT1S"})
    await eventually(lambda: server.mail.calls)
    await server.ok("PATCH", ONE, {"content": {"text": "Cake"}})
    await eventually(lambda: "Cake" in texts(server))
    shown = await server.ok("GET", ONE)
    assert shown["occurrence"] > 1
    sent = texts(server)
    assert sent == sorted(sent, reverse=True), "after the answer nothing is sent with the former content"
    await server.ok("DELETE", ONE)


POLICIES = ({"late": "skip", "late_grace": "PT5S"}, {"late_max": "PT1H"}, {"jitter": "PT1S"})
WHENS = ({"at": FAR}, {"at": "tomorrow 09:00"}, {"every": "R/PT1H"}, {"cron": "0 9 * * *"})


async def test_a_policy_changes_without_the_time(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    for number, (when, policy) in enumerate(product(WHENS, POLICIES)):
        one, schedule = f"{LIST}/p-{number}", f"/v1/schedules/p-{number}"
        await server.ok("PUT", one, NINE | ({} if "at" in when else {"jitter": "PT2S"}) | when)
        before = await server.ok("GET", schedule)
        assert (await server.ok("PATCH", one, policy))["outcome"] == "replaced"
        after = await server.ok("GET", schedule)
        for name in ("state", "every", "cron", "zone", "start"):
            assert after.get(name) == before.get(name)
        if "jitter" not in policy:
            assert after["due_at"] == before["due_at"]
            assert {**after, **policy} == after
        else:
            assert after["due_at"][:16] == before["due_at"][:16], "it is due within a second of its time"
        assert (await server.ok("PATCH", one, {"variables": {"what": "ten"}}))["due_at"] == after["due_at"]
        last = await server.ok("GET", schedule)
        assert {name for name in after if after[name] != last[name]} == {"accepted_at", "generation"}


async def test_an_address_that_does_not_fit_the_channel_is_refused_with_the_channel(server: NotificationServer) -> None:
    await server.ok("PUT", ONE, TEA | {"user": None, "to": "https://example.com/hook", "channel": "webhook", "at": FAR})
    refused = await server.call("PATCH", ONE, {"to": "a@b.example"})
    [error] = refused.problem["errors"]
    assert error["field"] == "to"
    assert error["detail"].startswith("is for the channel webhook, but has a scheme other than http and https: ")
    assert error["detail"].endswith("; for another channel give 'channel' too")
    assert (await server.ok("PATCH", ONE, {"to": "a@b.example", "channel": "email"}))["outcome"] == "replaced"


async def test_a_time_cannot_be_removed(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("PUT", ONE, NINE | {"at": FAR})
    for changes in ({"at": None}, {"every": None}, {"zone": None}, {"zone": "Europe/Berlin"}, {"count": 3}):
        reply = await server.call("PATCH", ONE, changes)
        assert (reply.status, reply.document["errors"][0]["field"]) == (400, next(iter(changes))), reply.body
    assert (await server.ok("GET", ONE))["due_at"] == "2030-01-01T00:00:00.000000Z"


async def test_pause_and_resume(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    await server.ok("PUT", ONE, NINE | {"at": FAR})
    for _ in range(2):
        assert (await server.ok("POST", f"{ONE}/pause"))["outcome"] == "paused"
    shown = await server.ok("GET", ONE)
    assert (shown["state"], shown["reason"]) == ("pending", "paused")
    assert (await server.ok("PATCH", ONE, {"at": "+10ms"}))["state"] == "paused"
    assert (await server.ok("POST", f"{ONE}/resume?missed=fire_latest"))["outcome"] == "resumed"
    await server.settled("n-1")
    for verb in ("pause", "resume"):
        assert (await server.call("POST", f"{ONE}/{verb}")).status == 409
        assert (await server.call("POST", f"{LIST}/nothing/{verb}")).status == 404


async def test_a_cancelled_id_can_be_used_again(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    await server.ok("PUT", ONE, NINE | {"at": FAR})
    await server.ok("DELETE", ONE)
    for refused in (await server.call("PUT", ONE, TEA), await server.call("PATCH", ONE, {"at": FAR})):
        assert (refused.status, refused.document["outcome"]) == (409, "cancelled")
        assert refused.document["detail"].startswith("it was cancelled: PUT it with ?reuse=true")
    again = await server.call("PUT", f"{ONE}?reuse=true", TEA)
    assert (again.status, again.document["outcome"]) == (201, "scheduled")
    sent = await server.settled("n-1")
    assert sent["name"] == "n-1/2.1"
    assert texts(server) == ["Tea"]
    assert (await server.ok("GET", ONE))["state"] == "sent"


@pytest.mark.parametrize(
    ("method", "document", "field"),
    [
        ("PUT", TEA | {"id": "other"}, "id"),
        ("PUT", TEA | {"dedupe_key": "k"}, "dedupe_key"),
        ("PUT", {**TEA, "user": None, "users": ["ada"]}, "users"),
        ("PUT", TEA | {"at": 5}, "at"),
        ("PUT", TEA | {"user": "nobody"}, "user"),
        ("PATCH", {"at": "noonish"}, "at"),
        ("PATCH", {"at": 5}, "at"),
        ("PATCH", {"id": "other"}, "id"),
        ("PATCH", {"usr": "ada"}, "usr"),
        ("PATCH", {"usr": None}, "usr"),
        ("PATCH", {"variables": "x"}, "variables"),
        ("PATCH", {"template": "none"}, "template"),
    ],
)
async def test_wrong_changes_are_refused_by_field(
    server: NotificationServer, method: str, document: dict[str, Any], field: str
) -> None:
    await server.create_users()
    await server.ok("PUT", ONE, NINE | {"at": FAR})
    before = await server.ok("GET", ONE)
    reply = await server.call(method, ONE, document)
    assert reply.status == 400, reply.body
    assert field in [each["field"] for each in reply.document["errors"]]
    assert await server.ok("GET", ONE) == before


async def test_unknown_and_skipped_notifications(server: NotificationServer) -> None:
    await server.create_users()
    assert (await server.call("PATCH", ONE, {"at": FAR})).status == 404
    first = await server.ok("POST", LIST, TEA | {"at": FAR, "dedupe_key": "k"})
    second = await server.ok("POST", LIST, TEA | {"at": FAR, "dedupe_key": "k", "id": "n-1"})
    assert (second["outcome"], second["first"]) == ("skipped", first["id"])
    reply = await server.call("PATCH", ONE, {"at": FAR})
    assert (reply.status, reply.document["outcome"]) == (409, "rejected")
    assert first["id"] in reply.document["detail"]
    await server.ok("POST", "/v1/schedules", {"id": "plain", "topic": "t", "at": FAR})
    assert (await server.call("PUT", f"{LIST}/plain", TEA)).status == 409
    assert (await server.call("PUT", ONE, data=b"{}\n", headers={"Content-Type": "text/csv"})).status == 415


async def quiet(server: NotificationServer) -> None:
    """Begin two quiet hours of the user."""
    minutes = server.site.engine.clock.now() // 60_000_000
    start, end = (f"{each // 60 % 24:02}:{each % 60:02}" for each in (minutes - 60, minutes + 120))
    await server.ok("PATCH", "/v1/users/ada", {"quiet": {"hours": f"{start}-{end}"}, "zone": "UTC"})


async def waits(server: NotificationServer, delivery: str) -> None:
    """Wait until a delivery waits for the end of quiet hours."""

    async def is_deferred() -> bool:
        found = (await server.call("GET", f"/v1/deliveries/{delivery}")).document
        return (found.get("state"), found.get("reason")) == ("pending", "quiet_hours")

    await eventually(is_deferred)


async def test_a_deferred_notification_can_be_changed(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    await quiet(server)
    await server.ok("PUT", ONE, TEA)
    await waits(server, "n-1/1")
    before = await server.ok("GET", ONE)
    assert (before["state"], before["reason"]) == ("pending", "quiet_hours")
    assert (await server.ok("PATCH", ONE, {}))["outcome"] == "unchanged"
    assert (await server.ok("PUT", ONE, TEA))["outcome"] == "unchanged"
    changed = await server.ok("PATCH", ONE, {"content": {"text": "Cake"}})
    assert (changed["outcome"], changed["due_at"]) == ("replaced", before["due_at"])
    await waits(server, "n-1/2.1")
    shown = await server.ok("GET", ONE)
    assert (shown["state"], shown["reason"], shown["content"]) == ("pending", "quiet_hours", {"text": "Cake"})
    assert [(each["name"], each["state"]) for each in shown["deliveries"]] == [
        ("n-1/1", "cancelled"),
        ("n-1/2.1", "pending"),
    ]
    urgent = await server.ok("PATCH", ONE, {"priority": "high"})
    assert urgent["outcome"] == "replaced"
    await server.settled("n-1")
    assert texts(server) == ["Cake"]
    assert (await server.ok("GET", ONE))["state"] == "sent"
    retries = await server.ok("GET", "/v1/schedules?prefix=n-1/&state=pending")
    assert retries["schedules"] == []
    assert (await server.call("DELETE", ONE)).document["outcome"] == "already_released"


async def test_a_deferred_notification_can_be_paused_rescheduled_and_replaced(
    server_on_each_store: NotificationServer,
) -> None:
    server = server_on_each_store
    await server.create_users()
    await quiet(server)
    await server.ok("PUT", ONE, TEA)
    await waits(server, "n-1/1")
    assert (await server.ok("POST", f"{ONE}/resume"))["outcome"] == "unchanged"
    assert (await server.ok("POST", f"{ONE}/pause"))["outcome"] == "paused"
    shown = await server.ok("GET", ONE)
    assert (shown["state"], shown["reason"]) == ("pending", "paused")
    former = await server.ok("GET", "/v1/deliveries/n-1/1")
    assert (former["state"], former["reason"]) == ("cancelled", "paused")
    await server.ok("PATCH", "/v1/users/ada", {"quiet": None})
    assert (await server.ok("POST", f"{ONE}/resume"))["outcome"] == "resumed"
    await server.settled("n-1")
    assert texts(server) == ["Tea"]
    await quiet(server)
    await server.ok("PUT", f"{LIST}/n-2", TEA)
    await waits(server, "n-2/1")
    moved = await server.ok("PATCH", f"{LIST}/n-2", {"at": FAR})
    assert (moved["outcome"], moved["due_at"]) == ("replaced", "2030-01-01T00:00:00.000000Z")
    former = await server.ok("GET", "/v1/deliveries/n-2/1")
    assert (former["state"], former["reason"]) == ("cancelled", "replaced")
    assert (await server.ok("PUT", f"{LIST}/n-2", TEA | {"at": FAR, "category": "news"}))["outcome"] == "replaced"
    assert (await server.ok("DELETE", f"{LIST}/n-2"))["outcome"] == "cancelled"
    assert texts(server) == ["Tea"]


async def test_nothing_is_written_if_nothing_changes(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users()
    for number, when in enumerate(WHENS):
        one = f"{LIST}/k-{number}"
        await server.ok("PUT", one, NINE | {"late": "skip", "expires_after": "PT1H"} | when)
        before = await server.call("GET", one)
        same: list[dict[str, Any]] = [{}, {"variables": {"what": "nine"}}, {"user": "ada", "late": "skip"}]
        for changes in same:
            reply = await server.ok("PATCH", one, changes)
            assert (reply["outcome"], reply["due_at"]) == ("unchanged", before.document["due_at"]), (when, changes)
        after = await server.call("GET", one)
        assert (after.document, after.headers["etag"]) == (before.document, before.headers["etag"])
    assert (await server.ok("PATCH", f"{LIST}/k-0", {"at": FAR}))["outcome"] == "unchanged"


async def test_preconditions(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("PUT", ONE, NINE | {"at": FAR})
    shown = await server.call("GET", ONE)
    etag = shown.headers["etag"]
    assert (await server.call("GET", ONE, headers={"If-None-Match": etag})).status == 304
    stale, current = {"If-Match": '"x"'}, {"If-Match": etag}
    for method, path, body in (
        ("PUT", ONE, TEA),
        ("PATCH", ONE, {"at": "+1h"}),
        ("POST", f"{ONE}/pause", None),
        ("POST", f"{ONE}/resume", None),
        ("DELETE", ONE, None),
    ):
        assert (await server.call(method, path, body, headers=stale)).status == 412, path
    assert (await server.call("PUT", ONE, TEA, headers={"If-None-Match": "*"})).status == 412
    assert (await server.call("GET", ONE)).document == shown.document
    changed = await server.call("PATCH", ONE, {"at": "2031-01-01T00:00:00Z"}, headers=current)
    assert changed.status == 200
    assert changed.headers["etag"] == (await server.call("GET", ONE)).headers["etag"]
    assert (await server.call("PATCH", ONE, {"at": FAR}, headers=current)).status == 412


async def test_the_rule_is_shown(server: NotificationServer) -> None:
    await server.create_users()
    asked = {"cron": "30 8 * * 1-5", "late": "skip", "late_grace": "PT5S", "jitter": "PT1S"}
    await server.ok("PUT", ONE, NINE | asked)
    for path in (ONE, f"{ONE}/explain"):
        shown = await server.ok("GET", path)
        assert {name: shown[name] for name in asked} == asked
        assert (shown["zone"], "due_at_local" in shown) == ("America/New_York", True)


async def test_answers_to_changes_say_as_much_as_those_to_new_ones(server: NotificationServer) -> None:
    await server.create_users()
    new = await server.ok("PUT", ONE, NINE | {"at": "tomorrow 09:00"})
    assert (new["user"], new["channels"]) == ("ada", ["email"])
    assert new["due_at_local"][11:16] == "09:00"
    changed = await server.ok("PATCH", ONE, {"variables": {"what": "ten"}})
    assert {name: changed[name] for name in ("user", "channels", "due_at_local")} == {
        name: new[name] for name in ("user", "channels", "due_at_local")
    }
    await server.ok("PUT", "/v1/users/bob", {"name": "Bob", "email": "bob@example.com", "zone": "Asia/Tokyo"})
    moved = await server.ok("PATCH", ONE, {"user": "bob"})
    assert (moved["user"], moved["due_at"]) == ("bob", new["due_at"])
    assert "America/New_York" in moved["note"]


async def test_a_body_where_none_is_used_and_an_empty_one_where_one_is(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("PUT", ONE, NINE | {"at": FAR})
    for verb in ("pause", "resume"):
        assert (await server.call("POST", f"{ONE}/{verb}", {"at": FAR})).status == 400
    profile = await server.ok("GET", "/v1/users/ada")
    for method, path in (
        ("PUT", ONE),
        ("PATCH", ONE),
        ("POST", LIST),
        ("PUT", "/v1/users/ada"),
        ("PATCH", "/v1/users/ada"),
    ):
        reply = await server.call(method, path, data=b"", headers={"Content-Type": "application/json"})
        assert (reply.status, reply.document["detail"]) == (400, "body: is empty: send a JSON object"), path
    assert await server.ok("GET", "/v1/users/ada") == profile


async def test_a_body_is_refused_where_none_is_used_and_an_empty_object_is_none(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("POST", "/v1/schedules", {"id": "s-1", "topic": "t", "value": "v", "at": FAR})
    await server.ok("PUT", ONE, NINE | {"at": FAR})
    for path, verbs in ((ONE, ("pause", "resume")), ("/v1/schedules/s-1", ("pause", "resume", "fire"))):
        calls = [("POST", f"{path}/{verb}") for verb in verbs]
        if path == ONE:
            calls.append(("DELETE", ONE))
        for method, each in calls:
            reply = await server.call(method, each, {"x": 1})
            assert (reply.status, reply.document["detail"].split(":")[0]) == (400, "body"), each
            assert (await server.call(method, each, {})).status == 200, each
    for path in ("/v1/schedules/s-1", "/v1/templates/line", "/v1/users/ada", "/v1/calendars/none"):
        assert (await server.call("DELETE", path, {"x": 1})).status == 400, path


async def test_the_schedule_of_a_notification_is_not_patched_by_itself(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("PUT", ONE, NINE | {"at": FAR})
    put, patch = await server.call("PUT", "/v1/schedules/n-1", {"topic": "t"}), None
    patch = await server.call("PATCH", "/v1/schedules/n-1", {"at": FAR})
    assert (patch.status, patch.document) == (409, put.document)
    await server.ok("DELETE", ONE)
    assert (await server.call("PATCH", "/v1/schedules/n-1", {"at": FAR})).document["outcome"] == "cancelled"


async def test_a_change_says_what_is_missing_in_the_terms_of_the_call(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("PUT", ONE, TEA | {"at": FAR})
    for changes, text in (
        ({"user": None}, "user: cannot be removed: give another 'user'"),
        ({"variables": {"what": "ten"}}, "variables: it has no template: change its 'content'"),
        ({"content": None}, "content: cannot be removed"),
        ({"prioritty": "high"}, "prioritty: unknown field: did you mean 'priority'?"),
        ({"priority": "urgent"}, "priority: 'urgent' is not known: use one of high, normal, low"),
        ({"channel": 5}, "channel: is a number"),
    ):
        reply = await server.call("PATCH", ONE, changes)
        assert (reply.status, reply.document["detail"][: len(text)]) == (400, text)
    user = await server.call("PATCH", "/v1/users/ada", {"emial": "x"})
    assert user.document["detail"] == "emial: unknown field: did you mean 'email'?"
    null = await server.call("POST", LIST, NINE | {"variables": {"what": None}})
    assert null.document["detail"].startswith("variables: missing 'what'")
    twice = await server.call("POST", LIST, TEA | {"user": None, "users": ["ada", "bob", "ada"]})
    assert "names 'ada' twice" in twice.document["detail"]


async def test_paused_notifications_are_listed(server: NotificationServer) -> None:
    await server.create_users()
    for name in ("n-1", "n-2"):
        await server.ok("PUT", f"{LIST}/{name}", NINE | {"at": FAR})
    await server.ok("POST", f"{ONE}/pause")
    found = await server.ok("GET", f"{LIST}?state=paused")
    assert [each["id"] for each in found["notifications"]] == ["n-1"]


async def test_an_id_in_use_is_a_conflict_with_the_way_out(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("POST", LIST, NINE | {"id": "n-1", "at": FAR})
    taken = await server.call("POST", LIST, TEA | {"id": "n-1"})
    assert (taken.status, taken.document["outcome"]) == (409, "conflict")
    assert "replace it (PUT)" in taken.document["detail"]
    await server.ok("DELETE", ONE)
    over = await server.call("POST", LIST, TEA | {"id": "n-1"})
    assert "PUT it with ?reuse=true" in over.document["detail"]


@pytest.mark.parametrize(
    "wrong",
    [{"user": "nobody"}, {"template": "none"}, {"variables": {}}, {"cron": "0 9 * * *", "calendar": "none"}],
)
async def test_a_refused_request_does_not_bind_its_key(server: NotificationServer, wrong: dict[str, Any]) -> None:
    await server.create_users()
    for named in ({}, {"id": "n-1"}):
        key = {"Idempotency-Key": f"k-{len(named)}"}
        refused = await server.call("POST", LIST, NINE | named | wrong, headers=key)
        assert refused.status == 400, refused.body
        first = await server.call("POST", LIST, NINE | named | {"at": FAR}, headers=key)
        assert (first.status, first.document["outcome"]) == (201, "scheduled"), first.body
        again = await server.call("POST", LIST, NINE | named | {"at": FAR}, headers=key)
        assert again.document["id"] == first.document["id"]
        other = await server.call("POST", LIST, NINE | named | {"at": "+1h"}, headers=key)
        assert other.status == 422

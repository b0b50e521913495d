"""Notifications over HTTP: from the request to the delivery."""

import asyncio
from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import FAR, NINE, NotificationServer
from tidings.delivery.rows import change, delivery_put
from tidings.domain.notifications.delivery import Delivery, Temporary
from tidings.domain.notifications.message import Email
from tidings.domain.schedules.iso8601 import format_instant
from tidings.testing import eventually

LIST = "/v1/notifications"


async def test_a_notification_is_sent_at_once_and_explained(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    reply = await server_on_each_store.call("POST", LIST, NINE)
    assert (reply.status, reply.document["outcome"], reply.document["channels"]) == (201, "scheduled", ["email"])
    accepted = reply.document["id"]
    assert reply.headers["Location"] == f"{LIST}/{accepted}"
    delivery = await server_on_each_store.settled(accepted)
    [message] = server_on_each_store.mail.calls
    assert isinstance(message, Email)
    assert (message.to, message.subject, message.text) == ("ada@example.com", "Hi Ada", "It is nine.")
    assert (delivery["provider"], delivery["provider_id"]) == ("mail", f"p-{message.id}")
    assert delivery["late_ms"] >= 0
    shown = await server_on_each_store.ok("GET", f"{LIST}/{accepted}")
    assert (shown["state"], shown["variables"], shown["deliveries"]) == ("sent", {"what": "nine"}, [delivery])
    history = await server_on_each_store.ok("GET", f"{LIST}/{accepted}/explain")
    assert [line["event"] for line in history["history"]] == ["accepted", "released", "attempt", "accepted", "sent"]
    assert history["history"][2]["late_ms"] >= 0


async def test_local_times_are_in_the_time_zone_of_the_user(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users("ada", "bob")
    await server_on_each_store.ok("PATCH", "/v1/users/bob", {"zone": "Asia/Tokyo"})
    one = await server_on_each_store.ok("POST", LIST, NINE | {"at": "2029-11-20T09:00:00"})
    assert one["due_at"] == "2029-11-20T14:00:00.000000Z"
    assert one["due_at_local"] == "2029-11-20T09:00:00-05:00"
    ask = {"users": ["ada", "bob", "eve"], "template": "reminder", "variables": {"what": "x"}, "id": "all"}
    both = await server_on_each_store.ok("POST", LIST, ask | {"at": "2029-11-20T09:00:00"})
    ada, bob, eve = both["notifications"]
    assert both["batch"] == "all"
    assert (ada["id"], ada["due_at"][11:16], bob["due_at"][11:16]) == ("all:ada", "14:00", "00:00")
    assert (ada["due_at_local"], bob["due_at_local"]) == ("2029-11-20T09:00:00-05:00", "2029-11-20T09:00:00+09:00")
    assert (eve["outcome"], eve["errors"][0]["field"]) == ("rejected", "users")
    for given, batch in (({"id": "late"}, "late"), ({"batch": "b"}, "b"), ({"id": "n", "users": ["eve"]}, "n")):
        late = await server_on_each_store.ok(
            "POST", LIST, ask | {"users": ["eve", "bob"], "id": None, "at": FAR} | given
        )
        assert (late["notifications"][0]["outcome"], late["batch"]) == ("rejected", batch)
        assert all("due_at_local" not in each for each in late["notifications"]), (
            "an instant does not depend on a time zone"
        )
    found = await server_on_each_store.ok("GET", f"{LIST}?batch=all")
    assert {each["id"] for each in found["notifications"]} == {"all:ada", "all:bob"}


async def test_a_search_has_pages(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users("ada", "bob")
    for number in range(5):
        user = "ada" if number % 2 else "bob"
        await server_on_each_store.ok("POST", LIST, NINE | {"id": f"n{number}", "user": user, "at": FAR, "batch": "b"})
    await server_on_each_store.ok("DELETE", f"{LIST}/n4")

    async def found(query: str) -> list[str]:
        page = await server_on_each_store.ok("GET", f"{LIST}?{query}")
        names = [each["id"] for each in page["notifications"]]
        assert all("variables" not in each for each in page["notifications"])
        if page["cursor"] is not None:
            names += await found(f"{query.partition('&cursor')[0]}&cursor={page['cursor']}")
        return names

    assert await found("limit=2") == ["n4", "n3", "n2", "n1", "n0"]
    assert await found("user=bob&state=pending") == ["n2", "n0"]
    assert await found("state=cancelled") == ["n4"]
    assert await found("channel=sms") == []
    assert await found("template=reminder&since=-1h&limit=4") == ["n4", "n3", "n2", "n1", "n0"]
    assert await found("until=-1h") == []


async def test_a_repeat_and_a_conflict(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    ask = NINE | {"id": "mine", "at": FAR}
    assert (await server_on_each_store.call("POST", LIST, ask)).status == 201
    again = await server_on_each_store.call("POST", LIST, ask)
    assert (again.status, again.document["outcome"], again.document["state"]) == (200, "unchanged", "pending")
    other = await server_on_each_store.call("POST", LIST, ask | {"priority": "high"})
    assert (other.status, other.problem["id"], other.problem["outcome"]) == (409, "mine", "conflict")
    await server_on_each_store.ok("DELETE", f"{LIST}/mine")
    assert (await server_on_each_store.ok("POST", LIST, ask))["state"] == "cancelled"
    other = await server_on_each_store.call("POST", LIST, ask | {"priority": "high"})
    assert "(its state is cancelled): PUT it with ?reuse=true" in other.problem["detail"]


async def test_a_repeat_under_an_idempotency_key_gets_the_same_answer(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    key, ask = {"Idempotency-Key": "k-1"}, NINE | {"at": "PT1H"}
    first = await server_on_each_store.call("POST", LIST, ask, headers=key)
    again = await server_on_each_store.call("POST", LIST, ask, headers=key)
    assert (first.status, again.status) == (201, 201)
    assert first.document == again.document
    for other in (ask | {"at": "PT2H"}, ask | {"id": "own"}):
        assert (await server_on_each_store.call("POST", LIST, other, headers=key)).status == 422
    own = {"Idempotency-Key": "k-2"}
    assert (await server_on_each_store.call("POST", LIST, ask | {"id": "own"}, headers=own)).status == 201
    assert (await server_on_each_store.call("POST", LIST, ask | {"id": "other"}, headers=own)).status == 422
    found = await server_on_each_store.ok("GET", LIST)
    assert len(found["notifications"]) == 2


async def test_a_repeat_with_an_id_under_an_idempotency_key_gets_the_first_answer(
    server_on_each_store: NotificationServer,
) -> None:
    server = server_on_each_store
    await server.create_users()
    for ask in (NINE | {"id": "own", "at": FAR}, NINE | {"id": "list", "user": None, "users": ["ada", "bob"]}):
        key, body = {"Idempotency-Key": f"k-{ask['id']}"}, {name: value for name, value in ask.items() if value}
        first = await server.call("POST", LIST, body, headers=key)
        again = await server.call("POST", LIST, body, headers=key)
        assert "scheduled" in str(first.document)
        assert (again.status, again.document) == (first.status, first.document)
        assert (await server.call("POST", LIST, body | {"priority": "low"}, headers=key)).status == 422
        other = {"Idempotency-Key": f"later-{ask['id']}"}
        known = [await server.call("POST", LIST, body, headers=other) for _ in range(2)]
        assert [each.status for each in known] == [200, 200]
        assert known[0].document == known[1].document
        assert "unchanged" in str(known[0].document), "the id was known before this key"
        assert (await server.call("POST", LIST, body | {"priority": "low"}, headers=other)).status == 422
    await server.ok("DELETE", f"{LIST}/own")
    again = await server.call("POST", LIST, NINE | {"id": "own", "at": FAR}, headers={"Idempotency-Key": "k-own"})
    assert (again.status, again.document["outcome"]) == (201, "scheduled")


@pytest.mark.parametrize("key", [None, "k-1"])
async def test_the_id_of_an_erased_user_is_refused(server: NotificationServer, key: str | None) -> None:
    await server.create_users()
    ask, headers = NINE | {"at": FAR}, {}
    if key is None:
        ask["id"] = "mine"
    else:
        headers["Idempotency-Key"] = key
    assert (await server.call("POST", LIST, ask, headers=headers)).status == 201
    ada = await server.ok("GET", "/v1/users/ada")
    await server.ok("POST", "/v1/users/ada/erase")
    ada.pop("id")
    await server.call("PUT", "/v1/users/ada", ada)
    again = await server.call("POST", LIST, ask, headers=headers)
    assert again.status == 409
    assert "cancelled already" in again.problem["detail"]
    assert (await server.ok("GET", LIST))["notifications"] == []


async def test_a_duplicate_is_skipped(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    ask = NINE | {"at": FAR, "dedupe_key": "order-42"}
    first = await server_on_each_store.ok("POST", LIST, ask)
    second = await server_on_each_store.call("POST", LIST, ask)
    assert second.status == 200
    assert (second.document["outcome"], second.document["reason"]) == ("skipped", "duplicate")
    assert second.document["first"] == first["id"]
    shown = await server_on_each_store.ok("GET", f"{LIST}/{second.document['id']}")
    assert (shown["state"], shown["reason"], shown["first"]) == ("skipped", "duplicate", first["id"])
    history = await server_on_each_store.ok("GET", f"{LIST}/{second.document['id']}/explain")
    assert [line["event"] for line in history["history"]] == ["skipped"]


async def test_cancel_of_a_recurring_notification_names_the_occurrence_being_sent(
    server_on_each_store: NotificationServer,
) -> None:
    await server_on_each_store.create_users()
    accepted = await server_on_each_store.ok("POST", LIST, NINE | {"every": "R/PT1H"})
    tables, now = server_on_each_store.site.engine.store.tables, server_on_each_store.services.clock.now()
    sending = Delivery(f"{accepted['id']}/7", accepted["id"], now, "processing", channel="email", user="ada")
    await change(tables, [[delivery_put("default", sending, 0)]], now)
    note = "occurrence 7 is being sent at this moment, and may still arrive"
    for _ in range(2):
        gone = await server_on_each_store.ok("DELETE", f"{LIST}/{accepted['id']}")
        assert gone == {"id": accepted["id"], "outcome": "cancelled", "in_flight": 7, "note": note}


async def test_a_bare_address_and_content(server_on_each_store: NotificationServer) -> None:
    words = {"title": "Tea", "text": "at nine", "data": {"k": 1}}
    accepted = await server_on_each_store.ok(
        "POST", LIST, {"to": "eve@example.com", "channel": "email", "content": words}
    )
    await server_on_each_store.settled(accepted["id"])
    [message] = server_on_each_store.mail.calls
    assert message.to == "eve@example.com"
    shown = await server_on_each_store.ok("GET", f"{LIST}/{accepted['id']}")
    assert (shown["to"], shown["content"]) == ("eve@example.com", words)


async def test_a_cancelled_notification_is_not_sent(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    accepted = await server_on_each_store.ok("POST", LIST, NINE | {"id": "a/b", "at": FAR})
    assert (await server_on_each_store.ok("DELETE", f"{LIST}/a%2Fb"))["outcome"] == "cancelled"
    assert (await server_on_each_store.ok("DELETE", f"{LIST}/a/b")) == {"id": accepted["id"], "outcome": "cancelled"}
    assert (await server_on_each_store.ok("GET", f"{LIST}/a/b"))["state"] == "cancelled"
    unknown = await server_on_each_store.call("DELETE", f"{LIST}/nothing")
    assert (unknown.status, unknown.problem["outcome"]) == (404, "unknown")
    sent = await server_on_each_store.ok("POST", LIST, NINE)
    await server_on_each_store.settled(sent["id"])
    late = await server_on_each_store.call("DELETE", f"{LIST}/{sent['id']}")
    assert (late.status, late.problem["outcome"]) == (409, "already_released")


async def test_a_notification_that_is_being_sent_cannot_be_cancelled(server: NotificationServer) -> None:
    await server.create_users()
    server.mail.gate = asyncio.Event()
    server.mail.answer = lambda _: Temporary("timeout", "slow")
    accepted = await server.ok("POST", LIST, NINE)
    await server.settled(accepted["id"], "processing")
    reply = await server.call("DELETE", f"{LIST}/{accepted['id']}")
    assert (reply.status, reply.problem["outcome"]) == (409, "in_flight")
    server.mail.gate.set()


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"usr": "x"}, "usr", "did you mean"),
    ({"user": None}, "user", "it has no recipient: give 'user', 'to', or 'users' with at least one user in it"),
    ({"user": None, "users": []}, "user", "'users' with at least one user in it"),
    ({"user": "eve"}, "user", "unknown user"),
    ({"to": "x@y.example"}, "user", "not both"),
    ({"user": None, "channel": "email", "to": "x@☃.com"}, "to", "the domain '☃.com' is not valid"),
    ({"template": None}, "template", "is missing, and so is 'content': give one of the two"),
    ({"content": {"text": "x"}}, "template", "give either 'template' or 'content', not both"),
    ({"template": "nothing"}, "template", "unknown template"),
    ({"version": 9}, "version", "no version 9"),
    ({"variables": {}}, "variables", "what"),
    ({"variables": {"what": "x" * 70_000}}, "variables", ""),
    ({"channel": "fax"}, "channel", "email, sms, push, webhook, in_app"),
    ({"channel": None, "channels": ["fax"]}, "channels", "email, sms, push, webhook, in_app"),
    ({"channel": "sms"}, "channel", ""),
    ({"channel": "push", "channels": ["email"]}, "channel", "not both"),
    ({"at": "whenever"}, "at", "tomorrow 09:00"),
    ({"at": "09:00"}, "at", "2026-11-20 09:00"),
    ({"at": "tomorrow"}, "at", "tomorrow 09:00"),
    ({"at": "tomorrow 25:00"}, "at", "tomorrow 09:00"),
    ({"scheduled_at": "-5m"}, "scheduled_at", "+5s"),
    ({"at": 5}, "at", "is a number"),
    ({"at": FAR, "scheduled_at": FAR}, "at", "not both"),
    ({"zone": "Mars"}, "zone", ""),
    ({"every": "PT0.1S"}, "every", ""),
    ({"priority": "urgent"}, "priority", ""),
    ({"category": "a b"}, "category", ""),
    ({"id": "a~b"}, "id", "~"),
    ({"id": "x" * 91}, "id", "90"),
    ({"dedupe_window": "PT1H"}, "dedupe_window", "dedupe_key"),
    ({"expires_after": "soon"}, "expires_after", ""),
    ({"collapse": "a\nb"}, "collapse", ""),
    (
        {"template": None, "variables": None, "content": {"text": "x", "tilte": "Tea"}},
        "content.tilte",
        "did you mean 'title'",
    ),
    ({"template": None, "variables": None, "content": {"txt": "x"}}, "content.txt", "did you mean 'text'"),
    ({"template": None, "variables": None, "content": {"title": "x"}}, "content.text", "is missing"),
    (
        {"user": None, "channel": "push", "to": {"platform": "fcm", "token": "x" * 20, "name": "x"}},
        "to.name",
        "unknown field",
    ),
]


@pytest.mark.parametrize(("wrong", "field", "advice"), WRONG)
async def test_a_wrong_field_is_named(
    server: NotificationServer, wrong: dict[str, Any], field: str, advice: str
) -> None:
    await server.create_users()
    document = {name: value for name, value in (NINE | wrong).items() if value is not None}
    reply = await server.call("POST", LIST, document)
    assert reply.status == 400, reply.body
    assert reply.problem["errors"][0]["field"].startswith(field), reply.body
    assert advice in reply.problem["detail"]
    assert (await server.ok("GET", LIST))["notifications"] == []


async def test_a_time_in_a_dst_gap_is_moved_with_a_note(server: NotificationServer) -> None:
    await server.create_users()
    moved = await server.ok("POST", LIST, NINE | {"at": "2029-03-11 02:30", "id": "moved"})
    assert moved["due_at_local"] == "2029-03-11T03:30:00-04:00"
    assert "does not exist" in moved["note"]
    assert "note" not in await server.ok("POST", LIST, NINE | {"at": "2029-03-12 02:30", "id": "there"})


async def test_an_e_mail_without_a_title_has_the_first_line_as_its_subject(server: NotificationServer) -> None:
    bare = {"to": "eve@example.com", "channel": "email"}
    for text, subject in (("\nTea at nine.\nBring milk.", "Tea at nine."), ("x" * 100, "x" * 75 + "...")):
        accepted = await server.ok("POST", LIST, bare | {"content": {"text": text}})
        await server.settled(accepted["id"])
        message = server.mail.calls[-1]
        assert isinstance(message, Email)
        assert message.subject == subject


async def test_wrong_requests(server: NotificationServer) -> None:
    await server.create_users()
    for path, status in (
        ("?state=asleep", 400),
        ("?channel=fax", 400),
        ("?cursor=x", 400),
        ("?since=yesterday", 400),
        ("?since=-1h&until=-2h", 400),
        ("?topic=x", 400),
        ("/nothing", 404),
        ("/nothing/explain", 404),
    ):
        reply = await server.call("GET", LIST + path)
        assert (reply.status, bool(reply.problem)) == (status, True), path
    assert (await server.call("POST", LIST, data=b"{}\n", headers={"Content-Type": "text/csv"})).status == 415
    assert (await server.call("POST", LIST, data=b"{", headers={"Content-Type": "application/json"})).status == 400
    large = NINE | {"variables": {"what": "x" * 10_000_000}}
    assert (await server.call("POST", LIST, large)).status == 413
    injected = {"to": "a@b.example", "channel": "email", "content": {"title": "x\r\nBcc: y@z.example", "text": "t"}}
    assert (await server.call("POST", LIST, injected)).status == 400
    assert (await server.call("POST", LIST, NINE, headers={"Idempotency-Key": "ä"})).status == 400


async def test_the_former_name_of_content_is_still_accepted(server: NotificationServer) -> None:
    bare = {"id": "tea", "to": "eve@example.com", "channel": "email", "at": FAR}
    former = await server.ok("POST", LIST, bare | {"words": {"text": "Tea"}})
    again = await server.ok("POST", LIST, bare | {"content": {"text": "Tea"}})
    assert (former["outcome"], again["outcome"]) == ("scheduled", "unchanged")
    assert (await server.ok("GET", f"{LIST}/tea"))["content"] == {"text": "Tea"}
    both = await server.call("POST", LIST, bare | {"content": {"text": "Tea"}, "words": {"text": "Tea"}})
    assert (both.status, both.problem["errors"][0]["field"]) == (400, "words")
    empty = await server.call("POST", LIST, bare | {"words": {"text": " "}})
    assert empty.problem["errors"][0]["field"] == "words.text"


async def test_the_schedule_of_a_notification_cannot_be_changed(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    await server_on_each_store.ok("POST", LIST, NINE | {"id": "tea", "at": FAR})
    asked = [
        ("PUT", "/v1/schedules/tea", {"topic": "greetings", "value": "x"}),
        ("PUT", "/v1/schedules/tea?reuse=true", {"topic": "greetings", "value": "x"}),
        ("DELETE", "/v1/schedules/tea", None),
        ("POST", "/v1/schedules", {"topic": "greetings", "value": "x", "id": "tea"}),
    ]
    for method, path, body in asked:
        reply = await server_on_each_store.call(method, path, body)
        assert (reply.status, reply.document["outcome"]) == (409, "rejected")
        assert reply.document["reason"].startswith("this schedule belongs to notification 'tea': ")
    for verb, reason in (("pause", "paused"), ("resume", None)):
        await server_on_each_store.ok("POST", f"/v1/schedules/tea/{verb}")
        assert (await server_on_each_store.ok("GET", f"{LIST}/tea")).get("reason") == reason
    assert (await server_on_each_store.ok("POST", "/v1/schedules/tea/fire"))["outcome"] == "fired"
    assert (await server_on_each_store.settled("tea"))["state"] == "sent"
    reply = await server_on_each_store.call("PUT", "/v1/schedules/tea?reuse=true", {"topic": "greetings", "value": "x"})
    assert (reply.status, reply.document["reason"]) == (409, "this id belonged to a notification: use another id")
    for method, path, body in (asked[0], asked[2], asked[3]):
        reply = await server_on_each_store.call(method, path, body)
        detail = "it has been released already, and this id belonged to a notification: use another id"
        assert (reply.status, reply.document["detail"]) == (409, detail)


async def test_the_answer_names_users_for_whom_the_time_has_passed(server_on_each_store: NotificationServer) -> None:
    """09:00 has passed for one user and not for the other."""
    await server_on_each_store.create_users("ada", "bob")
    await server_on_each_store.ok("PATCH", "/v1/users/bob", {"zone": "Pacific/Kiritimati"})  # 14 h before UTC
    await server_on_each_store.ok("PATCH", "/v1/users/ada", {"zone": "Etc/GMT+12"})  # 12 h behind it
    now = server_on_each_store.site.engine.clock.now()
    at = format_instant(now + 3_600_000_000)[:19]  # it was so in Kiritimati 13 hours ago
    ask = {"users": ["ada", "bob"], "template": "reminder", "variables": {"what": "x"}, "at": at}
    ada, bob = (await server_on_each_store.ok("POST", LIST, ask))["notifications"]
    assert (ada["outcome"], "note" in ada) == ("scheduled", False)
    assert (bob["outcome"], bob["note"]) == ("scheduled", "due 13 hours ago: sent now")
    ada, bob = (await server_on_each_store.ok("POST", LIST, ask | {"past": "refuse"}))["notifications"]
    assert (ada["outcome"], bob["outcome"]) == ("scheduled", "rejected")
    assert bob["errors"][0]["detail"].startswith("is 13 hours in the past")


async def test_a_notification_that_expired_before_acceptance_is_not_sent(
    server_on_each_store: NotificationServer,
) -> None:
    await server_on_each_store.create_users()
    accepted = await server_on_each_store.ok(
        "POST", LIST, NINE | {"at": "2020-01-01T00:00:00Z", "expires_after": "PT1H"}
    )
    assert accepted["note"].endswith("will not be released: missed (expired)")

    async def state() -> str | None:
        found = (await server_on_each_store.ok("GET", f"{LIST}/{accepted['id']}"))["state"]
        return str(found) if found != "pending" else None

    assert await eventually(state) == "expired"
    assert server_on_each_store.mail.calls == []


async def test_all_wrong_fields_are_named_at_once(server: NotificationServer) -> None:
    wrong = {"id": "a~b", "user": "a b", "category": "", "zone": "Mars/Base", "locale": "?", "template": "no spaces"}
    problem = (await server.call("POST", "/v1/notifications", wrong)).problem
    assert {error["field"] for error in problem["errors"]} == wrong.keys()
    problem = (await server.call("POST", "/v1/notifications", {"user": 5, "to": [], "zzz": 1})).problem
    assert {error["field"] for error in problem["errors"]} == {"user", "to", "zzz"}


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k-1"}])
async def test_an_address_that_is_never_called_is_refused(server: NotificationServer, key: dict[str, str]) -> None:
    ask = {"channel": "webhook", "content": {"text": "x"}, "at": FAR, "id": "hook"}
    refused = await server.call("POST", LIST, ask | {"to": "https://10.2.0.1/hook"}, headers=key)
    assert (refused.status, refused.problem["errors"][0]["field"]) == (400, "to")
    assert "add its network to channels.webhook.allowed_networks" in refused.problem["errors"][0]["detail"]
    assert (await server.call("POST", LIST, ask | {"to": "https://10.1.0.1/hook"}, headers=key)).status == 201
    for method, body in (("PUT", ask | {"to": "https://[fe80::1]/"}), ("PATCH", {"to": "https://0.0.0.0/"})):
        body = body | {"channel": "webhook"}
        assert (await server.call(method, f"{LIST}/hook", body)).problem["errors"][0]["field"] == "to"
    assert (await server.call("PATCH", f"{LIST}/hook", {"priority": "low"})).status == 200

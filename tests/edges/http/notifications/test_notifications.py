"""Notifications over HTTP: from the request to the delivery."""

import asyncio
from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import FAR, NINE, Desk
from tidings.delivery.filing import delivery_put
from tidings.domain.notifications.delivery import Delivery, Temporary
from tidings.domain.notifications.message import Email
from tidings.domain.schedules.iso8601 import format_instant
from tidings.testing import eventually

LIST = "/v1/notifications"


async def test_a_notification_is_sent_at_once_and_explained(each_desk: Desk) -> None:
    await each_desk.welcome()
    reply = await each_desk.call("POST", LIST, NINE)
    assert (reply.status, reply.document["outcome"], reply.document["channels"]) == (201, "scheduled", ["email"])
    told = reply.document["id"]
    assert reply.headers["Location"] == f"{LIST}/{told}"
    delivery = await each_desk.settled(told)
    [message] = each_desk.mail.calls
    assert isinstance(message, Email)
    assert (message.to, message.subject, message.text) == ("ada@example.com", "Hi Ada", "It is nine.")
    assert (delivery["provider"], delivery["provider_id"]) == ("mail", f"p-{message.id}")
    assert delivery["late_ms"] >= 0
    shown = await each_desk.done("GET", f"{LIST}/{told}")
    assert (shown["state"], shown["variables"], shown["deliveries"]) == ("sent", {"what": "nine"}, [delivery])
    story = await each_desk.done("GET", f"{LIST}/{told}/explain")
    assert [line["event"] for line in story["history"]] == ["accepted", "released", "attempt", "accepted", "sent"]
    assert story["history"][2]["late_ms"] >= 0


async def test_nine_o_clock_is_hers(each_desk: Desk) -> None:
    await each_desk.welcome("ada", "bob")
    await each_desk.done("PATCH", "/v1/users/bob", {"zone": "Asia/Tokyo"})
    one = await each_desk.done("POST", LIST, NINE | {"at": "2029-11-20T09:00:00"})
    assert one["due_at"] == "2029-11-20T14:00:00.000000Z"
    assert one["due_at_local"] == "2029-11-20T09:00:00-05:00"
    ask = {"users": ["ada", "bob", "eve"], "template": "reminder", "variables": {"what": "x"}, "id": "all"}
    both = await each_desk.done("POST", LIST, ask | {"at": "2029-11-20T09:00:00"})
    ada, bob, eve = both["notifications"]
    assert both["batch"] == "all"
    assert (ada["id"], ada["due_at"][11:16], bob["due_at"][11:16]) == ("all:ada", "14:00", "00:00")
    assert (ada["due_at_local"], bob["due_at_local"]) == ("2029-11-20T09:00:00-05:00", "2029-11-20T09:00:00+09:00")
    assert (eve["outcome"], eve["errors"][0]["field"]) == ("rejected", "users")
    for given, batch in (({"id": "late"}, "late"), ({"batch": "b"}, "b"), ({"id": "n", "users": ["eve"]}, "n")):
        late = await each_desk.done("POST", LIST, ask | {"users": ["eve", "bob"], "id": None, "at": FAR} | given)
        assert (late["notifications"][0]["outcome"], late["batch"]) == ("rejected", batch)
        assert all("due_at_local" not in each for each in late["notifications"]), "an instant is nobody's clocks'"
    found = await each_desk.done("GET", f"{LIST}?batch=all")
    assert {each["id"] for each in found["notifications"]} == {"all:ada", "all:bob"}


async def test_a_search_and_its_pages(each_desk: Desk) -> None:
    await each_desk.welcome("ada", "bob")
    for number in range(5):
        user = "ada" if number % 2 else "bob"
        await each_desk.done("POST", LIST, NINE | {"id": f"n{number}", "user": user, "at": FAR, "batch": "b"})
    await each_desk.done("DELETE", f"{LIST}/n4")

    async def found(query: str) -> list[str]:
        page = await each_desk.done("GET", f"{LIST}?{query}")
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


async def test_a_repeat_and_a_conflict(each_desk: Desk) -> None:
    await each_desk.welcome()
    ask = NINE | {"id": "mine", "at": FAR}
    assert (await each_desk.call("POST", LIST, ask)).status == 201
    again = await each_desk.call("POST", LIST, ask)
    assert (again.status, again.document["outcome"], again.document["state"]) == (200, "unchanged", "pending")
    other = await each_desk.call("POST", LIST, ask | {"priority": "high"})
    assert (other.status, other.problem["id"], other.problem["outcome"]) == (409, "mine", "rejected")
    await each_desk.done("DELETE", f"{LIST}/mine")
    assert (await each_desk.done("POST", LIST, ask))["state"] == "cancelled"
    other = await each_desk.call("POST", LIST, ask | {"priority": "high"})
    assert other.problem["detail"].endswith("which is cancelled already: choose another id")


async def test_a_repeat_under_an_idempotency_key_gets_the_same_answer(each_desk: Desk) -> None:
    await each_desk.welcome()
    key, ask = {"Idempotency-Key": "k-1"}, NINE | {"at": "PT1H"}
    first = await each_desk.call("POST", LIST, ask, headers=key)
    again = await each_desk.call("POST", LIST, ask, headers=key)
    assert (first.status, again.status) == (201, 201)
    assert first.document == again.document
    for other in (ask | {"at": "PT2H"}, ask | {"id": "own"}):
        assert (await each_desk.call("POST", LIST, other, headers=key)).status == 422
    own = {"Idempotency-Key": "k-2"}
    assert (await each_desk.call("POST", LIST, ask | {"id": "own"}, headers=own)).status == 201
    assert (await each_desk.call("POST", LIST, ask | {"id": "other"}, headers=own)).status == 422
    found = await each_desk.done("GET", LIST)
    assert len(found["notifications"]) == 2


@pytest.mark.parametrize("key", [None, "k-1"])
async def test_the_id_of_an_erased_user_is_refused(desk: Desk, key: str | None) -> None:
    await desk.welcome()
    ask, headers = NINE | {"at": FAR}, {}
    if key is None:
        ask["id"] = "mine"
    else:
        headers["Idempotency-Key"] = key
    assert (await desk.call("POST", LIST, ask, headers=headers)).status == 201
    ada = await desk.done("GET", "/v1/users/ada")
    await desk.done("POST", "/v1/users/ada/erase")
    ada.pop("id")
    await desk.call("PUT", "/v1/users/ada", ada)
    again = await desk.call("POST", LIST, ask, headers=headers)
    assert again.status == 409
    assert "cancelled already" in again.problem["detail"]
    assert (await desk.done("GET", LIST))["notifications"] == []


async def test_a_duplicate_is_skipped(each_desk: Desk) -> None:
    await each_desk.welcome()
    ask = NINE | {"at": FAR, "dedupe_key": "order-42"}
    first = await each_desk.done("POST", LIST, ask)
    second = await each_desk.call("POST", LIST, ask)
    assert second.status == 200
    assert (second.document["outcome"], second.document["reason"]) == ("skipped", "duplicate")
    assert second.document["first"] == first["id"]
    shown = await each_desk.done("GET", f"{LIST}/{second.document['id']}")
    assert (shown["state"], shown["reason"], shown["first"]) == ("skipped", "duplicate", first["id"])
    story = await each_desk.done("GET", f"{LIST}/{second.document['id']}/explain")
    assert [line["event"] for line in story["history"]] == ["skipped"]


async def test_a_series_is_cancelled_while_one_of_it_is_sent(each_desk: Desk) -> None:
    await each_desk.welcome()
    told = await each_desk.done("POST", LIST, NINE | {"every": "R/PT1H"})
    cabinet, now = each_desk.office.cancelling._cabinet, each_desk.office.clock.now()
    sending = Delivery(f"{told['id']}/7", told["id"], now, "processing", channel="email", user="ada")
    await cabinet.change([[delivery_put("default", sending, 0)]], now)
    note = "occurrence 7 is being sent at this moment, and may still arrive"
    for _ in range(2):
        gone = await each_desk.done("DELETE", f"{LIST}/{told['id']}")
        assert gone == {"id": told["id"], "outcome": "cancelled", "in_flight": 7, "note": note}


async def test_a_bare_address_and_content(each_desk: Desk) -> None:
    words = {"title": "Tea", "text": "at nine", "data": {"k": 1}}
    told = await each_desk.done("POST", LIST, {"to": "eve@example.com", "channel": "email", "content": words})
    await each_desk.settled(told["id"])
    [message] = each_desk.mail.calls
    assert message.to == "eve@example.com"
    shown = await each_desk.done("GET", f"{LIST}/{told['id']}")
    assert (shown["to"], shown["content"]) == ("eve@example.com", words)


async def test_what_is_cancelled_does_not_leave(each_desk: Desk) -> None:
    await each_desk.welcome()
    told = await each_desk.done("POST", LIST, NINE | {"id": "a/b", "at": FAR})
    assert (await each_desk.done("DELETE", f"{LIST}/a%2Fb"))["outcome"] == "cancelled"
    assert (await each_desk.done("DELETE", f"{LIST}/a/b")) == {"id": told["id"], "outcome": "cancelled"}
    assert (await each_desk.done("GET", f"{LIST}/a/b"))["state"] == "cancelled"
    unknown = await each_desk.call("DELETE", f"{LIST}/nothing")
    assert (unknown.status, unknown.problem["outcome"]) == (404, "unknown")
    sent = await each_desk.done("POST", LIST, NINE)
    await each_desk.settled(sent["id"])
    late = await each_desk.call("DELETE", f"{LIST}/{sent['id']}")
    assert (late.status, late.problem["outcome"]) == (409, "already_released")


async def test_a_notification_that_is_being_sent_cannot_be_cancelled(desk: Desk) -> None:
    await desk.welcome()
    desk.mail.gate = asyncio.Event()
    desk.mail.answer = lambda _: Temporary("timeout", "slow")
    told = await desk.done("POST", LIST, NINE)
    await desk.settled(told["id"], "processing")
    reply = await desk.call("DELETE", f"{LIST}/{told['id']}")
    assert (reply.status, reply.problem["outcome"]) == (409, "in_flight")
    desk.mail.gate.set()


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"usr": "x"}, "usr", "did you mean"),
    ({"user": None}, "user", "'users' or 'to'"),
    ({"user": "eve"}, "user", "unknown user"),
    ({"to": "x@y.example"}, "user", "not both"),
    ({"user": None, "channel": "email", "to": "x@☃.com"}, "to", "the domain '☃.com' is not a valid domain name"),
    ({"template": None}, "template", "content"),
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
async def test_a_wrong_field_is_named(desk: Desk, wrong: dict[str, Any], field: str, advice: str) -> None:
    await desk.welcome()
    document = {name: value for name, value in (NINE | wrong).items() if value is not None}
    reply = await desk.call("POST", LIST, document)
    assert reply.status == 400, reply.body
    assert reply.problem["errors"][0]["field"].startswith(field), reply.body
    assert advice in reply.problem["detail"]
    assert (await desk.done("GET", LIST))["notifications"] == []


async def test_a_time_in_a_dst_gap_is_moved_with_a_note(desk: Desk) -> None:
    await desk.welcome()
    moved = await desk.done("POST", LIST, NINE | {"at": "2029-03-11 02:30", "id": "moved"})
    assert moved["due_at_local"] == "2029-03-11T03:30:00-04:00"
    assert "does not exist" in moved["note"]
    assert "note" not in await desk.done("POST", LIST, NINE | {"at": "2029-03-12 02:30", "id": "there"})


async def test_an_e_mail_without_a_title_has_the_first_line_as_its_subject(desk: Desk) -> None:
    bare = {"to": "eve@example.com", "channel": "email"}
    for text, subject in (("\nTea at nine.\nBring milk.", "Tea at nine."), ("x" * 100, "x" * 75 + "...")):
        told = await desk.done("POST", LIST, bare | {"content": {"text": text}})
        await desk.settled(told["id"])
        message = desk.mail.calls[-1]
        assert isinstance(message, Email)
        assert message.subject == subject


async def test_wrong_requests(desk: Desk) -> None:
    await desk.welcome()
    for path, status in (
        ("?state=paused", 400),
        ("?channel=fax", 400),
        ("?cursor=x", 400),
        ("?since=yesterday", 400),
        ("?since=-1h&until=-2h", 400),
        ("?topic=x", 400),
        ("/nothing", 404),
        ("/nothing/explain", 404),
    ):
        reply = await desk.call("GET", LIST + path)
        assert (reply.status, bool(reply.problem)) == (status, True), path
    assert (await desk.call("POST", LIST, data=b"{}\n", headers={"Content-Type": "application/x-ndjson"})).status == 415
    assert (await desk.call("POST", LIST, data=b"{", headers={"Content-Type": "application/json"})).status == 400
    large = NINE | {"variables": {"what": "x" * 10_000_000}}
    assert (await desk.call("POST", LIST, large)).status == 413
    injected = {"to": "a@b.example", "channel": "email", "content": {"title": "x\r\nBcc: y@z.example", "text": "t"}}
    assert (await desk.call("POST", LIST, injected)).status == 400
    assert (await desk.call("POST", LIST, NINE, headers={"Idempotency-Key": "ä"})).status == 400


async def test_the_former_name_of_content_is_still_accepted(desk: Desk) -> None:
    bare = {"id": "tea", "to": "eve@example.com", "channel": "email", "at": FAR}
    former = await desk.done("POST", LIST, bare | {"words": {"text": "Tea"}})
    again = await desk.done("POST", LIST, bare | {"content": {"text": "Tea"}})
    assert (former["outcome"], again["outcome"]) == ("scheduled", "unchanged")
    assert (await desk.done("GET", f"{LIST}/tea"))["content"] == {"text": "Tea"}
    both = await desk.call("POST", LIST, bare | {"content": {"text": "Tea"}, "words": {"text": "Tea"}})
    assert (both.status, both.problem["errors"][0]["field"]) == (400, "words")
    empty = await desk.call("POST", LIST, bare | {"words": {"text": " "}})
    assert empty.problem["errors"][0]["field"] == "words.text"


async def test_its_schedule_is_not_changed_behind_its_back(each_desk: Desk) -> None:
    await each_desk.welcome()
    await each_desk.done("POST", LIST, NINE | {"id": "tea", "at": FAR})
    asked = [
        ("PUT", "/v1/schedules/tea", {"topic": "greetings", "value": "x"}),
        ("PUT", "/v1/schedules/tea?reuse=true", {"topic": "greetings", "value": "x"}),
        ("DELETE", "/v1/schedules/tea", None),
        ("POST", "/v1/schedules", {"topic": "greetings", "value": "x", "id": "tea"}),
    ]
    for method, path, body in asked:
        reply = await each_desk.call(method, path, body)
        assert (reply.status, reply.document["outcome"]) == (409, "rejected")
        assert reply.document["reason"].startswith("this schedule belongs to notification 'tea': ")
    for verb, reason in (("pause", "paused"), ("resume", None)):
        await each_desk.done("POST", f"/v1/schedules/tea/{verb}")
        assert (await each_desk.done("GET", f"{LIST}/tea")).get("reason") == reason
    assert (await each_desk.done("POST", "/v1/schedules/tea/fire"))["outcome"] == "fired"
    assert (await each_desk.settled("tea"))["state"] == "sent"
    reply = await each_desk.call("PUT", "/v1/schedules/tea?reuse=true", {"topic": "greetings", "value": "x"})
    assert (reply.status, reply.document["reason"]) == (409, "this id belonged to a notification: use another id")
    for method, path, body in (asked[0], asked[2], asked[3]):
        reply = await each_desk.call(method, path, body)
        detail = "it has been released already, and this id belonged to a notification: use another id"
        assert (reply.status, reply.document["detail"]) == (409, detail)


async def test_of_many_who_are_told_at_once_is_said(each_desk: Desk) -> None:
    """Nine o'clock has passed for one of them, and not for the other."""
    await each_desk.welcome("ada", "bob")
    await each_desk.done("PATCH", "/v1/users/bob", {"zone": "Pacific/Kiritimati"})  # 14 h before UTC
    await each_desk.done("PATCH", "/v1/users/ada", {"zone": "Etc/GMT+12"})  # 12 h behind it
    now = each_desk.site.engine.clock.now()
    at = format_instant(now + 3_600_000_000)[:19]  # it was so in Kiritimati 13 hours ago
    ask = {"users": ["ada", "bob"], "template": "reminder", "variables": {"what": "x"}, "at": at}
    ada, bob = (await each_desk.done("POST", LIST, ask))["notifications"]
    assert (ada["outcome"], "note" in ada) == ("scheduled", False)
    assert (bob["outcome"], bob["note"]) == ("scheduled", "due 13 hours ago: sent now")
    ada, bob = (await each_desk.done("POST", LIST, ask | {"past": "refuse"}))["notifications"]
    assert (ada["outcome"], bob["outcome"]) == ("scheduled", "rejected")
    assert bob["errors"][0]["detail"].startswith("is 13 hours in the past")


async def test_what_expired_before_it_was_asked_for_is_not_sent(each_desk: Desk) -> None:
    await each_desk.welcome()
    told = await each_desk.done("POST", LIST, NINE | {"at": "2020-01-01T00:00:00Z", "expires_after": "PT1H"})
    assert told["note"].endswith("will not be released: missed (expired)")

    async def state() -> str | None:
        found = (await each_desk.done("GET", f"{LIST}/{told['id']}"))["state"]
        return str(found) if found != "pending" else None

    assert await eventually(state) == "expired"
    assert each_desk.mail.calls == []

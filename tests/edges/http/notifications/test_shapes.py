"""The real answers about notifications have the shapes that OpenAPI describes."""

import re
from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import (
    ADA,
    FAR,
    IN_APP,
    LINK_KEY,
    NINE,
    REMINDER,
    NotificationServer,
)
from tests.edges.http.notifications.test_receipts import standard
from tests.edges.http.test_openapi import API, SHAPES, check_answer
from tidings.delivery.people.unsubscribe import ONE_CLICK, Unsubscription, link
from tidings.domain.notifications.delivery import Permanent

USER, TEMPLATE, ONE, INBOX = "/v1/users/{id}", "/v1/templates/{name}", "/v1/notifications/{id}", "/v1/inbox/{user}"
DELIVERY, PLACE = "/v1/deliveries/{name}", "/v1/suppressions/{channel}/{address}"
NAMES = {"user": "ada", "channel": "email", "address": "ada%40example.com"}
WORDS = {"to": "eve@example.com", "channel": "email", "content": {"text": "t", "title": "T"}, "every": "P1D"}
FULL = ADA | {"quiet": "22:00-07:00", "devices": [{"platform": "apns", "token": "ab" * 32}], "variables": {"a": "b"}}
ALL = NINE | {"user": None, "users": ["ada", "eve"], "at": FAR, "batch": "b", "locale": "en", "expires_after": "PT1H"}

# Method, path, what stands for its id or name, what is sent, and the status.
WALK: list[tuple[str, str, str, Any, int]] = [
    ("PUT", USER, "ada", FULL, 201),
    ("PUT", USER, "ada", FULL, 200),
    ("PUT", USER, "ada", {"x": 1}, 400),
    ("GET", USER, "ada", None, 200),
    ("GET", USER, "eve", None, 404),
    ("PATCH", USER, "ada", {"quiet": None}, 200),
    ("GET", "/v1/users", "", None, 200),
    ("PUT", TEMPLATE, "reminder", REMINDER | {"urgency": "asap"}, 201),
    ("PUT", TEMPLATE, "reminder", REMINDER | {"urgency": "asap"}, 200),
    ("PUT", TEMPLATE, "line", IN_APP | {"expires_after": "PT1H"}, 201),
    ("GET", TEMPLATE, "reminder", None, 200),
    ("GET", TEMPLATE, "line", None, 200),
    ("GET", "/v1/templates", "", None, 200),
    ("GET", f"{TEMPLATE}/versions", "reminder", None, 200),
    ("POST", f"{TEMPLATE}/preview", "reminder", {"channel": "email", "variables": {"name": "A", "what": "b"}}, 200),
    ("POST", "/v1/notifications", "", NINE | {"id": "far", "at": "2029-01-01T09:00:00"}, 201),
    ("POST", "/v1/notifications", "", NINE | {"id": "far", "at": "2029-01-01T09:00:00"}, 200),
    ("POST", "/v1/notifications", "", NINE | {"id": "far"}, 409),
    ("POST", "/v1/notifications", "", {name: value for name, value in ALL.items() if value is not None}, 200),
    ("POST", "/v1/notifications", "", WORDS | {"id": "daily"}, 201),
    ("GET", ONE, "far", None, 200),
    ("GET", ONE, "daily", None, 200),
    ("GET", "/v1/notifications", "", None, 200),
    ("GET", f"{ONE}/explain", "daily", None, 200),
    ("DELETE", ONE, "far", None, 200),
    ("GET", ONE, "far", None, 200),
    ("DELETE", ONE, "nothing", None, 404),
    ("GET", "/v1/deliveries", "", None, 200),
    ("POST", f"{DELIVERY}/retry", "nothing/1", None, 404),
    ("GET", "/v1/channels", "", None, 200),
    ("GET", INBOX, "", None, 200),
    ("GET", f"{INBOX}/unread", "", None, 200),
    ("POST", f"{INBOX}/read", "", {"ids": ["x"]}, 200),
    ("PUT", PLACE, "", {"category": "news"}, 201),
    ("PUT", PLACE, "", {"category": "news"}, 200),
    ("GET", "/v1/suppressions", "", None, 200),
    ("DELETE", PLACE, "", None, 404),
    ("DELETE", TEMPLATE, "reminder", None, 409),
    ("DELETE", TEMPLATE, "line", None, 200),
    ("POST", f"{USER}/erase", "ada", None, 200),
    ("DELETE", USER, "ada", None, 404),
    ("POST", "/receipts/{provider}", "", None, 404),
]


def filled(path: str, place: str) -> str:
    return re.sub(r"{(\w+)}", lambda found: NAMES.get(found[1], place), path)


async def test_real_answers_have_their_shapes(server_on_each_store: NotificationServer) -> None:
    for method, path, place, document, status in WALK:
        reply = await server_on_each_store.call(method, filled(path, place), document)
        assert reply.status == status, (method, path, place, reply.body)
        check_answer(method, path, reply)


@pytest.mark.slow
async def test_real_answers_about_sent_notifications_have_their_shapes(
    server_on_each_store: NotificationServer,
) -> None:
    await server_on_each_store.create_users()
    lines = await server_on_each_store.call(
        "POST", "/v1/users/import", data=b"id\n?\n", headers={"Content-Type": "text/csv"}
    )
    check_answer("POST", "/v1/users/import", lines)
    accepted = await server_on_each_store.ok("POST", "/v1/notifications", NINE | {"template": "line"})
    await server_on_each_store.settled(accepted["id"])
    check_answer("GET", INBOX, await server_on_each_store.call("GET", "/v1/inbox/ada"))
    server_on_each_store.mail.answer = lambda _: Permanent("content_refused", "no spam")
    accepted = await server_on_each_store.ok("POST", "/v1/notifications", NINE)
    name = (await server_on_each_store.settled(accepted["id"], "failed"))["name"]
    server_on_each_store.mail.answer = lambda _: None
    check_answer("POST", f"{DELIVERY}/retry", await server_on_each_store.call("POST", f"/v1/deliveries/{name}/retry"))
    await server_on_each_store.settled(accepted["id"])
    body, headers = standard(server_on_each_store, {"state": "delivered", "message": name})
    taken = await server_on_each_store.call("POST", "/receipts/generic/default", data=body, headers=headers)
    check_answer("POST", "/receipts/{provider}/{tenant}", taken)
    late = await server_on_each_store.call("POST", f"/v1/deliveries/{name}/retry")
    assert late.status == 409
    check_answer("POST", f"{DELIVERY}/retry", late)
    for path, real in (
        (DELIVERY, f"/v1/deliveries/{name}"),
        (f"{ONE}/explain", f"/v1/notifications/{accepted['id']}/explain"),
        ("/v1/deliveries", "/v1/deliveries"),
    ):
        check_answer("GET", path, await server_on_each_store.call("GET", real))


async def test_pages_for_people_are_described(server: NotificationServer) -> None:
    path = link("/unsubscribe", LINK_KEY, Unsubscription("default", "email", "ada@example.com", "news"))
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for method, data, status in (("GET", None, 200), ("POST", b"", 400), ("POST", ONE_CLICK, 200)):
        reply = await server.call(method, path, data=data, headers=form)
        answers = API["paths"]["/unsubscribe/{token}"][method.lower()]["responses"]
        assert (reply.status, "text/html" in SHAPES.resolve(answers[str(status)])["content"]) == (status, True)

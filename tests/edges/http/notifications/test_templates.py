"""Templates over HTTP: put, versions, preview, and the protection of pending notifications."""

from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import FAR, NINE, REMINDER, NotificationServer

ONE = "/v1/templates/reminder"


def text(words: str) -> dict[str, Any]:
    return {"parts": {"email": {"en": {"subject": "Hi", "text": words}}}}


async def test_each_change_is_a_version(server_on_each_store: NotificationServer) -> None:
    first = await server_on_each_store.call("PUT", ONE, REMINDER)
    assert (first.status, first.headers["Location"]) == (201, ONE)
    wanted = {"name": "reminder", "outcome": "stored", "version": 1, "needs": ["name", "what"], "channels": ["email"]}
    assert first.document == wanted
    same = await server_on_each_store.call("PUT", ONE, REMINDER)
    assert (same.status, same.document["outcome"], same.document["version"]) == (200, "unchanged", 1)
    assert (await server_on_each_store.ok("PUT", ONE, text("Bye.") | {"urgency": "digest"}))["version"] == 2
    latest = await server_on_each_store.ok("GET", ONE)
    assert (latest["version"], latest["latest"], latest["needs"], latest["urgency"]) == (2, 2, [], "digest")
    former = await server_on_each_store.ok("GET", f"{ONE}?version=1")
    assert (former["version"], former["parts"], former["latest"]) == (1, REMINDER["parts"], 2)
    page = await server_on_each_store.ok("GET", f"{ONE}/versions?limit=1")
    assert ([each["version"] for each in page["versions"]], page["cursor"]) == ([2], "2")
    page = await server_on_each_store.ok("GET", f"{ONE}/versions?limit=1&cursor=2")
    assert ([each["version"] for each in page["versions"]], page["cursor"]) == ([1], None)
    [line] = (await server_on_each_store.ok("GET", "/v1/templates"))["templates"]
    assert (line["name"], line["latest"]) == ("reminder", 2)
    assert (await server_on_each_store.ok("DELETE", ONE)) == {"name": "reminder", "outcome": "deleted"}
    assert (await server_on_each_store.call("GET", ONE)).status == 404
    assert (await server_on_each_store.call("DELETE", ONE)).status == 404


async def test_a_template_can_be_put_as_it_was_returned(server: NotificationServer) -> None:
    parts = {
        "email": {"en": {"subject": "Hi", "text": ""}},
        "push": {"en": {"title": "Hi", "body": ""}},
        "webhook": {"en": {"body": {}}},
        "in_app": {"en": {"title": "Hi", "body": ""}},
    }
    await server.ok("PUT", ONE, {"parts": parts})
    found = await server.ok("GET", ONE)
    assert found["parts"] == parts
    assert (await server.ok("PUT", ONE, {"parts": found["parts"]}))["outcome"] == "unchanged"
    assert (await server.ok("POST", f"{ONE}/preview", {"channel": "webhook"}))["body"] == {}


async def test_a_preview_renders_the_template(server: NotificationServer) -> None:
    parts = {
        "email": {
            "en": {"subject": "Hi {{ name }}", "html": "<b>{{ name }}</b>"},
            "de": {"subject": "Na", "text": "x"},
        },
        "sms": {"en": {"text": "{{ name }} 你好"}},
        "webhook": {"en": {"body": {"who": "{{ name }}", "n": 1}}},
        "push": {"en": {"title": "t", "body": "b", "data": {"k": "{{ name }}"}}},
    }
    await server.ok("PUT", ONE, {"parts": parts})

    async def said(channel: str, **more: Any) -> Any:
        document = {"channel": channel, "variables": {"name": "<A>"}} | more
        return await server.ok("POST", f"{ONE}/preview", document)

    email = await said("email")
    assert (email["title"], email["html"], email["locale"]) == ("Hi <A>", "<b>&lt;A&gt;</b>", "en")
    assert (await said("email", locale="de-AT", version=1))["title"] == "Na"
    assert (await said("sms"))["segments"] == {"encoding": "UCS-2", "units": 6, "count": 1}
    assert (await said("webhook"))["body"] == {"who": "<A>", "n": 1}
    assert (await said("push"))["data"] == {"k": "<A>"}


async def test_a_template_that_pending_notifications_need_is_not_removed(
    server_on_each_store: NotificationServer,
) -> None:
    await server_on_each_store.create_users()
    accepted = await server_on_each_store.ok("POST", "/v1/notifications", NINE | {"at": FAR})
    more = text("{{ name }} {{ what }} {{ where }}")
    refused = await server_on_each_store.call("PUT", ONE, more)
    assert (refused.status, "where" in refused.problem["detail"]) == (409, True)
    assert (await server_on_each_store.call("DELETE", ONE)).status == 409
    assert (await server_on_each_store.ok("PUT", f"{ONE}?force=true", more))["version"] == 2
    await server_on_each_store.ok("DELETE", f"/v1/notifications/{accepted['id']}")
    assert (await server_on_each_store.ok("DELETE", ONE))["outcome"] == "deleted"


@pytest.mark.parametrize(
    ("method", "path", "document", "status", "words"),
    [
        ("PUT", ONE, {}, 400, "parts"),
        ("PUT", ONE, {"parts": {}}, 400, "empty"),
        ("PUT", ONE, {"parts": {"fax": {}}}, 400, "fax"),
        ("PUT", ONE, {"parts": {"sms": {"en": {"txt": "x"}}}}, 400, "txt"),
        ("PUT", ONE, {"parts": {"sms": {"de": {"text": " "}}}}, 400, "parts.sms.de.text: is empty"),
        ("PUT", ONE, {"parts": {"sms": {"de": {}}}}, 400, "text: is missing"),
        ("PUT", ONE, text("{% for x in (1..9) %}"), 400, "parts.email"),
        ("PUT", ONE, text("x" * 70_000), 400, "parts.email"),
        ("PUT", ONE, text("x") | {"urgency": "digest", "expires_after": "PT1H"}, 400, "leave one out"),
        ("PUT", ONE, text("x" * (5 << 20)), 413, "is larger than"),
        ("PUT", f"{ONE}?force=yes", text("x"), 400, "true"),
        ("PUT", "/v1/templates/no%20spaces", text("x"), 400, "name"),
        ("GET", f"{ONE}?version=zero", None, 400, "version"),
        ("GET", f"{ONE}?version=7", None, 404, "version 7"),
        ("GET", f"{ONE}/versions", None, 404, "reminder"),
        ("GET", "/v1/templates?limit=1001", None, 400, "limit"),
        ("POST", f"{ONE}/preview", {"channel": "email"}, 404, "reminder"),
        ("POST", f"{ONE}/preview", {}, 400, "channel"),
        ("POST", f"{ONE}/preview", {"channel": "fax"}, 400, "channel"),
        ("POST", f"{ONE}/preview", {"channel": "email", "locale": "??"}, 400, "is not a language"),
    ],
)
async def test_wrong_requests(
    server: NotificationServer, method: str, path: str, document: Any, status: int, words: str
) -> None:
    reply = await server.call(method, path, document)
    assert reply.status == status, reply.body
    assert words in reply.problem["detail"]


async def test_a_preview_needs_its_variables(server: NotificationServer) -> None:
    await server.ok("PUT", ONE, REMINDER)
    reply = await server.call("POST", f"{ONE}/preview", {"channel": "email", "variables": {"name": "A"}})
    assert (reply.status, "what" in reply.problem["detail"]) == (400, True)
    assert (await server.call("POST", f"{ONE}/preview", {"channel": "sms", "variables": {}})).status == 400

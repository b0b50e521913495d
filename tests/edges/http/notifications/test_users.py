"""Users over HTTP: put, show, change, list, delete, erase."""

from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import ADA, FAR, NINE, REMINDER, NotificationServer
from tests.edges.http.test_keys import made

ONE = "/v1/users/ada"


async def test_a_user_is_created_shown_changed_and_deleted(server_on_each_store: NotificationServer) -> None:
    creation = await server_on_each_store.call("PUT", ONE, ADA | {"quiet": "22:00-07:00"})
    assert (creation.status, creation.document) == (201, {"id": "ada", "outcome": "created"})
    assert creation.headers["Location"] == ONE
    shown = await server_on_each_store.call("GET", ONE)
    assert shown.document == {"id": "ada"} | ADA | {"quiet": {"hours": "22:00-07:00"}}
    assert shown.headers["ETag"] == creation.headers["ETag"]
    again = await server_on_each_store.call("PUT", ONE, shown.document)
    assert (again.status, again.document["outcome"]) == (200, "replaced")
    changed = await server_on_each_store.call("PATCH", ONE, {"phone": None, "preferences": {"news": False}})
    assert changed.document == {"id": "ada", "outcome": "changed"}
    shown = await server_on_each_store.call("GET", ONE)
    assert "phone" not in shown.document
    assert shown.document["preferences"] == {"news": False}
    assert (await server_on_each_store.call("DELETE", ONE)).document == {"id": "ada", "outcome": "deleted"}
    gone = await server_on_each_store.call("DELETE", ONE)
    assert gone.status == 404
    assert (gone.problem["id"], gone.problem["outcome"]) == ("ada", "unknown")


async def test_a_change_may_expect_a_version(server_on_each_store: NotificationServer) -> None:
    new = {"If-None-Match": "*"}
    first = await server_on_each_store.call("PUT", ONE, ADA, headers=new)
    assert first.status == 201
    assert (await server_on_each_store.call("PUT", ONE, ADA, headers=new)).status == 412
    tag = {"If-Match": first.headers["ETag"]}
    assert (await server_on_each_store.call("PATCH", ONE, {"locale": "de"}, headers=tag)).status == 200
    for method, document in (("PUT", ADA), ("PATCH", {"locale": "fr"}), ("DELETE", None)):
        stale = await server_on_each_store.call(method, ONE, document, headers=tag)
        assert (stale.status, "again" in stale.problem["detail"]) == (412, True), method
    assert (await server_on_each_store.call("PUT", "/v1/users/bob", ADA, headers={"If-Match": "*"})).status == 412
    assert (await server_on_each_store.call("PUT", ONE, ADA, headers={"If-Match": '"x"'})).status == 412
    assert (await server_on_each_store.call("PUT", ONE, ADA, headers={"If-None-Match": '"1"'})).status == 400
    assert (await server_on_each_store.call("DELETE", ONE, headers={"If-Match": "*"})).status == 200


async def test_pages_continue_after_an_id(server_on_each_store: NotificationServer) -> None:
    names = ["ada", "adam", "bob", "eve", "import"]
    for name in names:
        await server_on_each_store.ok("PUT", f"/v1/users/{name}", {})
    seen: list[str] = []
    path = "/v1/users?limit=2"
    while True:
        page = await server_on_each_store.ok("GET", path)
        assert len(page["users"]) <= 2
        seen += [user["id"] for user in page["users"]]
        if page["cursor"] is None:
            break
        path = f"/v1/users?limit=2&cursor={page['cursor']}"
    assert seen == names
    found = await server_on_each_store.ok("GET", "/v1/users?prefix=ada")
    assert [user["id"] for user in found["users"]] == ["ada", "adam"]
    assert (await server_on_each_store.call("GET", "/v1/users/import")).document["id"] == "import", (
        "a user may be called so"
    )


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"emal": "x"}, "emal", "did you mean 'email'"),
    ({"email": "nope"}, "email", "ada@example.com"),
    ({"email": "a@b.example\r\nBcc: x@y.example"}, "email", ""),
    ({"email": "a@☃.com"}, "email", "the domain '☃.com' is not valid"),
    ({"email": 5}, "email", "text"),
    ({"phone": "555"}, "phone", "+"),
    ({"webhook": "ftp://x"}, "webhook", ""),
    ({"zone": "Mars/Olympus"}, "zone", ""),
    ({"locale": "??"}, "locale", ""),
    ({"quiet": "late"}, "quiet", ""),
    ({"quiet": {"hours": "22:00-07:00", "then": "wait"}}, "quiet.then", "one of defer, drop"),
    ({"preferences": {"transactional": False}}, "preferences", ""),
    ({"devices": [{"platform": "apns", "token": "zz"}]}, "token", "device token"),
    ({"devices": [{"platform": "palm", "token": "zz"}]}, "devices[0].platform", "one of apns, fcm"),
    ({"variables": {"a": 1}}, "variables.a", "text"),
    ({"id": "eve"}, "id", "path"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "field", "advice"), WRONG)
async def test_a_wrong_field_is_named(
    server: NotificationServer, wrong: dict[str, Any], field: str, advice: str
) -> None:
    reply = await server.call("PUT", ONE, wrong)
    assert reply.status == 400, reply.body
    [error] = reply.problem["errors"]
    assert error["field"].startswith(field)
    assert advice in error["detail"]
    assert (await server.call("GET", ONE)).status == 404


async def test_wrong_requests(server: NotificationServer) -> None:
    await server.create_users()
    for method, path, status in (
        ("GET", "/v1/users?limit=0", 400),
        ("GET", "/v1/users?lmit=1", 400),
        ("GET", "/v1/users?prefix=%20", 400),
        ("GET", "/v1/users/eve", 404),
        ("POST", "/v1/users/eve/erase", 404),
        ("POST", "/v1/users/a%20b/erase", 400),
        ("POST", "/v1/users", 405),
        ("POST", ONE, 405),
        ("GET", "/v1/users/ada/erase", 405),
    ):
        reply = await server.call(method, path)
        assert (reply.status, bool(reply.problem)) == (status, True), path
    assert (await server.call("PUT", "/v1/users/a%2Fb", {})).status == 400
    assert (await server.call("PATCH", "/v1/users/eve", {"locale": "de"})).status == 404
    assert (await server.call("PATCH", ONE, {"emal": "x"})).status == 400
    assert (await server.call("PATCH", ONE, [1])).status == 400
    assert (await server.call("PUT", ONE, data=b"{}", headers={"Content-Type": "text/plain"})).status == 415
    assert (await server.call("PUT", ONE, {"name": "x" * 300_000})).status == 413


async def test_erase_returns_what_it_removed(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    accepted = await server_on_each_store.ok("POST", "/v1/notifications", NINE)
    await server_on_each_store.settled(accepted["id"])
    await server_on_each_store.ok("POST", "/v1/notifications", NINE | {"at": FAR})
    await server_on_each_store.ok("PUT", "/v1/suppressions/email/ada%40example.com", {"reason": "asked"})
    erased = await server_on_each_store.ok("POST", f"{ONE}/erase")
    assert erased["removed"] == {"user": 1, "notification": 2, "delivery": 1, "sent": 1}
    assert (erased["id"], erased["outcome"], erased["suppressions"]) == ("ada", "erased", 1)
    assert erased["cancelled"] == 1
    for path in (ONE, f"/v1/notifications/{accepted['id']}", f"/v1/deliveries/{accepted['id']}/1"):
        assert (await server_on_each_store.call("GET", path)).status == 404
    [kept] = (await server_on_each_store.ok("GET", "/v1/suppressions"))["suppressions"]
    assert "address" not in kept, "the opt-out outlives the data"


async def test_tenants_are_isolated(server: NotificationServer) -> None:
    boss = await made(server.site, "boss", "default", admin=True)
    acme, bolt = await made(server.site, "a", "acme", boss), await made(server.site, "b", "bolt", boss)
    await server.ok("PUT", ONE, ADA, headers=acme)
    await server.ok("PUT", "/v1/templates/reminder", REMINDER, headers=acme)
    accepted = await server.ok("POST", "/v1/notifications", NINE | {"at": FAR}, headers=acme)
    paths = (ONE, "/v1/templates/reminder", f"/v1/notifications/{accepted['id']}")
    for path in paths:
        assert (await server.call("GET", path, headers=acme)).status == 200
        assert (await server.call("GET", path, headers=bolt)).status == 404
        assert (await server.call("GET", path)).status == 401
    for path, name in (("/v1/users", "users"), ("/v1/notifications", "notifications"), ("/v1/templates", "templates")):
        assert (await server.ok("GET", path, headers=bolt))[name] == []
    assert (await server.call("DELETE", f"/v1/notifications/{accepted['id']}", headers=bolt)).status == 404
    assert (await server.call("POST", f"{ONE}/erase", headers=bolt)).status == 404


async def test_all_wrong_fields_are_named_at_once(server: NotificationServer) -> None:
    wrong = {"email": "ada", "phone": "12", "webhook": "ftp://x", "zone": "Mars/Base", "locale": "?", "quiet": "late"}
    problem = (await server.call("PUT", "/v1/users/ada", wrong)).problem
    assert {error["field"] for error in problem["errors"]} == wrong.keys()


PRIVATE = ("https://10.2.0.1/hook", "https://127.0.0.1/", "https://[::1]/x", "https://169.254.169.254/latest")
ALLOWED = ("https://10.1.0.1/hook", "https://93.184.216.34/", "https://internal.example/hook")


async def test_a_webhook_with_an_address_that_is_never_called_is_refused(server: NotificationServer) -> None:
    for url in ALLOWED:
        assert (await server.call("PUT", "/v1/users/eve", {"webhook": url})).status in {200, 201}
    for url in PRIVATE:
        for method in ("PUT", "PATCH"):
            reply = await server.call(method, "/v1/users/eve", {"webhook": url})
            assert (reply.status, reply.problem["errors"][0]["field"]) == (400, "webhook")
            assert "add its network to channels.webhook.allowed_networks" in reply.problem["errors"][0]["detail"]
    assert (await server.ok("GET", "/v1/users/eve"))["webhook"] == ALLOWED[-1]

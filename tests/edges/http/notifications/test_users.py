"""Users over HTTP: put, show, change, list, delete, erase."""

from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import ADA, FAR, NINE, REMINDER, Desk
from tests.edges.http.test_keys import made

ONE = "/v1/users/ada"


async def test_a_user_is_created_shown_changed_and_deleted(each_desk: Desk) -> None:
    made_her = await each_desk.call("PUT", ONE, ADA | {"quiet": "22:00-07:00"})
    assert (made_her.status, made_her.document) == (201, {"id": "ada", "outcome": "created"})
    assert made_her.headers["Location"] == ONE
    shown = await each_desk.call("GET", ONE)
    assert shown.document == {"id": "ada"} | ADA | {"quiet": {"hours": "22:00-07:00"}}
    assert shown.headers["ETag"] == made_her.headers["ETag"]
    again = await each_desk.call("PUT", ONE, shown.document)
    assert (again.status, again.document["outcome"]) == (200, "replaced")
    changed = await each_desk.call("PATCH", ONE, {"phone": None, "preferences": {"news": False}})
    assert changed.document == {"id": "ada", "outcome": "changed"}
    shown = await each_desk.call("GET", ONE)
    assert "phone" not in shown.document
    assert shown.document["preferences"] == {"news": False}
    assert (await each_desk.call("DELETE", ONE)).document == {"id": "ada", "outcome": "deleted"}
    gone = await each_desk.call("DELETE", ONE)
    assert gone.status == 404
    assert (gone.problem["id"], gone.problem["outcome"]) == ("ada", "unknown")


async def test_a_change_may_expect_a_version(each_desk: Desk) -> None:
    new = {"If-None-Match": "*"}
    first = await each_desk.call("PUT", ONE, ADA, headers=new)
    assert first.status == 201
    assert (await each_desk.call("PUT", ONE, ADA, headers=new)).status == 412
    tag = {"If-Match": first.headers["ETag"]}
    assert (await each_desk.call("PATCH", ONE, {"locale": "de"}, headers=tag)).status == 200
    for method, document in (("PUT", ADA), ("PATCH", {"locale": "fr"}), ("DELETE", None)):
        stale = await each_desk.call(method, ONE, document, headers=tag)
        assert (stale.status, "again" in stale.problem["detail"]) == (412, True), method
    assert (await each_desk.call("PUT", "/v1/users/bob", ADA, headers={"If-Match": "*"})).status == 412
    assert (await each_desk.call("PUT", ONE, ADA, headers={"If-Match": '"x"'})).status == 412
    assert (await each_desk.call("PUT", ONE, ADA, headers={"If-None-Match": '"1"'})).status == 400
    assert (await each_desk.call("DELETE", ONE, headers={"If-Match": "*"})).status == 200


async def test_pages_go_on_by_id(each_desk: Desk) -> None:
    names = ["ada", "adam", "bob", "eve", "import"]
    for name in names:
        await each_desk.done("PUT", f"/v1/users/{name}", {})
    seen: list[str] = []
    path = "/v1/users?limit=2"
    while True:
        page = await each_desk.done("GET", path)
        assert len(page["users"]) <= 2
        seen += [user["id"] for user in page["users"]]
        if page["cursor"] is None:
            break
        path = f"/v1/users?limit=2&cursor={page['cursor']}"
    assert seen == names
    found = await each_desk.done("GET", "/v1/users?prefix=ada")
    assert [user["id"] for user in found["users"]] == ["ada", "adam"]
    assert (await each_desk.call("GET", "/v1/users/import")).document["id"] == "import", "a user may be called so"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"emal": "x"}, "emal", "did you mean 'email'"),
    ({"email": "nope"}, "email", "ada@example.com"),
    ({"email": "a@b.example\r\nBcc: x@y.example"}, "email", ""),
    ({"email": "a@☃.com"}, "email", "the domain '☃.com' is not a valid domain name"),
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
    ({"variables": {"a": 1}}, "variables[...]", "text"),
    ({"id": "eve"}, "id", "path"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "field", "advice"), WRONG)
async def test_a_wrong_field_is_named(desk: Desk, wrong: dict[str, Any], field: str, advice: str) -> None:
    reply = await desk.call("PUT", ONE, wrong)
    assert reply.status == 400, reply.body
    [error] = reply.problem["errors"]
    assert error["field"].startswith(field)
    assert advice in error["detail"]
    assert (await desk.call("GET", ONE)).status == 404


async def test_wrong_requests(desk: Desk) -> None:
    await desk.welcome()
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
        reply = await desk.call(method, path)
        assert (reply.status, bool(reply.problem)) == (status, True), path
    assert (await desk.call("PUT", "/v1/users/a%2Fb", {})).status == 400
    assert (await desk.call("PATCH", "/v1/users/eve", {"locale": "de"})).status == 404
    assert (await desk.call("PATCH", ONE, {"emal": "x"})).status == 400
    assert (await desk.call("PATCH", ONE, [1])).status == 400
    assert (await desk.call("PUT", ONE, data=b"{}", headers={"Content-Type": "text/plain"})).status == 415
    assert (await desk.call("PUT", ONE, {"name": "x" * 300_000})).status == 413


async def test_erase_answers_what_it_removed(each_desk: Desk) -> None:
    await each_desk.welcome()
    told = await each_desk.done("POST", "/v1/notifications", NINE)
    await each_desk.settled(told["id"])
    await each_desk.done("POST", "/v1/notifications", NINE | {"at": FAR})
    await each_desk.done("PUT", "/v1/suppressions/email/ada%40example.com", {"reason": "asked"})
    erased = await each_desk.done("POST", f"{ONE}/erase")
    assert erased["removed"] == {"user": 1, "notification": 2, "delivery": 1, "sent": 1}
    assert (erased["id"], erased["outcome"], erased["suppressions"]) == ("ada", "erased", 1)
    assert erased["cancelled"] == 1
    for path in (ONE, f"/v1/notifications/{told['id']}", f"/v1/deliveries/{told['id']}/1"):
        assert (await each_desk.call("GET", path)).status == 404
    [kept] = (await each_desk.done("GET", "/v1/suppressions"))["suppressions"]
    assert "address" not in kept, "the opt-out outlives the data"


async def test_tenants_are_apart(desk: Desk) -> None:
    boss = await made(desk.site, "boss", "default", admin=True)
    acme, bolt = await made(desk.site, "a", "acme", boss), await made(desk.site, "b", "bolt", boss)
    await desk.done("PUT", ONE, ADA, headers=acme)
    await desk.done("PUT", "/v1/templates/reminder", REMINDER, headers=acme)
    told = await desk.done("POST", "/v1/notifications", NINE | {"at": FAR}, headers=acme)
    paths = (ONE, "/v1/templates/reminder", f"/v1/notifications/{told['id']}")
    for path in paths:
        assert (await desk.call("GET", path, headers=acme)).status == 200
        assert (await desk.call("GET", path, headers=bolt)).status == 404
        assert (await desk.call("GET", path)).status == 401
    for path, name in (("/v1/users", "users"), ("/v1/notifications", "notifications"), ("/v1/templates", "templates")):
        assert (await desk.done("GET", path, headers=bolt))[name] == []
    assert (await desk.call("DELETE", f"/v1/notifications/{told['id']}", headers=bolt)).status == 404
    assert (await desk.call("POST", f"{ONE}/erase", headers=bolt)).status == 404

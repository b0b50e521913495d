"""The unsubscribe link: reading changes nothing, one click unsubscribes, without login."""

import pytest

from tests.edges.http.notifications.notification_server import LINK_KEY, NINE, NotificationServer
from tests.edges.http.test_keys import made
from tidings.delivery.people.unsubscribe import ONE_CLICK, Unsubscription, link
from tidings.domain.names import DEFAULT_TENANT

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = b'--b\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--b--\r\n'


def path(category: str = "news", key: bytes = LINK_KEY) -> str:
    return link("/unsubscribe", key, Unsubscription(DEFAULT_TENANT, "email", "ada@example.com", category))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (ONE_CLICK, FORM),
        (b"x=1&List-Unsubscribe=One-Click", FORM),
        (MULTIPART, {"Content-Type": "multipart/form-data; boundary=b"}),
    ],
)
async def test_one_click_unsubscribes(
    server_on_each_store: NotificationServer, body: bytes, kind: dict[str, str]
) -> None:
    await server_on_each_store.create_users()
    boss = await made(server_on_each_store.site, "boss", "default", admin=True)
    shown = await server_on_each_store.call("GET", path())
    assert (shown.status, shown.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"ada@example.com" in shown.body
    assert b'name="List-Unsubscribe" value="One-Click"' in shown.body
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert (await server_on_each_store.ok("GET", "/v1/suppressions", headers=boss))["suppressions"] == [], (
        "reading the page does not unsubscribe"
    )
    for _ in range(2):
        ok = await server_on_each_store.call("POST", path(), data=body, headers=kind)
        assert (ok.status, b"will no longer be sent" in ok.body) == (200, True)
    [kept] = (await server_on_each_store.ok("GET", "/v1/suppressions", headers=boss))["suppressions"]
    assert (kept["address"], kept["category"]) == ("ada@example.com", "news")
    assert (await server_on_each_store.ok("GET", "/v1/users/ada", headers=boss))["preferences"] == {"email/news": False}
    news = await server_on_each_store.ok(
        "POST", "/v1/notifications", NINE | {"category": "news", "id": "n"}, headers=boss
    )
    assert news["outcome"] == "scheduled"


async def test_requests_that_do_not_unsubscribe(server: NotificationServer) -> None:
    await server.create_users()
    for body, kind in (
        (b"", FORM),
        (b"List-Unsubscribe=Later", FORM),
        (b"&" * 4_000, FORM),
        (b"--b\r\n\r\n--b--", {"Content-Type": "multipart/form-data; boundary=b"}),
        (MULTIPART, {"Content-Type": "multipart/form-data"}),
        (b"{}", {"Content-Type": "application/json"}),
    ):
        assert (await server.call("POST", path(), data=body, headers=kind)).status == 400, body
    for wrong in (path(key=b"x" * 32), path()[:-2], "/unsubscribe/x", "/unsubscribe/%FF", f"/unsubscribe/{'x' * 3000}"):
        assert (await server.call("GET", wrong)).status in {400, 404}, wrong
        assert (await server.call("POST", wrong, data=ONE_CLICK, headers=FORM)).status in {400, 404}, wrong
    for method in ("GET", "POST"):
        data = ONE_CLICK if method == "POST" else None
        assert (await server.call(method, path("transactional"), data=data, headers=FORM)).status == 400
    assert (await server.call("POST", path(), data=b"x" * 10_000, headers=FORM)).status == 413
    assert (await server.call("DELETE", path())).status == 405
    assert (await server.ok("GET", "/v1/suppressions"))["suppressions"] == []


async def test_a_page_shows_names_as_text(server: NotificationServer) -> None:
    unsubscription = Unsubscription(DEFAULT_TENANT, "email", "<script>@example.com", "<b>")
    shown = await server.call("GET", link("/unsubscribe", LINK_KEY, unsubscription))
    assert b"<script>" not in shown.body
    assert b"&lt;b&gt;" in shown.body

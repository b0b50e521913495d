"""The link at the end of a message: looking changes nothing, one click ends it, no login."""

import pytest

from tests.edges.http.notifications.notification_server import LINK_KEY, NINE, Desk
from tests.edges.http.test_keys import made
from tidings.delivery.unsubscribe import ONE_CLICK, Unsubscription, link
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
async def test_one_click_ends_it(each_desk: Desk, body: bytes, kind: dict[str, str]) -> None:
    await each_desk.welcome()
    boss = await made(each_desk.site, "boss", "default", admin=True)
    shown = await each_desk.call("GET", path())
    assert (shown.status, shown.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"ada@example.com" in shown.body
    assert b'name="List-Unsubscribe" value="One-Click"' in shown.body
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert (await each_desk.done("GET", "/v1/suppressions", headers=boss))["suppressions"] == [], "looking is no wish"
    for _ in range(2):
        done = await each_desk.call("POST", path(), data=body, headers=kind)
        assert (done.status, b"will no longer be sent" in done.body) == (200, True)
    [kept] = (await each_desk.done("GET", "/v1/suppressions", headers=boss))["suppressions"]
    assert (kept["address"], kept["category"]) == ("ada@example.com", "news")
    assert (await each_desk.done("GET", "/v1/users/ada", headers=boss))["preferences"] == {"email/news": False}
    news = await each_desk.done("POST", "/v1/notifications", NINE | {"category": "news", "id": "n"}, headers=boss)
    assert news["outcome"] == "scheduled"


async def test_what_does_not_end_anything(desk: Desk) -> None:
    await desk.welcome()
    for body, kind in (
        (b"", FORM),
        (b"List-Unsubscribe=Later", FORM),
        (b"&" * 4_000, FORM),
        (b"--b\r\n\r\n--b--", {"Content-Type": "multipart/form-data; boundary=b"}),
        (MULTIPART, {"Content-Type": "multipart/form-data"}),
        (b"{}", {"Content-Type": "application/json"}),
    ):
        assert (await desk.call("POST", path(), data=body, headers=kind)).status == 400, body
    for wrong in (path(key=b"x" * 32), path()[:-2], "/unsubscribe/x", "/unsubscribe/%FF", f"/unsubscribe/{'x' * 3000}"):
        assert (await desk.call("GET", wrong)).status in {400, 404}, wrong
        assert (await desk.call("POST", wrong, data=ONE_CLICK, headers=FORM)).status in {400, 404}, wrong
    for method in ("GET", "POST"):
        data = ONE_CLICK if method == "POST" else None
        assert (await desk.call(method, path("transactional"), data=data, headers=FORM)).status == 400
    assert (await desk.call("POST", path(), data=b"x" * 10_000, headers=FORM)).status == 413
    assert (await desk.call("DELETE", path())).status == 405
    assert (await desk.done("GET", "/v1/suppressions"))["suppressions"] == []


async def test_a_page_shows_names_as_text(desk: Desk) -> None:
    wish = Unsubscription(DEFAULT_TENANT, "email", "<script>@example.com", "<b>")
    shown = await desk.call("GET", link("/unsubscribe", LINK_KEY, wish))
    assert b"<script>" not in shown.body
    assert b"&lt;b&gt;" in shown.body

"""Deliveries over HTTP: list, show, and retry failed ones."""

import pytest

from tests.edges.http.notifications.notification_server import NINE, NotificationServer
from tidings.domain.notifications.delivery import Permanent

LIST = "/v1/deliveries"


@pytest.mark.slow
async def test_a_failed_delivery_is_sent_again(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    server_on_each_store.mail.answer = lambda _: Permanent("content_refused", "no spam")
    accepted = await server_on_each_store.ok("POST", "/v1/notifications", NINE)
    failed = await server_on_each_store.settled(accepted["id"], "failed")
    assert (failed["reason"], failed["attempts"][0]["detail"]) == ("content_refused", "no spam")
    server_on_each_store.mail.answer = lambda _: None
    retried = await server_on_each_store.ok("POST", f"{LIST}/{accepted['id']}/1/retry")
    assert (retried["id"], retried["outcome"], retried["state"]) == (f"{accepted['id']}/1", "retried", "pending")
    sent = await server_on_each_store.settled(accepted["id"])
    assert [attempt["outcome"] for attempt in sent["attempts"]] == ["content_refused", "accepted"]
    assert len({message.id for message in server_on_each_store.mail.calls}) == 1, "under the same message id"
    again = await server_on_each_store.call("POST", f"{LIST}/{accepted['id']}%2F1/retry")
    assert (again.status, again.problem["outcome"], again.problem["state"]) == (409, "rejected", "sent")
    history = await server_on_each_store.ok("GET", f"/v1/notifications/{accepted['id']}/explain")
    assert [line["event"] for line in history["history"]].count("attempt") == 2


async def test_deliveries_are_found_by_their_fields(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users("ada", "bob")
    names = []
    for user in ("ada", "bob", "ada"):
        accepted = await server_on_each_store.ok("POST", "/v1/notifications", NINE | {"user": user})
        names.append(f"{accepted['id']}/1")
        await server_on_each_store.settled(accepted["id"])

    async def found(query: str) -> list[str]:
        page = await server_on_each_store.ok("GET", f"{LIST}?{query}")
        more = [] if page["cursor"] is None else await found(f"{query}&cursor={page['cursor']}")
        return [each["name"] for each in page["deliveries"]] + more

    assert await found("user=ada") == [names[2], names[0]]
    assert await found("state=sent&channel=email") == names[::-1]
    assert await found("channel=sms") == []
    assert await found("state=failed") == []
    assert await found("until=-1h") == []
    first = await server_on_each_store.ok("GET", f"{LIST}?limit=2")
    assert [each["name"] for each in first["deliveries"]] == [names[2], names[1]]
    rest = await server_on_each_store.ok("GET", f"{LIST}?limit=2&cursor={first['cursor']}")
    assert ([each["name"] for each in rest["deliveries"]], rest["cursor"]) == ([names[0]], None)
    one = await server_on_each_store.ok("GET", f"{LIST}/{names[0]}")
    assert one == await server_on_each_store.ok("GET", f"{LIST}/{names[0].replace('/', '%2F')}")
    assert (one["user"], one["address"], "claim" in one) == ("ada", "ada@example.com", False)


async def test_wrong_requests(server: NotificationServer) -> None:
    for method, path, status in (
        ("GET", f"{LIST}/nothing/1", 404),
        ("POST", f"{LIST}/nothing/1/retry", 404),
        ("GET", f"{LIST}?state=gone", 400),
        ("GET", f"{LIST}?template=x", 400),
        ("GET", f"{LIST}?cursor=9", 400),
        ("DELETE", f"{LIST}/nothing/1", 405),
        ("GET", f"{LIST}/nothing/1/retry", 405),
    ):
        reply = await server.call(method, path)
        assert (reply.status, bool(reply.problem)) == (status, True), path
    assert (await server.call("POST", f"{LIST}/a/1/retry", {"now": True})).status == 400

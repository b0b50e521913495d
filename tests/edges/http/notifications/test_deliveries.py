"""Deliveries over HTTP: list, show, and retry failed ones."""

import pytest

from tests.edges.http.notifications.notification_server import NINE, Desk
from tidings.domain.notifications.delivery import Permanent

LIST = "/v1/deliveries"


@pytest.mark.slow
async def test_what_failed_is_sent_again(each_desk: Desk) -> None:
    await each_desk.welcome()
    each_desk.mail.answer = lambda _: Permanent("content_refused", "no spam")
    told = await each_desk.done("POST", "/v1/notifications", NINE)
    failed = await each_desk.settled(told["id"], "failed")
    assert (failed["reason"], failed["attempts"][0]["detail"]) == ("content_refused", "no spam")
    each_desk.mail.answer = lambda _: None
    retried = await each_desk.done("POST", f"{LIST}/{told['id']}/1/retry")
    assert (retried["id"], retried["outcome"], retried["state"]) == (f"{told['id']}/1", "retried", "pending")
    sent = await each_desk.settled(told["id"])
    assert [attempt["outcome"] for attempt in sent["attempts"]] == ["content_refused", "accepted"]
    assert len({message.id for message in each_desk.mail.calls}) == 1, "under the same message id"
    again = await each_desk.call("POST", f"{LIST}/{told['id']}%2F1/retry")
    assert (again.status, again.problem["outcome"], again.problem["state"]) == (409, "rejected", "sent")
    story = await each_desk.done("GET", f"/v1/notifications/{told['id']}/explain")
    assert [line["event"] for line in story["history"]].count("attempt") == 2


async def test_they_are_found(each_desk: Desk) -> None:
    await each_desk.welcome("ada", "bob")
    names = []
    for user in ("ada", "bob", "ada"):
        told = await each_desk.done("POST", "/v1/notifications", NINE | {"user": user})
        names.append(f"{told['id']}/1")
        await each_desk.settled(told["id"])

    async def found(query: str) -> list[str]:
        page = await each_desk.done("GET", f"{LIST}?{query}")
        more = [] if page["cursor"] is None else await found(f"{query}&cursor={page['cursor']}")
        return [each["name"] for each in page["deliveries"]] + more

    assert await found("user=ada") == [names[2], names[0]]
    assert await found("state=sent&channel=email") == names[::-1]
    assert await found("channel=sms") == []
    assert await found("state=failed") == []
    assert await found("until=-1h") == []
    first = await each_desk.done("GET", f"{LIST}?limit=2")
    assert [each["name"] for each in first["deliveries"]] == [names[2], names[1]]
    rest = await each_desk.done("GET", f"{LIST}?limit=2&cursor={first['cursor']}")
    assert ([each["name"] for each in rest["deliveries"]], rest["cursor"]) == ([names[0]], None)
    one = await each_desk.done("GET", f"{LIST}/{names[0]}")
    assert one == await each_desk.done("GET", f"{LIST}/{names[0].replace('/', '%2F')}")
    assert (one["user"], one["address"], "claim" in one) == ("ada", "ada@example.com", False)


async def test_wrong_requests(desk: Desk) -> None:
    for method, path, status in (
        ("GET", f"{LIST}/nothing/1", 404),
        ("POST", f"{LIST}/nothing/1/retry", 404),
        ("GET", f"{LIST}?state=gone", 400),
        ("GET", f"{LIST}?template=x", 400),
        ("GET", f"{LIST}?cursor=9", 400),
        ("DELETE", f"{LIST}/nothing/1", 405),
        ("GET", f"{LIST}/nothing/1/retry", 405),
    ):
        reply = await desk.call(method, path)
        assert (reply.status, bool(reply.problem)) == (status, True), path
    assert (await desk.call("POST", f"{LIST}/a/1/retry", {"now": True})).status == 400

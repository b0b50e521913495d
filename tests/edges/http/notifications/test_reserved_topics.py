"""The topics and ids that delivery uses: nobody else writes to them, and lists do not show its retries."""

from typing import Any

import pytest

from tests.edges.http.notifications.notification_server import FAR, NINE, NotificationServer
from tests.edges.http.site import NDJSON
from tests.edges.http.test_in_flight import command
from tidings.domain.notifications.delivery import Temporary, Verdict
from tidings.testing import eventually

FORGED = {"value": {"notification": "later"}}
WRITES = {
    "publish": ("POST", "/v1/topics/notify.email/records", FORGED),
    "publish with high priority": ("POST", "/v1/topics/notify.email.high/records", FORGED),
    "publish a dead letter": ("POST", "/v1/topics/notify.dead/records", FORGED),
    "publish to a name of the prefix": ("POST", "/v1/topics/notify.other/records", FORGED),
    "schedule": ("POST", "/v1/schedules", {"topic": "notify.email", "at": "+0.01s", **FORGED}),
    "replace": ("PUT", "/v1/schedules/mine", {"topic": "notify.email", "at": "+0.01s", **FORGED}),
}


@pytest.mark.parametrize("write", WRITES)
async def test_nobody_can_write_to_a_topic_of_deliveries(server_on_each_store: NotificationServer, write: str) -> None:
    """Such a record could name a pending notification, which would be sent early."""
    await server_on_each_store.create_users()
    await server_on_each_store.ok("POST", "/v1/notifications", NINE | {"id": "later", "at": FAR})
    for _ in range(2):  # the name of a topic is remembered once it was accepted
        problem = (await server_on_each_store.call(*WRITES[write])).problem
        assert problem["status"] == 400
        [error] = problem["errors"]
        assert error["field"] == "topic"
        assert error["detail"].startswith("is reserved for the deliveries of notifications: choose another topic")
    await server_on_each_store.ok("POST", "/v1/notifications", NINE | {"id": "now"})
    await server_on_each_store.settled("now")
    assert [message.id for message in server_on_each_store.mail.calls] == ["now/1"]
    assert (await server_on_each_store.ok("GET", "/v1/notifications/later"))["state"] == "pending"


async def test_each_line_to_such_a_topic_is_rejected(server: NotificationServer) -> None:
    lines = b'{"topic": "notify.sms", "value": 1}\n{"topic": "notify", "value": 2}\n'
    reply = await server.call("POST", "/v1/schedules", data=lines, headers=NDJSON)
    refused, accepted = reply.lines
    assert (refused["outcome"], refused["errors"][0]["field"]) == ("rejected", "topic")
    assert accepted["outcome"] == "scheduled"


async def test_the_command_line_refuses_it_too(server: NotificationServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = await command(server.site, capsys, "publish", "notify.email", "{}")
    assert code == 2
    assert "topic: is reserved for the deliveries of notifications" in text


async def test_these_topics_can_be_read(server: NotificationServer) -> None:
    await server.create_users()
    await server.ok("POST", "/v1/notifications", NINE | {"id": "now"})
    await server.settled("now")
    [record] = await server.site.records("notify.email")
    assert record["id"] == "now"


def in_an_hour(_: Any) -> Verdict:
    return Temporary("rate_limited", retry_after_us=3_600_000_000)


async def waiting(server: NotificationServer) -> None:
    """The notification `tea`, whose delivery waits for another attempt."""
    await server.create_users()
    server.mail.answer = in_an_hour
    await server.ok("POST", "/v1/notifications", NINE | {"id": "tea", "channel": "email"})

    async def is_scheduled() -> bool:
        return (await server.call("GET", "/v1/schedules/tea%2F1~2")).status == 200

    assert await eventually(is_scheduled)


async def test_lists_of_schedules_do_not_show_retries(
    server_on_each_store: NotificationServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await waiting(server_on_each_store)
    await server_on_each_store.site.add(id="mine~1")

    async def listed(query: str = "") -> list[str]:
        page = await server_on_each_store.ok("GET", f"/v1/schedules{query}")
        return [schedule["id"] for schedule in page["schedules"]]

    assert sorted(await listed()) == ["mine~1", "tea"]
    assert await listed("?state=pending") == ["mine~1"]
    assert await listed("?prefix=tea/") == ["tea/1~2"]
    assert set(await listed("?topic=notify.email")) == {"tea", "tea/1~2"}
    code, text = await command(server_on_each_store.site, capsys, "list")
    assert (code, "mine~1" in text, "tea/1~2" in text) == (0, True, False)
    code, text = await command(server_on_each_store.site, capsys, "show", "tea/1~2")
    assert (code, "notify.email" in text) == (0, True)


async def test_a_cancelled_notification_leaves_no_pending_retry(server_on_each_store: NotificationServer) -> None:
    await waiting(server_on_each_store)
    assert (await server_on_each_store.ok("DELETE", "/v1/notifications/tea"))["outcome"] == "cancelled"
    retry = await server_on_each_store.site.state_of("tea%2F1~2", "cancelled")
    assert retry["topic"] == "notify.email"
    assert (await server_on_each_store.call("POST", "/v1/schedules/tea%2F1~2/fire")).status == 409
    await server_on_each_store.settled("tea", "cancelled")
    assert len(server_on_each_store.mail.calls) == 1

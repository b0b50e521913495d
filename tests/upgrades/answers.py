"""Every answer that a node gives to a read: recorded from version 0.1, and compared with those of today."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tests.upgrades.node import Client

TENANTS = ("default", "acme", "shop")
PAGE_ROWS = 7  # so that lists have several pages
SCHEDULE_STATES = ("pending", "paused", "in_flight", "released", "missed", "cancelled", "ended")
NOTIFICATION_STATES = (
    "pending",
    "processing",
    "sent",
    "delivered",
    "bounced",
    "complained",
    "failed",
    "cancelled",
    "expired",
    "skipped",
)
GROUPS = (("greetings", "half"), ("greetings", "all"), ("greetings", "new"))

Answers = dict[str, Any]


class Reads:
    """Reads everything of a tenant. The name of an answer is its tenant and path; pages are joined into one list."""

    def __init__(self, client: Client, tenant: str) -> None:
        self._client = client
        self._tenant = tenant
        self.answers: Answers = {}

    async def one(self, path: str) -> Any:
        reply = await self._client.get(path, self._tenant)
        self.answers[f"{self._tenant} {path}"] = reply.stored
        return reply.document

    async def pages(self, path: str, field: str) -> list[Any]:
        """All rows of a list, by its cursors."""
        rows: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            more = f"{'&' if '?' in path else '?'}limit={PAGE_ROWS}" + (f"&cursor={quote(cursor)}" if cursor else "")
            reply = await self._client.get(path + more, self._tenant)
            assert reply.status == 200, reply.body
            rows += reply.document[field]
            cursor = reply.document["cursor"]
        self.answers[f"{self._tenant} {path}"] = rows
        return rows

    async def records(self, topic: str) -> None:
        """All records of a topic: a reader never comes to a last page, so it stops at an empty one."""
        rows: list[Any] = []
        cursor = ""
        while True:
            more = f"&cursor={quote(cursor)}" if cursor else ""
            page = (
                await self._client.get(f"/v1/topics/{topic}/records?limit={PAGE_ROWS}{more}", self._tenant)
            ).document
            if not page["records"]:
                break
            rows += page["records"]
            cursor = page["cursor"]
        self.answers[f"{self._tenant} /v1/topics/{topic}/records"] = rows

    async def schedules(self) -> None:
        ids = {row["id"] for row in await self.pages("/v1/schedules", "schedules")}
        for state in SCHEDULE_STATES:
            await self.pages(f"/v1/schedules?state={state}", "schedules")
        for more in ("topic=greetings", "prefix=once", "label=campaign%3Dautumn", "from=2029-01-01T00:00:00Z"):
            await self.pages(f"/v1/schedules?{more}", "schedules")
        for each in sorted(ids):
            await self.one(f"/v1/schedules/{quote(each, safe='')}")
            await self.one(f"/v1/schedules/{quote(each, safe='')}/explain")
        await self.one("/v1/forecast?by=day&from=2026-11-20T00:00:00Z&to=2032-01-01T00:00:00Z")
        for calendar in (await self.one("/v1/calendars"))["calendars"]:
            await self.one(f"/v1/calendars/{calendar['name']}")
        await self.one("/v1/tzdata")

    async def topics(self) -> None:
        for topic in (await self.one("/v1/topics"))["topics"]:
            await self.records(topic["name"])

    async def users(self) -> None:
        for user in await self.pages("/v1/users", "users"):
            await self.one(f"/v1/users/{user['id']}")
            await self.pages(f"/v1/inbox/{user['id']}", "lines")
            await self.one(f"/v1/inbox/{user['id']}/unread")
            await self.pages(f"/v1/notifications?user={user['id']}", "notifications")
        await self.pages("/v1/suppressions", "suppressions")
        await self.one("/v1/channels")

    async def templates(self) -> None:
        for template in await self.pages("/v1/templates", "templates"):
            path = f"/v1/templates/{template['name']}"
            await self.one(path)
            for version in await self.pages(f"{path}/versions", "versions"):
                await self.one(f"{path}?version={version['version']}")

    async def notifications(self) -> None:
        for row in await self.pages("/v1/notifications", "notifications"):
            await self.one(f"/v1/notifications/{quote(row['id'], safe='')}")
            await self.one(f"/v1/notifications/{quote(row['id'], safe='')}/explain")
        for state in NOTIFICATION_STATES:
            await self.pages(f"/v1/notifications?state={state}", "notifications")
        for more in ("batch=everyone", "template=reminder", "category=news", "channel=webhook", "priority=low"):
            await self.pages(f"/v1/notifications?{more}", "notifications")
        for row in await self.pages("/v1/deliveries", "deliveries"):
            await self.one(f"/v1/deliveries/{quote(row['name'])}")

    async def groups(self, groups: Sequence[tuple[str, str]]) -> None:
        """What each consumer group would read next: its committed offsets, as a member sees them."""
        for topic, group in groups:
            path = f"/v1/topics/{topic}/groups/{group}"
            joined = (await self._client.call("POST", f"{path}/join", {}, tenant=self._tenant)).document
            member = {"member": joined["member"], "generation": joined["generation"]}
            rows: list[Any] = []
            while True:
                asked = member | {"limit": PAGE_ROWS}
                page = (await self._client.call("POST", f"{path}/fetch", asked, tenant=self._tenant)).document[
                    "records"
                ]
                if not page:
                    break
                rows += page
            self.answers[f"{self._tenant} {path}"] = sorted(rows, key=lambda row: (row["partition"], row["offset"]))
            await self._client.call("POST", f"{path}/leave", member, tenant=self._tenant)


async def read_all(client: Client) -> Answers:
    """Every answer of a store, for all its tenants."""
    answers: Answers = {}
    for tenant in TENANTS:
        reads = Reads(client, tenant)
        await reads.schedules()
        await reads.topics()
        await reads.users()
        await reads.templates()
        await reads.notifications()
        if tenant == "default":
            await reads.groups(GROUPS)
            await reads.one("/v1/keys")
        answers |= reads.answers
    return answers

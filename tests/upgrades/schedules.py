"""Schedules of every kind and in every state, calendars, topics and consumer groups, as version 0.1 stores them."""

from typing import Any
from urllib.parse import quote

from tests.upgrades.node import Client
from tests.upgrades.requests import Requests
from tidings.testing import eventually

FAR = "2030-01-01T00:00:00Z"
SOON = "2026-11-20T10:30:00Z"
LATE = "2026-11-20T09:05:00Z"  # while no node runs
WAIT_S = 20.0

BINARY: dict[str, Any] = {
    "key_base64": "AP/+",
    "value_base64": "AAECAwT/",
    "headers": [["trace", "abc"], ["trace", "def"], ["empty", None], ["bytes", {"base64": "/w=="}]],
}

ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//x//y//EN
BEGIN:VEVENT
UID:1
DTSTAMP:20260101T000000Z
DTSTART;VALUE=DATE:20261231
RRULE:FREQ=YEARLY
END:VEVENT
END:VCALENDAR
""".replace("\n", "\r\n")

PENDING: dict[str, dict[str, Any]] = {
    "once": {"at": FAR, "value": {"hello": "wörld", "n": 1.50}},
    "once/with slash %20 ü": {"at": FAR, "value": "text", "key": "k"},
    "once-binary": {"at": FAR} | BINARY,
    "once-empty": {"at": FAR},
    "once-high": {"at": FAR, "priority": "high", "labels": {"campaign": "autumn", "größe": "XL"}},
    "once-low": {"at": FAR, "priority": "low", "labels": {"campaign": "autumn"}, "jitter": "PT1H"},
    "once-expiring": {"at": FAR, "expires_after": "PT1H", "late": "fire_all"},
    "once-skip": {"at": FAR, "late": "skip", "late_grace": "PT5M", "late_max": "PT10M"},
    "once-local": {"at": "2027-03-28T02:30:00", "zone": "Europe/Berlin"},
    "once-gap": {"at": "2027-03-28T02:30:00", "zone": "Europe/Berlin", "gap": "skip"},
    "once-overlap": {"at": "2027-10-31T02:30:00", "zone": "Europe/Berlin", "overlap": "second"},
    "rule": {
        "rrule": "FREQ=MONTHLY;BYDAY=-1FR",
        "zone": "America/New_York",
        "start": "2027-01-01T09:00:00",
        "exdates": ["2027-02-26"],
        "rdates": ["2027-02-25T09:00:00"],
    },
    "rule-count": {"rrule": "FREQ=DAILY", "start": "2027-01-01T09:00:00Z", "count": 5, "late": "fire_all"},
    "rule-calendar": {
        "rrule": "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0",
        "start": "2026-12-24T00:00:00Z",
        "calendar": "holidays",
        "on_excluded": "next_day",
    },
    "cron": {"cron": "30 2 * * *", "zone": "Europe/Berlin", "start": "2027-01-01", "overlap": "both"},
    "cron-until": {"cron": "0 9 L * *", "start": "2027-01-01", "until": "2028-01-01", "jitter": "PT10M"},
    "cron-dropped-calendar": {"cron": "0 9 * * *", "start": "2027-01-01", "calendar": "dropped"},
    "every": {"every": "R/2027-01-31T09:00:00Z/P1M", "priority": "high"},
    "every-count": {"every": "R5/2027-01-01T09:00:00Z/PT10M", "expires_after": "PT5M"},
    "every-until": {"every": "R/2027-01-01T09:00:00Z/PT1H/2027-01-02T09:00:00Z", "labels": {"campaign": "autumn"}},
}
DUE_SOON: dict[str, dict[str, Any]] = {
    "soon": {"at": SOON, "value": "soon", "key": "k"},
    "soon-binary": {"at": SOON} | BINARY,
    "soon-high": {"at": SOON, "priority": "high", "value": "high"},
    "soon-skip": {"at": SOON, "late": "skip"},
    "soon-expired": {"at": SOON, "expires_after": "PT5M"},
    "soon-every": {"every": "R5/2026-11-20T10:00:00Z/PT10M", "late": "fire_all", "value": "every"},
    "soon-latest": {"every": "R/2026-11-20T10:00:00Z/PT10M", "value": "latest"},
    "soon-cancelled": {"at": SOON, "value": "the test cancels it"},
}
DUE_LATE: dict[str, dict[str, Any]] = {
    "late": {"at": LATE, "value": "late"},
    "late-skipped": {"at": LATE, "late": "skip"},
    "late-expired": {"at": LATE, "expires_after": "PT1M"},
    "late-max": {"at": LATE, "late_max": "PT1M"},
    "late-superseded": {"every": "R5/2026-11-20T09:05:00Z/PT1M", "value": "superseded"},
}
STATES = {
    "once": "pending",
    "paused": "paused",
    "paused-rule": "paused",
    "cancelled": "cancelled",
    "released": "released",
    "ended": "ended",
    "late": "released",
    "late-skipped": "missed",
    "late-expired": "missed",
    "late-max": "missed",
    "late-superseded": "ended",
    "missed-paused": "missed",
    "handed": "in_flight",
    "held": "in_flight",
}


def path_of(schedule: str, verb: str = "") -> str:
    """The path of a schedule."""
    return f"/v1/schedules/{quote(schedule, safe='')}{verb}"


async def add(client: Client, requests: Requests, schedule: str, *, tenant: str = "default", **fields: Any) -> None:
    """Add a schedule to the topic `greetings`, unless another one is named."""
    document = {"id": schedule, "topic": "greetings"} | fields
    await requests.send(client, "POST", "/v1/schedules", document, tenant=tenant)


async def in_state(client: Client, schedule: str, state: str, tenant: str = "default") -> Any:
    """The schedule, once it is in this state."""

    async def found() -> Any:
        document = (await client.get(path_of(schedule), tenant)).document
        return document if document.get("state") == state else None

    return await eventually(found, WAIT_S)


async def make(client: Client, requests: Requests) -> None:
    """Fill a new store."""
    days = {"dates": ["2026-12-24", "2026-12-25", "2027-01-01"]}
    for tenant in ("default", "acme"):
        await requests.send(client, "PUT", "/v1/calendars/holidays", days, tenant=tenant)
    await requests.send(client, "PUT", "/v1/calendars/dropped", {"dates": ["2027-01-01"]})
    await requests.send(client, "PUT", "/v1/calendars/unused", {"ics": ICS})
    for tenant in ("default", "acme"):
        for schedule, fields in PENDING.items():
            if tenant == "default" or fields.get("calendar") != "dropped":
                await add(client, requests, schedule, tenant=tenant, **fields)
    await requests.send(client, "DELETE", "/v1/calendars/dropped")
    await requests.send(client, "PUT", "/v1/calendars/holidays", {"dates": [*days["dates"], "2026-12-26"]})
    for schedule, fields in (DUE_SOON | DUE_LATE).items():
        await add(client, requests, schedule, **fields)
    await make_changes(client, requests)
    await make_records(client, requests)
    await make_groups(client, requests)
    await make_keyed(client, requests)


async def make_changes(client: Client, requests: Requests) -> None:
    """Schedules that were changed: paused, resumed, fired, replaced, cancelled, used again."""
    for schedule in ("paused", "resumed", "cancelled", "replaced", "fired-once"):
        await add(client, requests, schedule, at=FAR, value=schedule)
    for schedule in ("paused-rule", "fired", "replaced-rule", "paused-soon"):
        await add(client, requests, schedule, every="R/2026-11-20T10:00:00Z/P1D", value=schedule)
    for schedule in ("paused", "paused-rule", "resumed", "paused-soon"):
        await requests.send(client, "POST", path_of(schedule, "/pause"))
    await requests.send(client, "POST", path_of("resumed", "/resume"))
    await requests.send(client, "POST", path_of("fired-once", "/fire"))
    await requests.send(client, "POST", path_of("fired", "/fire"))
    await requests.send(client, "POST", path_of("fired", "/fire"), key="fire-it")
    await requests.send(client, "DELETE", path_of("cancelled"))
    other = {"topic": "elsewhere", "at": FAR, "value": "another"}
    await requests.send(client, "PUT", path_of("replaced"), other)
    rule = {"topic": "greetings", "cron": "0 9 * * *", "zone": "Asia/Tokyo"}
    await requests.send(client, "PUT", path_of("replaced-rule") + "?keep_count=true", rule)
    await add(client, requests, "reused", value="first")
    await in_state(client, "reused", "released")
    await requests.send(client, "PUT", path_of("reused") + "?reuse=true", other)
    await add(client, requests, "missed-paused", at="+1s", value="missed")
    await requests.send(client, "POST", path_of("missed-paused", "/pause"))
    await add(client, requests, "ended", every="R2/PT1S", value="ended", topic="ends")
    await add(client, requests, "released-rule", every="R/PT1S", value="goes on", topic="ends", count=3)
    await in_state(client, "ended", "ended")
    await in_state(client, "released-rule", "ended")
    await requests.send(client, "POST", path_of("missed-paused", "/resume") + "?missed=skip")


async def make_records(client: Client, requests: Requests) -> None:
    """Topics with records in all partitions."""
    await add(client, requests, "released", value="out", key="k", headers=BINARY["headers"], labels={"a": "b"})
    await add(client, requests, "released-binary", key_base64="AP/+", value_base64="AAECAwT/")
    for tenant in ("default", "acme"):
        for number in range(20):
            record = {"id": f"record-{number}", "value": {"n": number}, "key": f"key-{number}"}
            await requests.send(client, "POST", "/v1/topics/greetings/records", record, tenant=tenant)
    await requests.send(client, "POST", "/v1/topics/empty.key/records", {"id": "record-null", "value": None})
    for number in range(20):
        for tenant in ("default", "acme"):
            await in_state(client, f"record-{number}", "released", tenant)
    for schedule in ("released", "released-binary", "record-null", "fired-once"):
        await in_state(client, schedule, "released")


async def make_groups(client: Client, requests: Requests) -> None:
    """Consumer groups that have read half of a topic, and all of it."""
    for group, limit in (("half", 10), ("all", 1_000)):
        path = f"/v1/topics/greetings/groups/{group}"
        joined = (await requests.send(client, "POST", f"{path}/join", {"member": "worker-1"})).document
        member = {"member": joined["member"], "generation": joined["generation"]}
        fetched = await requests.send(client, "POST", f"{path}/fetch", member | {"limit": limit})
        offsets = {str(record["partition"]): record["offset"] + 1 for record in fetched.document["records"]}
        assert offsets
        await requests.send(client, "POST", f"{path}/commit", member | {"offsets": offsets})
        await requests.send(client, "POST", f"{path}/leave", member)


async def make_keyed(client: Client, requests: Requests) -> None:
    """Requests with idempotency keys, of which one is for a schedule without an id."""
    for tenant in ("default", "acme"):
        document = {"topic": "greetings", "at": FAR, "value": "keyed"}
        await requests.send(client, "POST", "/v1/schedules", document, tenant=tenant, key="no-id")
        await requests.send(client, "POST", "/v1/schedules", document | {"id": "keyed"}, tenant=tenant, key="with-id")
    many = [{"topic": "greetings", "at": FAR, "id": f"many-{number}", "value": number} for number in range(30)]
    await requests.send(client, "POST", "/v1/schedules", many, key="many")


async def check(client: Client) -> None:
    """Every state is there."""
    for schedule, state in STATES.items():
        assert (await in_state(client, schedule, state))["state"] == state

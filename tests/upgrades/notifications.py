"""Users, templates, suppressions, inboxes, and notifications in every state, as version 0.1 stores them."""

import asyncio
import base64
import errno
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from tests.providers.servers.http import Answer, Fault, HttpServer, Request
from tests.upgrades.databases import Database
from tests.upgrades.node import Client, ShiftedClock
from tests.upgrades.requests import Requests
from tests.upgrades.schedules import FAR, SOON, WAIT_S
from tests.upgrades.settings import AWAY_PORT, HOOKS_PORT, SECRETS
from tidings.testing import eventually

FREE_S_MAX = 60.0
LINK = re.compile(r"https://notify\.example\.com(/unsubscribe/[\w.~=-]+)")
PREFIX = "n-"  # of the ids of notifications: schedules have the same ones without it
APNS, FCM = "ab" * 32, "fcm-token-of-a-device-1"

TEMPLATES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("reminder", {"parts": {"webhook": {"en": {"body": {"old": "{{ what }}"}}}}}),
    (
        "reminder",
        {
            "parts": {
                "email": {
                    "en": {"subject": "Hi {{ name }}", "html": "<b>{{ what }}</b>", "text": "It is {{ what }}."},
                    "de": {"subject": "Hallo {{ name }}", "text": "Es ist {{ what }}."},
                },
                "sms": {"en": {"text": "It is {{ what }}."}},
                "push": {"en": {"title": "Hi", "body": "It is {{ what }}.", "data": {"open": "today"}}},
                "webhook": {"en": {"body": {"what": "{{ what }}", "plan": "{{ plan | default: 'none' }}"}}},
                "in_app": {"en": {"title": "Hi {{ name }}", "body": "It is {{ what }}."}},
            },
            "locale": "en",
        },
    ),
    ("reminder", {"parts": {"webhook": {"en": {"body": {"what": "{{ what }}!"}}}}, "expires_after": "P9999D"}),
    ("digest", {"parts": {"email": {"en": {"subject": "News", "text": "{{ what }}"}}}, "urgency": "digest"}),
    ("gone", {"parts": {"sms": {"en": {"text": "gone"}}}}),
)
SUPPRESSED: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("email", "sup@example.com", {"reason": "asked by telephone"}),
    ("email", "news@example.com", {"reason": "too many", "category": "news"}),
    ("email", "Max@B\u00fccher.example", {"reason": "IDN"}),
    ("email", "Max@xn--bcher-kva.example", {"reason": "punycode"}),
    ("email", "Max@BU\u0308CHER.example", {"reason": "NFD and capitals"}),
    ("email", "Eva@EXAMPLE.com", {"reason": "capitals"}),
    ("sms", "+15550199", {"reason": "wrong number"}),
    ("webhook", "HTTPS://Hooks.example.com:443/a/../x", {"reason": "not normalized"}),
    ("webhook", "https://hooks.example.com/x", {"reason": "normalized"}),
    ("push", f"apns:{'CD' * 32}", {"reason": "gone"}),
    ("in_app", "noinbox", {"reason": "by hand"}),
)


def users(host: str) -> dict[str, dict[str, Any]]:
    """The users, whose receivers of webhooks listen on this address."""
    hooks, away = f"http://{host}:{HOOKS_PORT}", f"http://{host}:{AWAY_PORT}"
    return {
        "ada": {
            "name": "Ada",
            "email": "ada@example.com",
            "phone": "+15550100",
            "zone": "America/New_York",
            "locale": "en",
            "devices": [{"platform": "apns", "token": APNS}, {"platform": "fcm", "token": FCM}],
            "webhook": f"{hooks}/ada",
            "preferences": {"sms": False, "email/news": True},
            "quiet": {"hours": "22:00-03:00", "then": "defer", "spares_high": False},
            "variables": {"plan": "gold"},
        },
        "bob": {"name": "Bob", "webhook": f"{away}/bob", "zone": "Europe/Berlin", "locale": "de"},
        "cem": {"name": "Cem", "webhook": f"{hooks}/refused", "email": "cem@example.com"},
        "eva": {
            "name": "Eva",
            "webhook": f"{hooks}/eva",
            "quiet": {"hours": "08:00-10:00"},
            "email": "Eva@EXAMPLE.com",
        },
        "opt": {"name": "Opt", "webhook": f"{hooks}/opt", "preferences": {"news": False}},
        "sup": {"name": "Sup", "email": "sup@example.com", "locale": "fr"},
        "max": {"name": "M\u00e4x", "email": "max@b\u00fccher.example", "phone": "+4930123456"},
        "hang": {"name": "Hang", "webhook": f"{hooks}/hang"},
        "ivy": {"name": "Ivy", "zone": "Asia/Kolkata"},
        "unsub": {"name": "Una", "email": "unsub@example.com", "zone": "Pacific/Chatham"},
        "deleted": {"name": "Deleted", "email": "deleted@example.com"},
        "erased": {"name": "Erased", "email": "erased@example.com", "phone": "+15550111"},
        "nowhere": {"name": "Nowhere", "email": "nowhere@example.com"},
    }


def notices(host: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Notifications that a worker handles at once, and the state of each afterwards."""
    hook = {"template": "reminder", "variables": {"what": "now"}, "channel": "webhook"}
    mail = {"template": "reminder", "version": 2, "variables": {"what": "nine"}, "channel": "email"}
    inline = {"channel": "webhook", "words": {"text": "inline", "title": "t", "data": {"a": "1"}}}
    return {
        "sent": (hook | {"user": "ada"}, "sent"),
        "sent-bare": (inline | {"to": f"http://{host}:{HOOKS_PORT}/bare"}, "sent"),
        "sent-all": (
            mail | {"user": "ada", "channel": None, "channels": ["email", "webhook"], "spread": "all"},
            "sent",
        ),
        "sent-push": (mail | {"user": "ada", "channel": "push", "collapse": "c"}, "sent"),
        "sent-sms": (mail | {"user": "max", "channel": "sms"}, "sent"),
        "sent-next": (mail | {"user": "cem", "channel": None, "channels": ["webhook", "email"]}, "sent"),
        "delivered": (mail | {"user": "ada"}, "delivered"),
        "bounced": (mail | {"user": "cem"}, "bounced"),
        "complained": (mail | {"user": "unsub"}, "complained"),
        "failed": (hook | {"user": "cem"}, "failed"),
        "deferred": (hook | {"user": "eva"}, "pending"),
        "expired": (hook | {"user": "eva", "expires_after": "PT10M"}, "expired"),
        "sent-twice": (hook | {"user": "ada", "every": "R2/PT1S"}, "sent"),
        "opted-out": (hook | {"user": "opt", "category": "news"}, "skipped"),
        "suppressed": (mail | {"user": "sup"}, "skipped"),
        "suppressed-idn": ({"to": "Max@b\u00fccher.example", "channel": "email", "words": {"text": "x"}}, "skipped"),
        "inbox-1": (mail | {"user": "ivy", "channel": "in_app"}, "sent"),
        "inbox-2": (mail | {"user": "ivy", "channel": "in_app"}, "sent"),
        "inbox-3": (mail | {"user": "ivy", "channel": "in_app", "priority": "low"}, "sent"),
        "retry-1": (hook | {"user": "bob"}, "pending"),
        "retry-2": (hook | {"user": "bob"}, "pending"),
        "retry-3": (hook | {"user": "bob"}, "pending"),
        "retry-4": (hook | {"user": "bob"}, "pending"),
        "of-erased": (mail | {"user": "erased"}, "sent"),
        "deduped": (hook | {"user": "ada", "dedupe_key": "d", "dedupe_window": "P2D"}, "sent"),
        "duplicate": (hook | {"user": "ada", "dedupe_key": "d", "dedupe_window": "P2D"}, "skipped"),
        "news": (mail | {"user": "unsub", "category": "news"}, "sent"),
        "news-too": (mail | {"user": "ada", "category": "news"}, "sent"),
    }


PENDING: dict[str, dict[str, Any]] = {
    "far": {"user": "ada", "at": FAR},
    "far-local": {"user": "ada", "at": "2030-01-01T09:00:00"},
    "far-high": {"user": "ada", "at": FAR, "priority": "high", "category": "news"},
    "far-low": {"user": "eva", "at": FAR, "priority": "low", "jitter": "PT1H"},
    "far-pinned": {"user": "ada", "at": FAR, "version": 2, "channels": ["email", "sms"], "locale": "de"},
    "far-current": {"user": "ada", "at": FAR, "version": "current"},
    "far-expiring": {"user": "ada", "at": FAR, "expires_after": "PT1H"},
    "far-dedupe": {"user": "ada", "at": FAR, "dedupe_key": "far"},
    "recurring": {"user": "ada", "cron": "0 9 * * *", "start": "2027-01-01"},
    "recurring-rule": {
        "user": "max",
        "rrule": "FREQ=DAILY",
        "start": "2027-01-01T09:00:00",
        "calendar": "holidays",
        "on_excluded": "next_day",
        "channel": "sms",
        "version": 2,
    },
    "recurring-every": {"user": "ada", "every": "R5/2027-01-01T09:00:00Z/PT1H"},
    "cancelled-before": {"user": "ada", "at": FAR},
    "soon": {"user": "ada", "at": SOON, "variables": {"what": "soon"}},
    "soon-recurring": {"user": "ada", "every": "R2/2026-11-20T10:00:00Z/PT10M", "late": "fire_all"},
    "soon-cancelled": {"user": "ada", "at": SOON},
    "soon-opted-out": {"user": "opt", "at": SOON, "category": "news"},
    "soon-inbox": {"user": "ivy", "at": SOON, "channel": "in_app", "version": 2},
    "soon-deleted": {"user": "deleted", "at": SOON, "channel": "email", "version": 2},
    "soon-no-address": {"user": "nowhere", "at": SOON, "channel": "email", "version": 2},
    "soon-mail": {"user": "max", "at": SOON, "channel": "email", "version": 2},
}


class Receiver:
    """Receives webhooks: it refuses those of one path, and never answers those of another."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []  # the path and the id of each message

    def __call__(self, request: Request) -> Answer | Fault:
        self.texts.append((request.path, request.headers["webhook-id"]))
        match request.path:
            case "/refused":
                return Answer(413)
            case "/hang":
                return "silence"
            case _:
                return Answer(204)


@asynccontextmanager
async def receiving(handler: Any, host: str, port: int) -> AsyncIterator[HttpServer]:
    """A receiver at a fixed address, which is that of users in the fixtures."""
    server = HttpServer(handler)
    server.port = port
    listener = await eventually(lambda: _listen(server, host, port), FREE_S_MAX)
    assert listener is not None
    try:
        yield server
    finally:
        server.over.set()
        listener.close()
        await listener.wait_closed()


async def _listen(server: HttpServer, host: str, port: int) -> asyncio.Server | None:
    """None while another test listens there: tests run in several processes."""
    try:
        return await asyncio.start_server(server.serve, host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None


def path_of(notification: str) -> str:
    """The path of a notification of this module."""
    return f"/v1/notifications/{PREFIX}{notification}"


async def notify(client: Client, requests: Requests, notification: str, tenant: str = "default", **fields: Any) -> Any:
    """Accept a notification; fields that are None are left out."""
    document = {"id": PREFIX + notification} | {name: value for name, value in fields.items() if value is not None}
    return (await requests.send(client, "POST", "/v1/notifications", document, tenant=tenant)).document


async def in_state(client: Client, notification: str, state: str, reason: str | None = None) -> Any:
    """The notification, once it is in this state and no worker has it any more."""

    async def found() -> Any:
        document = (await client.get(path_of(notification))).document
        is_there = document.get("state") == state and reason in (None, document.get("reason"))
        return document if is_there else None

    return await eventually(found, WAIT_S)


async def make(
    client: Client,
    requests: Requests,
    database: Database,
    folder: Path,
    facts: dict[str, Any],
    clock: ShiftedClock,
) -> None:
    """Fill a store, and crash while a worker is sending a message."""
    receiver = Receiver()
    async with receiving(receiver, database.host, HOOKS_PORT):
        await make_people(client, requests, database.host)
        await make_pending(client, requests)
        await make_sent(client, requests, database.host)
        await make_receipts(client, clock)
        await make_rest(client, requests, folder, facts)
        await notify(client, requests, "hanging", user="hang", template="reminder", variables={"what": "never"})
        await in_state(client, "hanging", "processing")
        for name, tenant, admin in (("operator", "default", True), ("acme-app", "acme", False)):
            created = await client.call("POST", "/v1/keys", {"name": name, "tenant": tenant, "admin": admin})
            assert created.status == 201, created.body
            facts[f"key {name}"] = created.document["key"]
            client.key = facts["key operator"]
        await asyncio.to_thread(database.crash)


async def make_people(client: Client, requests: Requests, host: str) -> None:
    """Users, templates and suppressions of two tenants."""
    for tenant in ("default", "acme"):
        for user, profile in users(host).items():
            await requests.send(client, "PUT", f"/v1/users/{user}", profile, tenant=tenant)
        for name, template in TEMPLATES:
            await requests.send(client, "PUT", f"/v1/templates/{name}", template, tenant=tenant)
        for channel, address, why in SUPPRESSED:
            path = f"/v1/suppressions/{channel}/{quote(address, safe='')}"
            await requests.send(client, "PUT", path, why, tenant=tenant)
    await requests.send(client, "DELETE", "/v1/templates/gone")
    await requests.send(client, "PATCH", "/v1/users/ada", {"variables": {"plan": "platinum"}, "locale": "de"})


async def make_pending(client: Client, requests: Requests) -> None:
    """Notifications that wait, one of them with an idempotency key, and a list of users."""
    usual = {"template": "reminder", "variables": {"what": "later"}}
    for tenant in ("default", "acme"):
        for notification, fields in PENDING.items():
            await notify(client, requests, notification, tenant, **(usual | fields))
        everyone = usual | {"id": "n-everyone", "users": ["ada", "eva", "opt", "unknown"], "at": "2030-01-01T09:00:00"}
        everyone |= {"batch": "everyone", "channel": "webhook"}
        await requests.send(client, "POST", "/v1/notifications", everyone, tenant=tenant)
        keyed = usual | {"user": "ada", "at": FAR}
        await requests.send(client, "POST", "/v1/notifications", keyed, tenant=tenant, key="notify-no-id")
        await requests.send(client, "DELETE", path_of("cancelled-before"), tenant=tenant)


async def make_sent(client: Client, requests: Requests, host: str) -> None:
    """Notifications that a worker has sent, put off or given up."""
    await requests.send(client, "DELETE", "/v1/users/deleted")
    await requests.send(client, "PATCH", "/v1/users/nowhere", {"email": None})
    for notification, (fields, state) in notices(host).items():
        await notify(client, requests, notification, **fields)
        first = "sent" if state in ("delivered", "bounced", "complained") else state
        await in_state(client, notification, first, "quiet_hours" if notification == "deferred" else None)

        async def settled(notification: str = notification) -> bool:
            reply = await client.get(f"/v1/deliveries?notification={PREFIX}{notification}")
            return all(row["state"] != "processing" for row in reply.document["deliveries"])

        await eventually(settled, WAIT_S)
    await client.call("POST", "/v1/inbox/ivy/read", {"ids": ["n-inbox-1/1"]})


async def make_receipts(client: Client, clock: ShiftedClock) -> None:
    """What providers reported later."""
    for state, more in (
        ("delivered", {}),
        ("bounced", {"reason": "550 no such user", "suppress": True}),
        ("complained", {"suppress": True}),
    ):
        receipt = {"state": state, "message": f"{PREFIX}{state}/1"} | more
        body, headers = signed_receipt(receipt, state, clock)
        reply = await client.call("POST", "/receipts/outbox/default", body, **headers)
        assert reply.status == 200, reply.body
        await in_state(client, state, state)


def signed_receipt(receipt: dict[str, Any], message: str, clock: ShiftedClock) -> tuple[bytes, dict[str, str]]:
    """The body of a receipt and its headers, as Standard Webhooks describes them."""
    key = base64.b64decode(SECRETS["UPGRADE_RECEIPT_SECRET"].removeprefix("whsec_"))
    body, at_s = msgspec.json.encode(receipt), clock.now() // 1_000_000
    digest = hmac.digest(key, f"{message}.{at_s}.".encode() + body, hashlib.sha256)
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return body, {"webhook_id": message, "webhook_timestamp": str(at_s), "webhook_signature": signature}


async def make_rest(client: Client, requests: Requests, folder: Path, facts: dict[str, Any]) -> None:
    """Unsubscribe by a link, erase a user, and delete the profile of another."""
    links = {name: _link(folder, name) for name in ("news", "news-too")}
    body = b"List-Unsubscribe=One-Click"
    reply = await client.call("POST", links["news"], body, Content_Type="application/x-www-form-urlencoded")
    assert reply.status == 200, reply.body
    facts["unsubscribe"] = links["news-too"]
    await requests.send(client, "POST", "/v1/users/erased/erase")


def _link(folder: Path, notification: str) -> str:
    """The path of the link to unsubscribe in an e-mail."""
    [path] = (folder / "outbox").glob(f"email-{PREFIX}{notification}-1-*.eml")
    found = LINK.search(path.read_text().replace("=\n", "").replace("\n ", ""))
    assert found is not None, path.read_text()
    return found[1]


async def make_unread(client: Client, requests: Requests) -> None:
    """Notifications that are released, while no worker runs."""
    for notification, fields in (
        ("unread", {"channel": "webhook", "user": "ada"}),
        ("unread-high", {"channel": "webhook", "user": "ada", "priority": "high"}),
        ("unread-low", {"channel": "webhook", "user": "eva", "priority": "low"}),
        ("unread-inbox", {"channel": "in_app", "user": "ivy", "version": 2}),
    ):
        await notify(client, requests, notification, template="reminder", variables={"what": notification}, **fields)

        async def released(notification: str = notification) -> bool:
            reply = await client.get(path_of(notification))
            return reply.document["state"] == "pending" and reply.document.get("reason") in ("released", "no_worker")

        await eventually(released, WAIT_S)

"""Every table of the command line fits a terminal of 80 columns, however long its rows are."""

from typing import Any

import pytest

from tidings.__main__ import NodeHooks
from tidings.domain.fleet import ROLES
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.edges.cli.client import Client
from tidings.edges.cli.main import main

COLUMNS = 80
AT = "2026-11-20T09:00:00.123456Z"
LONG = "a-rather-long-name-that-does-not-fit-any-column"
WHY = "the provider answered 503 Service Unavailable, and the circuit breaker is open until it answers again"
ADDRESS = "somebody.with.a.long.name@mail.example.org"

DELIVERY = {
    "name": f"{LONG}/1", "user": LONG, "channel": "webhook", "provider": LONG, "state": "complained",
    "late_ms": 123_456.7, "sent_at": AT, "provider_id": LONG, "reason": WHY,
}  # fmt: skip
ATTEMPT = {
    "number": 12, "channel": "webhook", "provider": LONG, "begun_at": AT, "ended_at": "2026-11-20T09:01:00.123456Z",
    "outcome": "in progress, or interrupted", "detail": WHY,
}  # fmt: skip
EVENT = {
    "at": AT, "event": "half_open_again", "attempt": 12, "channel": "webhook", "provider": LONG, "provider_id": LONG,
    "due_at": AT, "late_ms": 1_234_567.8, "occurrence": 123_456, "reason": WHY,
}  # fmt: skip
NOTIFICATION = {
    "id": LONG, "user": LONG, "channels": ["email", "webhook", "sms"], "template": LONG, "state": "complained",
    "due_at": AT, "reason": WHY,
}  # fmt: skip
PROVIDER = {
    "name": LONG, "provider": "sendgrid_like", "channels": ["email", "sms"], "limit": {"per_s": 1_000, "burst": 5_000},
    "tenant_limit": {"per_s": 1_000, "burst": 5_000}, "breaker": "half_open", "until": AT, "reason": WHY,
    "receivers": [{"receiver": f"https://{LONG}.example.org/hook", "breaker": "open", "until": AT, "reason": WHY}],
}  # fmt: skip
NODE = {
    "id": LONG, "name": LONG, "version": "12.34.56.dev789", "since": "2026-01-01T00:00:00.000000Z", "state": "gone",
    "lease_until": AT, "roles": ["http", "dispatch", "deliver"], "clock_ahead_ms": 12_345.6,
    "channels": ["email", "sms", "push", "webhook"],
    "lateness": {"released": 1_234_567_890, "p50_ms": 12_345.6, "p99_ms": 123_456.7, "max_ms": 1_234_567.8},
    "owns": [{"lane": lane, "since": AT, "overdue_ms": 123_456.7} for lane in range(0, 40, 2)],
}  # fmt: skip
USER = {
    "id": LONG, "name": LONG, "email": ADDRESS, "phone": "+441632960961123", "zone": "America/Argentina/Buenos_Aires",
    "quiet": {"hours": "22:00-07:00", "then": "drop"},
}  # fmt: skip
MOVED = {
    "id": LONG, "occurrence": 123_456, "before": AT, "after": AT, "zone": "America/Argentina/Buenos_Aires",
    "after_local": "2026-11-20T09:00:00-03:00", "cause": "tzdata",
}  # fmt: skip
ZONE = {"name": LONG * 3, "version": "2026a", "changed": True}
SCHEDULE = {"id": LONG, "topic": LONG, "state": "cancelled", "priority": "normal", "due_at": AT}
SUPPRESSION = {"channel": "webhook", "address": ADDRESS, "category": LONG, "reason": WHY, "since": AT}
MOMENT = {"occurrence": 123_456, "due_at": AT, "due_at_local": "2026-11-20T09:00:00-03:00", "note": WHY}
VERSION = {
    "version": 123_456, "parts": {name: {"text": "x"} for name in ("email", "sms", "push", "webhook", "in_app")},
    "locale": "zh-Hant-TW-x-private", "urgency": "time_sensitive", "expires_after": "PT123H45M",
}  # fmt: skip

TABLES: list[tuple[list[str], dict[str, Any]]] = [
    (["deliveries"], {"deliveries": [DELIVERY]}),
    (["deliveries", "show", "a/1"], {"attempts": [ATTEMPT], "news": [{"at": AT, "state": "bounced", "reason": WHY}]}),
    (["channels"], {"providers": [PROVIDER]}),
    (["notifications", "list"], {"notifications": [NOTIFICATION]}),
    (["notifications", "show", "a"], {"deliveries": [DELIVERY]}),
    (["notifications", "explain", "a"], {"id": "a", "state": "sent", "history": [EVENT]}),
    (["nodes"], {"nodes": [NODE], "free_lanes": []}),
    (["list"], {"schedules": [SCHEDULE]}),
    (["explain", "a"], {"id": "a", "state": "released", "history": [EVENT]}),
    (["preview", "--cron", "0 9 * * *"], {"moments": [MOMENT]}),
    (["users", "list"], {"users": [USER]}),
    (["suppressions", "list"], {"suppressions": [SUPPRESSION]}),
    (["templates", "list"], {"templates": [{"name": LONG * 2, "latest": 12, "changed_at": AT}]}),
    (["templates", "versions", "a"], {"versions": [VERSION]}),
    (["calendars", "list"], {"calendars": [{"name": LONG * 2, "days": 12_345, "changed_at": AT}]}),
    (["topics"], {"bus": "log", "topics": [{"name": LONG * 3, "partitions": [{"first": 0, "next": 9, "bytes": 9}]}]}),
    (["tzdata"], {"version": "2026a", "zones": [ZONE], "moved": [MOVED]}),
]


@pytest.mark.parametrize(("argv", "document"), TABLES, ids=[" ".join(argv[:2]) for argv, _ in TABLES])
def test_every_table_fits_80_columns(
    argv: list[str], document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Client, "call", lambda *_, **__: document | {"cursor": None})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(argv, NodeHooks()) == 0
    printed = capsys.readouterr()
    lines = [*printed.out.splitlines(), *printed.err.splitlines()]
    assert len(lines) > 1
    assert [line for line in lines if len(line) > COLUMNS] == []


def test_nodes_show_their_channels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = {"released": 0, "p50_ms": 1.2, "p99_ms": 3.4, "max_ms": 5.6}
    plain = NODE | {"version": "0.1.0", "state": "alive", "lateness": quiet, "clock_ahead_ms": 0.1, "owns": []}
    mail = plain | {"id": "1", "name": "mail", "roles": ["deliver"], "channels": ["email", "sms"]}
    front = plain | {"id": "2", "name": "front", "roles": ["api", "intake", "dispatch"], "channels": []}
    whole = plain | {"id": "3", "name": "whole", "roles": list(ROLES), "channels": list(CHANNEL_NAMES)}
    monkeypatch.setattr(Client, "call", lambda *_, **__: {"nodes": [mail, front, whole], "free_lanes": []})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")
    main(["nodes"], NodeHooks())
    heading, *rows = capsys.readouterr().out.splitlines()[:4]
    roles, channels, lanes = (heading.index(head) for head in ("roles", "channels", "lanes"))
    assert [row[channels:lanes].strip() for row in rows] == ["email, sms", "-", "all"]
    assert [row[roles:channels].strip() for row in rows] == ["deliver", "api, intake, dispatch", "all"]


def test_the_reason_stays_with_an_ellipsis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Client, "call", lambda *_, **__: {"deliveries": [DELIVERY], "cursor": None})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")
    main(["deliveries"], NodeHooks())
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[-1] == "why"
    assert row.endswith("…")
    assert row[heading.index("why") :].startswith(WHY[:9])

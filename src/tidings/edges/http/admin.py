"""Calendars, time zone rules, API keys, nodes, health, and the description of the API."""

import asyncio
import inspect
from functools import cache
from importlib.resources import files

import msgspec

from tidings.domain.errors import Invalid, NotFound, StoreError
from tidings.domain.fleet import Fleet, LaneState, Node
from tidings.domain.names import check_name
from tidings.domain.recurrence import timezone
from tidings.domain.recurrence.ics_calendar import TEXT_CHARS_MAX, parse_calendar
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.when import DAY_US
from tidings.edges.advice import NO_ANSWER, kafka_text
from tidings.edges.http.auth import make_key
from tidings.edges.http.inputs import SMALL_BODY_BYTES_MAX, body_kind, decode, query_of, read_body, whole_number
from tidings.edges.http.openapi.describe import describe
from tidings.edges.http.problems import RETRY_AFTER_S, Refusal
from tidings.edges.http.routes import Answer, Call, Edge, Handler, Reply, json_answer
from tidings.ports import ApiKey
from tidings.shapes.admin import Moved, NewCalendar, NewKey
from tidings.wires.answers import Document, calendar_document, encode, moved_document

BODY_BYTES_MAX = TEXT_CHARS_MAX + 64 * 1024
MOVED_DEFAULT = 100
METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
NO_DAYS = "it has no days, so nothing is excluded by it: send days if this was not intended"

_calendars = msgspec.json.Decoder(NewCalendar)
_keys = msgspec.json.Decoder(NewKey)
# The page is one file without external parts; everything that it shows comes from this server.
_POLICY = b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


class Calendars:
    """The resource `/v1/calendars`."""

    def __init__(self, edge: Edge) -> None:
        self._engine = edge.engine

    async def index(self, call: Call) -> Reply:
        """All calendars of the tenant."""
        query_of(call.scope)
        found = await self._engine.store.calendars(call.caller.tenant)
        return json_answer({"calendars": [calendar_document(one, whole=False) for one in found]})

    async def show(self, call: Call) -> Reply:
        """One calendar with its dates."""
        query_of(call.scope)
        name = call.text("name")
        calendar = await self._engine.store.calendar(call.caller.tenant, name)
        if calendar is None:
            raise _unknown_calendar(name)
        return json_answer(calendar_document(calendar))

    async def put(self, call: Call) -> Reply:
        """Store a calendar, and recompute the pending schedules that use it."""
        query_of(call.scope)
        body_kind(call.headers)
        body = await read_body(call.headers, call.receive, BODY_BYTES_MAX)
        sent = decode(_calendars, body, NewCalendar)
        name = call.text("name")
        check_name(name, "name")
        today = self._engine.clock.now() // DAY_US
        days = await asyncio.to_thread(_days, sent, today)  # a long text takes a while, and would block the loop
        report = await self._engine.rule_changes.put_calendar(call.caller.tenant, name, days)
        document: Document = {"name": name, "days": len(days), "moved": report.moved}
        return json_answer(document if days else document | {"note": NO_DAYS})

    async def drop(self, call: Call) -> Reply:
        """Delete a calendar; pending schedules that use it continue without it."""
        query_of(call.scope)
        name = call.text("name")
        report = await self._engine.rule_changes.drop_calendar(call.caller.tenant, name)
        if report is None:
            raise _unknown_calendar(name)
        return json_answer({"name": name, "dropped": True, "moved": report.moved})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            "/v1/calendars": {"GET": self.index},
            "/v1/calendars/{name}": {"GET": self.show, "PUT": self.put, "DELETE": self.drop},
        }


class Zones:
    """The resource `/v1/tzdata`."""

    def __init__(self, edge: Edge) -> None:
        self._engine = edge.engine

    async def show(self, call: Call) -> Reply:
        """The version in use, the time zones of pending schedules, and the schedules that moved recently."""
        limit = whole_number(query_of(call.scope, "limit"), "limit", MOVED_DEFAULT, 1, 1_000)
        stored = await self._engine.store.zones()
        moved = await self._engine.store.moved(call.caller.tenant, limit)
        used = [
            {"name": zone.name, "version": zone.version, "changed": zone.content != timezone.content_of(zone.name)}
            for zone in stored
        ]
        document = {"version": timezone.VERSION, "zones": used, "moved": [moved_document(one) for one in moved]}
        return json_answer(document)

    async def apply(self, call: Call) -> Reply:
        """Recompute the pending schedules of time zones whose rules have changed."""
        query_of(call.scope)
        if not call.caller.admin:
            raise Refusal(
                "forbidden", "this changes schedules of every tenant: use an admin key (created with --admin)"
            )
        started = self._engine.clock.now()
        report = await self._engine.rule_changes.zones()
        document: Document = {"version": timezone.VERSION, "changed": list(report.zones), "moved": report.moved}
        return json_answer(document | {"movements": await self._moved_since(call.caller.tenant, started, report.moved)})

    async def _moved_since(self, tenant: str, started: int, count: int) -> list[Moved]:
        """The schedules of a tenant that moved since a moment, the latest first, each with its time zone."""
        if not count:
            return []
        moved = await self._engine.store.moved(tenant, min(count, MOVED_DEFAULT))
        lines = []
        for one in moved:
            if one.at >= started and one.cause.startswith("tzdata"):
                schedule = await self._engine.find(tenant, one.id)
                lines.append(moved_document(one, None if schedule is None else zone_of(schedule.when)))
        return lines

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/v1/tzdata": {"GET": self.show, "POST": self.apply}}


def _days(sent: NewCalendar, today: int) -> tuple[int, ...]:
    if (sent.dates is None) == (sent.ics is None):
        raise Invalid("dates", "give either 'dates', such as [\"2026-12-25\"], or 'ics', the text of a calendar file")
    if sent.dates is None:
        return parse_calendar(sent.ics or "", "ics", today)
    return parse_calendar("\n".join(date.replace("\n", " ") for date in sent.dates), "dates", today)


def _unknown_calendar(name: str) -> NotFound:
    return NotFound(f"there is no calendar named {name!r}: GET /v1/calendars lists them")


class ApiKeys:
    """The resource `/v1/keys`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._store = edge.engine.store

    async def index(self, call: Call) -> Reply:
        """All keys, without the keys themselves."""
        self._check(call)
        return json_answer({"keys": [_document(key) for key in await self._store.keys()]})

    async def create(self, call: Call) -> Reply:
        """Create a key, and show it this once."""
        self._check(call)
        body_kind(call.headers)
        body = await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)
        new = decode(_keys, body, NewKey)
        check_name(new.name, "name")
        check_name(new.tenant, "tenant")
        key, stored = make_key(new.name, new.tenant, admin=new.admin, now=self._edge.engine.clock.now())
        await self._store.add_key(stored)
        await self._refresh()
        return json_answer(_document(stored) | {"key": key}, 201, [(b"cache-control", b"no-store")])

    async def revoke(self, call: Call) -> Reply:
        """Revoke a key."""
        self._check(call)
        name = call.text("name")
        if not await self._store.revoke_key(name):
            raise NotFound(f"there is no key named {name!r}: GET /v1/keys lists them")
        await self._refresh()
        return json_answer({"name": name, "revoked": True})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            "/v1/keys": {"GET": self.index, "POST": self.create},
            "/v1/keys/{name}": {"DELETE": self.revoke},
        }

    def _check(self, call: Call) -> None:
        query_of(call.scope)
        if not call.caller.admin:
            raise Refusal("forbidden", "this key may not manage keys: use an admin key (created with --admin)")

    async def _refresh(self) -> None:
        if self._edge.keys is not None:
            await self._edge.keys.refresh()


def _document(key: ApiKey) -> Document:
    return {
        "name": key.name,
        "tenant": key.tenant,
        "admin": key.admin,
        "created_at": format_instant(key.created),
    }


class Nodes:
    """The resource `/v1/nodes`. It is about all tenants, so it needs an admin key."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def index(self, call: Call) -> Reply:
        """The nodes that are alive or ended abruptly a moment ago, and the lanes without an owner."""
        query_of(call.scope)
        if not call.caller.admin:
            raise Refusal("forbidden", "this key may not list the nodes: use an admin key (created with --admin)")
        return json_answer(_fleet_document(await self._edge.engine.nodes()))

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/v1/nodes": {"GET": self.index}}


def _fleet_document(fleet: Fleet) -> Document:
    free = [_lane(lane) for lane in fleet.lanes if lane.node is None]
    return {"nodes": [_node(node, fleet) for node in fleet.nodes], "lanes": len(fleet.lanes), "free_lanes": free}


def _node(node: Node, fleet: Fleet) -> Document:
    report = node.report
    p50, p99, most = (us / 1_000 if report.released else None for us in (report.p50_us, report.p99_us, report.max_us))
    return {
        "id": node.id,
        "name": report.name,
        "state": "alive" if node.is_alive else "gone",
        "roles": list(report.roles),
        "channels": list(report.channels) if "deliver" in report.roles else [],
        "url": report.url or None,
        "version": report.version,
        "since": format_instant(node.since),
        "lease_until": format_instant(node.until),
        "owns": [_lane(lane) for lane in fleet.lanes if lane.node == node.id],
        "lateness": {"released": report.released, "p50_ms": p50, "p99_ms": p99, "max_ms": most},
        "clock_ahead_ms": report.ahead_us / 1_000,
    }


def _lane(lane: LaneState) -> Document:
    since = None if lane.since is None else format_instant(lane.since)
    return {"lane": lane.number, "since": since, "overdue_ms": lane.overdue_us / 1_000}


class Health:
    """The resources `/healthz`, `/readyz` and `/metrics`. They need no key and show nothing of any tenant."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def alive(self, call: Call) -> Reply:
        """Whether the process is alive: it answers."""
        query_of(call.scope)
        return json_answer({"status": "ok", "version": self._edge.version})

    async def ready(self, call: Call) -> Reply:
        """Whether this process accepts changes now."""
        query_of(call.scope)
        ready, detail = self._edge.engine.readiness()
        if not ready or self._edge.stopping.is_set():
            headers = {"retry-after": str(RETRY_AFTER_S)}
            raise Refusal("unavailable", "stopping" if ready else detail, headers=headers)
        if problems := self._edge.engine.problems():
            headers = {"retry-after": str(RETRY_AFTER_S)}
            reasons = dict.fromkeys(kafka_text(problem).removeprefix(NO_ANSWER) for problem in problems)
            text = f"changes are accepted, but Kafka is unavailable: {'; '.join(reasons)}"
            raise Refusal("unavailable", text, headers=headers)
        notices = await self._notices()
        return json_answer({"status": "ready", "detail": detail, **({"notices": notices} if notices else {})})

    async def _notices(self) -> list[str]:
        """Problems that an operator must fix, although this process works."""
        try:
            return await self._edge.services.notices()
        except StoreError:
            return []  # they are shown again once the store answers

    async def metrics(self, call: Call) -> Reply:
        """The metrics in the text format of Prometheus."""
        query_of(call.scope)
        if self._edge.metrics is None:
            raise Refusal("not_found", "this server was started without metrics")
        rendered = self._edge.metrics()
        body = await rendered if inspect.isawaitable(rendered) else rendered
        return Answer(body, media_type=METRICS_TYPE)

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            "/healthz": {"GET": self.alive},
            "/readyz": {"GET": self.ready},
            "/metrics": {"GET": self.metrics},
        }


class Docs:
    """The resources `/openapi.json` and `/docs`, and the redirect from `/`."""

    def __init__(self, edge: Edge) -> None:
        self._openapi = encode(describe(edge.version)) + b"\n"

    async def home(self, call: Call) -> Reply:
        """Redirect to the documentation."""
        query_of(call.scope)
        return Answer(b"see /docs\n", 307, [(b"location", b"/docs")], b"text/plain; charset=utf-8")

    async def openapi(self, call: Call) -> Reply:
        """The description in OpenAPI 3.1."""
        query_of(call.scope)
        return Answer(self._openapi)

    async def page(self, call: Call) -> Reply:
        """The page to try the API."""
        query_of(call.scope)
        headers = [(b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff")]
        return Answer(_page(), 200, headers, b"text/html; charset=utf-8")

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/openapi.json": {"GET": self.openapi}, "/docs": {"GET": self.page}, "/": {"GET": self.home}}


@cache
def _page() -> bytes:
    return files("tidings.edges.http").joinpath("docs.html").read_bytes()

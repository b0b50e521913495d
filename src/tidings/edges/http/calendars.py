"""What recurring schedules depend on: a tenant's calendars, and the rules of zones."""

import asyncio

import msgspec

from tidings.domain.errors import Invalid, NotFound
from tidings.domain.names import check_name
from tidings.domain.recurrence import timezone
from tidings.domain.recurrence.ics_calendar import TEXT_CHARS_MAX, parse_calendar
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.when import DAY_US
from tidings.edges.http.inputs import body_kind, decode, query_of, read_body, whole_number
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routes import Call, Edge, Handler, Reply, json_answer
from tidings.shapes.admin import NewCalendar
from tidings.wires.answers import Document, calendar_document, moved_document

BODY_BYTES_MAX = TEXT_CHARS_MAX + 64 * 1024
MOVED_DEFAULT = 100
NO_DAYS = "it names no day, so that nothing is excluded by it: send days if that was not meant"


_decoder = msgspec.json.Decoder(NewCalendar)


class Calendars:
    """The resource `/v1/calendars`."""

    def __init__(self, edge: Edge) -> None:
        self._engine = edge.engine

    async def index(self, call: Call) -> Reply:
        """A tenant's calendars."""
        query_of(call.scope)
        found = await self._engine.store.calendars(call.caller.tenant)
        return json_answer({"calendars": [calendar_document(one, whole=False) for one in found]})

    async def show(self, call: Call) -> Reply:
        """One with its dates."""
        query_of(call.scope)
        name = call.text("name")
        calendar = await self._engine.store.calendar(call.caller.tenant, name)
        if calendar is None:
            raise _unknown(name)
        return json_answer(calendar_document(calendar))

    async def put(self, call: Call) -> Reply:
        """Keep it, and apply it to what is pending by it."""
        query_of(call.scope)
        body_kind(call.headers)
        body = await read_body(call.headers, call.receive, BODY_BYTES_MAX)
        sent = decode(_decoder, body, NewCalendar)
        name = call.text("name")
        check_name(name, "name")
        today = self._engine.clock.now() // DAY_US
        days = await asyncio.to_thread(_days, sent, today)  # a long text takes a while, and others wait
        report = await self._engine.rule_changes.put_calendar(call.caller.tenant, name, days)
        document: Document = {"name": name, "days": len(days), "moved": report.moved}
        return json_answer(document if days else document | {"note": NO_DAYS})

    async def drop(self, call: Call) -> Reply:
        """Forget it; what is pending by it goes on without."""
        query_of(call.scope)
        name = call.text("name")
        report = await self._engine.rule_changes.drop_calendar(call.caller.tenant, name)
        if report is None:
            raise _unknown(name)
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
        """The version in use, the zones that something pending follows, and what was moved lately."""
        limit = whole_number(query_of(call.scope, "limit"), "limit", MOVED_DEFAULT, 1, 1_000)
        kept = await self._engine.store.zones()
        moved = await self._engine.store.moved(call.caller.tenant, limit)
        used = [
            {"name": zone.name, "version": zone.version, "changed": zone.content != timezone.content_of(zone.name)}
            for zone in kept
        ]
        document = {"version": timezone.VERSION, "zones": used, "moved": [moved_document(one) for one in moved]}
        return json_answer(document)

    async def apply(self, call: Call) -> Reply:
        """Compute what is pending in zones whose rules have changed again."""
        query_of(call.scope)
        if not call.caller.admin:
            raise Refusal("forbidden", "this concerns every tenant: use a key made with --admin")
        begun = self._engine.clock.now()
        report = await self._engine.rule_changes.zones()
        document: Document = {"version": timezone.VERSION, "changed": list(report.zones), "moved": report.moved}
        return json_answer(document | {"movements": await self._since(call.caller.tenant, begun, report.moved)})

    async def _since(self, tenant: str, begun: int, count: int) -> list[Document]:
        """What of a tenant's was moved from a moment on, the latest first, each with its zone."""
        if not count:
            return []
        moved = await self._engine.store.moved(tenant, min(count, MOVED_DEFAULT))
        lines = []
        for one in moved:
            if one.at >= begun and one.cause.startswith("tzdata"):
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


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no calendar named {name!r}: GET /v1/calendars lists them")

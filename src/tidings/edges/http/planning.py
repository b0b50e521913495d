"""Looking ahead: the moments of a `when` before it is stored, and what is pending by time."""

import contextlib

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.iso8601 import format_instant
from tidings.domain.recurrence.preview import local_text, preview
from tidings.domain.recurrence.resolve import instants_of
from tidings.domain.recurrence.written import parse_moment
from tidings.domain.recurrence.zones import zone_named
from tidings.domain.request import Request
from tidings.domain.when import (
    DAY_US,
    SECOND_US,
    Cron,
    Local,
    Rule,
    When,
    first_index_at_or_after,
    occurrence,
)
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import (
    SMALL_BODY_BYTES_MAX,
    body_kind,
    decode,
    moment,
    one_of,
    query_of,
    read_body,
    window,
)
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.intake.timing import passed_note
from tidings.shapes.fields import names_of
from tidings.shapes.schedule import NewSchedule, Preview
from tidings.wires.answers import Document, moment_document
from tidings.wires.document import TIMING, timing_of

NOT_WHEN = "does not say when: a preview takes only what does, and `after` and `count`; leave it out here"
STEPS_DEFAULT = 60
STEPS_MAX = 10_000
WIDTHS_US = {"second": SECOND_US, "minute": 60 * SECOND_US, "hour": 3_600 * SECOND_US, "day": DAY_US}


_decoder = msgspec.json.Decoder(Preview)
_TIMING = tuple(name for name in TIMING if name != "count")  # that of a preview is how many moments it shows


class Planning:
    """The resources `/v1/preview` and `/v1/forecast`."""

    def __init__(self, edge: Edge) -> None:
        self._engine = edge.engine

    async def preview(self, call: Call) -> Reply:
        """The next moments; nothing is stored."""
        query_of(call.scope)
        body_kind(call.headers)
        body = await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)
        sent = _sent(body)
        if sent.at is not None and sent.scheduled_at is not None:
            raise Invalid("scheduled_at", "is another name of 'at': give one of the two")
        now = self._engine.clock.now()
        at = sent.at if sent.scheduled_at is None else sent.scheduled_at
        timing = timing_of(sent, _TIMING)
        request = Request("preview", at=at, every=sent.every, timing=timing)
        add = self._engine.admission.admit(call.caller.tenant, request, now)
        when = await self._engine.dated(call.caller.tenant, add.when)
        start = now if sent.after is None else _after(sent.after, when, now) + 1  # strictly after that moment
        return json_answer(_moments(when, start, sent.count, sent.zone) | self._passed(when, now, add.note))

    async def forecast(self, call: Call) -> Reply:
        """How many fall due in each step of time."""
        query = query_of(call.scope, "by", "from", "to")
        by = query.setdefault("by", "minute")
        width_us = one_of(query, "by", WIDTHS_US) or 0
        now = self._engine.clock.now()
        start, end = window(query, now)
        start = (now if start is None else start) // width_us * width_us
        end = start + STEPS_DEFAULT * width_us if end is None else -(-end // width_us) * width_us
        if end <= start:
            raise Invalid("to", "must lie after 'from', which is now if it is left out: move one")
        if end - start > STEPS_MAX * width_us:
            raise Invalid("to", f"lies more than {STEPS_MAX} steps behind 'from': move it, or take a coarser 'by'")
        steps, cut = await self._engine.store.forecast(call.caller.tenant, start, end, width_us)
        document: Document = {"by": by, "from": format_instant(start), "to": format_instant(end)}
        document["steps"] = [{"at": format_instant(at), "pending": pending} for at, pending in steps]
        return json_answer(document | {"complete": not cut})

    def _passed(self, when: When, now: int, told: str | None) -> Document:
        """How many moments lie before now, and what would become of them if it were scheduled."""
        passed, note = passed_note(when, now, self._engine.settings.limits)
        note = told or note
        return ({"passed": passed} if passed else {}) | ({} if note is None else {"note": note})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/v1/preview": {"POST": self.preview}, "/v1/forecast": {"GET": self.forecast}}


def _sent(body: bytes) -> Preview:
    """What was sent; of a schedule's other fields it says why they are not taken here."""
    try:
        return decode(_decoder, body, Preview)
    except Invalid as invalid:
        if invalid.field in names_of(NewSchedule) and invalid.field not in names_of(Preview):
            raise Invalid(invalid.field, NOT_WHEN) from None
        raise


def _after(text: str, when: When, now: int) -> int:
    """A moment, or a local time or date by the clocks that the rule follows."""
    with contextlib.suppress(Invalid):
        return moment({"after": text}, "after", now) or 0
    zone = zone_named(when.zone if isinstance(when, Local | Rule | Cron) else "UTC")
    return instants_of(zone, parse_moment(text, "after"), "forward", "first")[0] * SECOND_US


def _moments(when: When, start: int, count: int, zone: str | None) -> Document:
    """The moments from `start` on; a single one that has passed is due now. An interval's zone is only shown."""
    if isinstance(when, Local | Rule | Cron):
        return _walls(when, start, count)
    first = first_index_at_or_after(when, start)
    moments: list[Document] = []
    more = False
    if first is not None:
        for n in range(first, first + count + 1):
            at = occurrence(when, n)
            if at is None:
                break
            more = len(moments) == count
            if not more:
                local = {} if zone is None else {"due_at_local": local_text(zone, at)}
                moments.append({"occurrence": n, "due_at": format_instant(at), **local})
    return {"moments": moments, "more": more}


def _walls(when: Local | Rule | Cron, start: int, count: int) -> Document:
    """The same with what clocks show, and what changes of them did."""
    lines = preview(when, start - 1, count)
    numbers = [line.number for line in lines if line.number is not None]
    more = len(numbers) == count and occurrence(when, numbers[-1] + 1) is not None
    return {"moments": [moment_document(line) for line in lines], "more": more}

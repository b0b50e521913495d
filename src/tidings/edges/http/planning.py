"""Looking ahead: the moments of a `when` before it is stored, and what is pending by time."""

from typing import Annotated

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.iso8601 import format_instant
from tidings.domain.request import Request
from tidings.domain.when import DAY_US, SECOND_US, When, first_index_at_or_after, last_index_at_or_before, occurrence
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import (
    SMALL_BODY_BYTES_MAX,
    body_kind,
    decode,
    one_of,
    query_of,
    read_body,
    window,
)
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.wires.answers import Document

STEPS_DEFAULT = 60
STEPS_MAX = 10_000
WIDTHS_US = {"second": SECOND_US, "minute": 60 * SECOND_US, "hour": 3_600 * SECOND_US, "day": DAY_US}


class Preview(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `when` to look at, and how many of its moments."""

    at: str | None = None
    scheduled_at: str | None = None
    every: str | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10


_decoder = msgspec.json.Decoder(Preview)


class Planning:
    """The resources `/v1/preview` and `/v1/forecast`."""

    def __init__(self, edge: Edge) -> None:
        self._engine = edge.engine

    async def preview(self, call: Call) -> Reply:
        """The next moments; nothing is stored."""
        query_of(call.scope)
        body_kind(call.headers)
        body = await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)
        sent = decode(_decoder, body, Preview.__struct_fields__)
        if sent.at is not None and sent.scheduled_at is not None:
            raise Invalid("scheduled_at", "is another name of 'at': give one of the two")
        now = self._engine.clock.now()
        at = sent.at if sent.scheduled_at is None else sent.scheduled_at
        request = Request("preview", at=at, every=sent.every)
        when = self._engine.admission.admit(call.caller.tenant, request, now).when
        return json_answer(_moments(when, now, sent.count) | self._passed(when, now))

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

    def _passed(self, when: When, now: int) -> Document:
        """How many moments of an interval lie before now, and what each policy would do with them."""
        passed = last_index_at_or_before(when, now - 1)
        if not passed:
            return {}
        catches_up = passed <= self._engine.settings.limits.catch_up_max
        each = "fire_all each one" if catches_up else "fire_all is refused for so many (limits.catch_up_max)"
        what = f"{passed:,} occurrence{' has' if passed == 1 else 's have'} passed already"
        note = f"{what}; scheduled now, fire_latest (the default) would release the latest at once, {each}"
        return {"passed": passed, "note": f"{note}, skip those up to late_grace late"}

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/v1/preview": {"POST": self.preview}, "/v1/forecast": {"GET": self.forecast}}


def _moments(when: When, now: int, count: int) -> Document:
    """The moments from now on; a single one that has passed is due now."""
    first = first_index_at_or_after(when, now)
    moments: list[Document] = []
    more = False
    if first is not None:
        for n in range(first, first + count + 1):
            at = occurrence(when, n)
            if at is None:
                break
            more = len(moments) == count
            if not more:
                moments.append({"occurrence": n, "due_at": format_instant(at)})
    return {"moments": moments, "more": more}

"""Schedules: add, list, look at, replace, cancel, pause, resume, fire, explain."""

from collections.abc import Callable
from functools import partial
from typing import get_args

from tidings.domain.command import Cancel, Command, Fire, OutcomeWord, Pause, Replace, Resume, State
from tidings.domain.destination import split
from tidings.domain.errors import Invalid
from tidings.domain.schedule import MADE_ID, Query, Schedule
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import (
    SMALL_BODY_BYTES_MAX,
    body_kind,
    idempotency_key,
    one_of,
    query_of,
    read_body,
    receipt_for,
    whole_number,
    window,
    yes_or_no,
)
from tidings.edges.http.preconditions import Preconditions, etag_of, is_named
from tidings.edges.http.problems import Refusal, conflict
from tidings.edges.http.routing import Answer, Call, Handler, Reply, json_answer
from tidings.edges.http.showing import document_of
from tidings.edges.http.submissions import accept, added, explained, object_bytes_max
from tidings.intake.admission import check_new_id
from tidings.wires.answers import (
    Document,
    encode,
    event_document,
    outcome_document,
    schedule_document,
)
from tidings.wires.destinations import is_rejections
from tidings.wires.document import POLICIES

PAGE_ROWS_DEFAULT = 100
STATES: dict[str, State] = {word: word for word in get_args(State)}
CONTENT = ("value", "value_base64", "headers")  # left out of lists: a page of the largest ones would be 1 GiB


class Schedules:
    """The resource `/v1/schedules` and what lies below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._engine = edge.engine
        self._preconditions = Preconditions(edge)

    async def add(self, call: Call) -> Reply:
        """One, an array, or lines."""
        return await accept(self._edge, call)

    async def index(self, call: Call) -> Reply:
        """A page of those that fit."""
        query = query_of(call.scope, "topic", "state", "from", "to", "prefix", "label", "cursor", "limit")
        due_from, due_to = window(query, self._engine.clock.now())
        rows_max = self._engine.settings.limits.page_rows_max
        wanted = Query(
            query.get("topic"),
            one_of(query, "state", STATES),
            due_from,
            due_to,
            query.get("prefix"),
            _label(query.get("label")),
            query.get("cursor"),
            whole_number(query, "limit", min(PAGE_ROWS_DEFAULT, rows_max), 1, rows_max),
        )
        page = await self._engine.page(call.caller.tenant, wanted)
        rows = [row for row in page.schedules if wanted.topic is not None or not _tells_of_refusal(row)]
        return json_answer({"schedules": [_summary(row) for row in rows], "cursor": page.cursor})

    async def show(self, call: Call) -> Reply:
        """One as it stands."""
        query_of(call.scope)
        body = encode(await self._found(call))
        etag = etag_of(body)
        known = call.headers.get(b"if-none-match")
        if known is not None and is_named(known, etag, weakly=True):
            return Answer(b"", 304, [(b"etag", etag)])
        return Answer(body + b"\n", 200, [(b"etag", etag)])

    async def explain(self, call: Call) -> Reply:
        """What happened to it and when."""
        query_of(call.scope)
        document = await self._found(call)
        events = await self._engine.history(call.caller.tenant, call.text("id"))
        if document["state"] == "in_flight" and events and events[-1].event == "released":
            events = events[:-1]  # it left the timeline, and is not yet on Kafka
        return json_answer(document | {"history": [event_document(event) for event in events]})

    async def replace(self, call: Call) -> Reply:
        """Put it in place of whatever the id holds."""
        asked = query_of(call.scope, "reuse", "keep_count")
        reuse, keep_count = yes_or_no(asked, "reuse"), yes_or_no(asked, "keep_count")
        if body_kind(call.headers) != "json":
            raise Refusal("media_type", "send one schedule as 'Content-Type: application/json'")
        body = await read_body(call.headers, call.receive, object_bytes_max(self._edge))
        tenant, schedule_id = call.caller.tenant, call.text("id")
        request = self._edge.read(tenant, body, schedule_id=schedule_id)
        add = self._edge.admit(tenant, request, new=False)
        async with self._preconditions.hold(call, schedule_id):
            # Ids of our own form are for us to give out: one that is not there yet could be given out later.
            if MADE_ID.match(schedule_id) and await self._engine.find(tenant, schedule_id) is None:
                check_new_id(schedule_id)
            submitted = await self._engine.submit([Replace(add, reuse, keep_count)])
            outcome = self._engine.accepted(submitted)
        return added(await explained(self._edge, tenant, outcome))

    async def cancel(self, call: Call) -> Reply:
        """Nothing of it leaves any more."""
        return await self._change(call, Cancel, "cancelled")

    async def pause(self, call: Call) -> Reply:
        """Hold it."""
        return await self._change(call, Pause, "paused")

    async def resume(self, call: Call) -> Reply:
        """Let it go on."""
        missed = one_of(query_of(call.scope, "missed"), "missed", POLICIES)
        if (await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)).strip() not in {b"", b"{}"}:
            raise Invalid("body", "nothing is read from it here: leave it out, and say ?missed=skip in the path")
        resume = partial(Resume, missed=missed)
        return await self._submit(call, resume, "resumed", "unchanged")

    async def fire(self, call: Call) -> Reply:
        """Release it now."""
        return await self._change(call, Fire, "fired")

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method; longer paths first, for an id may hold slashes."""
        one = "/v1/schedules/{id}"
        return {
            f"{one}/explain": {"GET": self.explain},
            f"{one}/pause": {"POST": self.pause},
            f"{one}/resume": {"POST": self.resume},
            f"{one}/fire": {"POST": self.fire},
            one: {"GET": self.show, "PUT": self.replace, "DELETE": self.cancel},
        }

    async def _change(self, call: Call, command: Callable[[str, str], Command], *done: OutcomeWord) -> Answer:
        query_of(call.scope)
        return await self._submit(call, command, *done)

    async def _submit(self, call: Call, command: Callable[[str, str], Command], *done: OutcomeWord) -> Answer:
        tenant, schedule_id = call.caller.tenant, call.text("id")
        key = idempotency_key(call.headers) if call.scope["method"] == "POST" else None
        receipt = receipt_for(tenant, key, call.scope["path"].encode(), call.scope["query_string"])
        async with self._preconditions.hold(call, schedule_id):
            outcome = self._engine.accepted(await self._engine.submit([command(tenant, schedule_id)], receipt))
        if outcome.outcome not in done:
            raise conflict(outcome_document(await explained(self._edge, tenant, outcome)))
        return json_answer(outcome_document(outcome))

    async def _found(self, call: Call) -> Document:
        schedule_id = call.text("id")
        found = await self._engine.find(call.caller.tenant, schedule_id)
        if found is None:
            raise conflict(outcome_document(self._engine.unknown(schedule_id)))
        return await document_of(self._engine, call.caller.tenant, found)


def _tells_of_refusal(schedule: Schedule) -> bool:
    """Whether it is the record that tells of a refusal on Kafka, which nobody scheduled."""
    bus, topic = split(schedule.topic)
    is_ours = bus == "kafka" and is_rejections(topic) and MADE_ID.match(schedule.id) is not None
    return is_ours and schedule.state not in {"pending", "paused"}


def _summary(schedule: Schedule) -> Document:
    document = schedule_document(schedule)
    for name in CONTENT:
        document.pop(name, None)
    return document


def _label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    for separator in "=:":
        name, found, value = text.partition(separator)
        if found and name:
            return name, value
    raise Invalid("label", "write name=value, for example label=campaign=autumn")

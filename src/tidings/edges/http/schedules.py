"""Schedules: add one or many, list, show, change; ETags and preconditions; previews and forecasts."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import Any, get_args
from urllib.parse import quote
from weakref import WeakValueDictionary

import msgspec

from tidings.domain.changes import replacement_refused
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.local_time import instants_of
from tidings.domain.recurrence.preview import local_text, preview
from tidings.domain.recurrence.rrule import parse_moment
from tidings.domain.recurrence.timezone import zone_named
from tidings.domain.schedules.command import (
    FINISHED,
    Add,
    Cancel,
    Command,
    Fire,
    Outcome,
    OutcomeWord,
    Pause,
    Replace,
    Resume,
    State,
)
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.reschedule import at_time_of, calendar_of, check_new_time, is_same
from tidings.domain.schedules.schedule import MADE_ID, Query, Request, Schedule, split
from tidings.domain.schedules.when import (
    DAY_US,
    SECOND_US,
    Cron,
    Local,
    Rule,
    When,
    first_index_at_or_after,
    is_once,
    occurrence,
)
from tidings.edges.http.inputs import (
    NDJSON_TYPE,
    SMALL_BODY_BYTES_MAX,
    accepts_ndjson,
    body_kind,
    decode,
    derived_id,
    idempotency_for,
    idempotency_key,
    moment,
    one_of,
    query_of,
    read_body,
    refuse_body,
    too_large,
    whole_number,
    window,
    yes_or_no,
)
from tidings.edges.http.ndjson import BATCH_LINES, Batch, OutcomeStream
from tidings.edges.http.problems import Refusal, conflict
from tidings.edges.http.routes import Answer, Call, Edge, Handler, Reply, json_answer
from tidings.engine import Engine
from tidings.intake.admission import check_new_id
from tidings.intake.schedule_time import at_instant, passed_note
from tidings.shapes.fields import names_of
from tidings.shapes.refusal import refusal, unknown_field
from tidings.shapes.schedule import NewSchedule, Preview
from tidings.shapes.schedule import When as WhenShape
from tidings.wires.answers import (
    Document,
    encode,
    event_document,
    moment_document,
    outcome_document,
    schedule_document,
)
from tidings.wires.document import POLICIES, TIMING, read, timing_of
from tidings.wires.wire import is_rejections

ETAG_BYTES = 12

ARRAY_BYTES_MAX = 16 * 1024 * 1024

_ARRAY = ord("[")
_AS_LINES = f"send less, or many as lines of {NDJSON_TYPE}"
_SPACES = b" \t\r\n"
_items = msgspec.json.Decoder(list[msgspec.Raw])

PAGE_ROWS_DEFAULT = 100
STATES: dict[str, State] = {word: word for word in get_args(State)}
CONTENT = ("value", "value_base64", "headers")  # left out of lists: a page of the largest ones would be 1 GiB

NOT_WHEN = "does not affect when it is due: a preview has only the fields that do, `after` and `count`; leave it out"
STEPS_DEFAULT = 60
STEPS_MAX = 10_000
WIDTHS_US = {"second": SECOND_US, "minute": 60 * SECOND_US, "hour": 3_600 * SECOND_US, "day": DAY_US}

_decoder = msgspec.json.Decoder(Preview)
_changes = msgspec.json.Decoder(dict[str, Any])
_TIME = frozenset({*names_of(WhenShape), "count"})
_ALTERNATIVES = (frozenset({"value", "value_base64"}), frozenset({"key", "key_base64"}))
_TIMING = tuple(name for name in TIMING if name != "count")  # `count` of a preview is how many moments it shows


async def document_of(engine: Engine, tenant: str, found: Schedule) -> Document:
    """The document of one schedule, from which its ETag is computed too."""
    document = schedule_document(found)
    if found.state == "ended":
        events = await engine.history(tenant, found.id)
        reasons = [event.reason for event in events if event.event == "ended" and event.reason is not None]
        document |= {"reason": reasons[-1]} if reasons else {}
    calendar = None if found.when is None else calendar_of(found.when)
    if calendar is not None and await engine.store.calendar(tenant, calendar) is None:
        document["note"] = f"the calendar {calendar!r} was deleted: no days are excluded until it is stored again"
    return document


def etag_of(body: bytes) -> bytes:
    """The ETag of a document: it changes with the content, the state and the occurrence."""
    return b'"%s"' % blake2b(body, digest_size=ETAG_BYTES).hexdigest().encode()


def lists_etag(tags: bytes, etag: bytes, *, weakly: bool = False) -> bool:
    """Whether a list of ETags contains this one."""
    if tags.strip() == b"*":
        return True
    tags_sent = (tag.strip() for tag in tags.split(b","))
    return any(tag == etag or (weakly and tag == b"W/" + etag) for tag in tags_sent)


class Preconditions:
    """Checks If-Match and If-None-Match, and serializes changes of the same schedule or notification.

    `etag` finds its present ETag by tenant and id; None if it does not exist.
    """

    def __init__(self, etag: Callable[[str, str], Awaitable[bytes | None]]) -> None:
        self._etag = etag
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, call: Call, schedule_id: str) -> AsyncIterator[None]:
        """Within the block the preconditions hold, and no other request to this node changes it."""
        key = (call.caller.tenant, schedule_id)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            if_match, if_none_match = call.headers.get(b"if-match"), call.headers.get(b"if-none-match")
            if if_match is not None or if_none_match is not None:
                _check(if_match, if_none_match, await self._etag(*key))
            yield


def _check(if_match: bytes | None, if_none_match: bytes | None, etag: bytes | None) -> None:
    if if_match is not None and (etag is None or not lists_etag(if_match, etag)):
        detail = "it does not exist or has changed since the ETag in If-Match: GET it, and send its current ETag"
        raise Refusal("precondition_failed", detail)
    if if_none_match is not None and etag is not None and lists_etag(if_none_match, etag, weakly=True):
        detail = "it exists already: leave If-None-Match out to replace it"
        raise Refusal("precondition_failed", detail)


async def accept(edge: Edge, call: Call, topic: str | None = None) -> Reply:
    """Accept one document, an array or lines. With a topic from the path, they are published now."""
    query_of(call.scope)
    kind, key = body_kind(call.headers), idempotency_key(call.headers)
    if kind == "ndjson":
        return OutcomeStream(edge, call, topic)
    body = await read_body(call.headers, call.receive, ARRAY_BYTES_MAX, _AS_LINES)
    if body[:1] == b"{":
        return await _accept_one(edge, call, body, topic, key)
    start = body.lstrip(_SPACES)
    if start and start[0] == _ARRAY:
        batches = _array_batches(_read_items(body), edge.engine.settings.limits.line_bytes_max)
        return OutcomeStream(edge, call, topic, batches, as_lines=accepts_ndjson(call.headers))
    return await _accept_one(edge, call, body, topic, key)


async def _accept_one(edge: Edge, call: Call, body: bytes, topic: str | None, key: str | None) -> Answer:
    bytes_max = object_bytes_max(edge)
    if len(body) > bytes_max:
        raise too_large(bytes_max)
    engine, tenant = edge.engine, call.caller.tenant
    command = _command(edge, tenant, body, topic, None if key is None else derived_id(key))
    idempotency = None if key is None else idempotency_for(tenant, key, call.scope["path"].encode(), body)
    [outcome] = await engine.submit([command], idempotency)
    if outcome.field is not None:
        raise outcome.invalid()
    return added(await with_reason(edge, tenant, outcome))


def _command(edge: Edge, tenant: str, body: bytes, topic: str | None, default_id: str | None) -> Add:
    """The command for the document of a new schedule; a refusal is published as a fact."""
    now = edge.engine.clock.now()
    try:
        request = read(body, topic)
        if request.id is not None:
            check_new_id(request.id)
        elif default_id is not None:
            request = msgspec.structs.replace(request, id=default_id)
        return edge.engine.admission.admit(tenant, request, now)
    except Invalid as invalid:
        edge.publish_refusal(tenant, invalid, now)
        raise


def _replacement(edge: Edge, tenant: str, body: bytes, schedule_id: str, *, as_instant: bool = False) -> Add:
    """The same for a document that adds or replaces the schedule with this id.

    Sent again, it is unchanged, even with a duration in `at`; with `as_instant` a duration is a new time whenever it is
    sent.
    """
    now = edge.engine.clock.now()
    try:
        request = read(body, schedule_id=schedule_id)
        return edge.engine.admission.admit(tenant, at_instant(request, now) if as_instant else request, now)
    except Invalid as invalid:
        edge.publish_refusal(tenant, invalid, now)
        raise


def object_bytes_max(edge: Edge) -> int:
    """The largest document, which may be twice a line: escapes and base64 make a value longer."""
    return 2 * edge.engine.settings.limits.line_bytes_max


async def with_reason(edge: Edge, tenant: str, outcome: Outcome) -> Outcome:
    """The outcome; one that is in flight has the reason why it is held, if it is."""
    if outcome.outcome != "in_flight":
        return outcome
    found = await edge.engine.find(tenant, outcome.id)
    return outcome if found is None else msgspec.structs.replace(outcome, reason=found.reason)


def added(outcome: Outcome) -> Answer:
    """The answer to a request for a new schedule."""
    word = outcome.outcome
    if word in {"scheduled", "released"}:
        headers = [(b"location", location(outcome.id))]
        return json_answer(outcome_document(outcome), 201, headers)
    if word in {"unchanged", "replaced"}:
        return json_answer(outcome_document(outcome))
    raise conflict(outcome_document(outcome))


def location(schedule_id: str) -> bytes:
    """The path of a schedule."""
    return f"/v1/schedules/{quote(schedule_id, safe='')}".encode("ascii")


def _read_items(body: bytes) -> list[msgspec.Raw]:
    try:
        return _items.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error, NewSchedule) from None


async def _array_batches(items: list[msgspec.Raw], bytes_max: int) -> AsyncGenerator[Batch, None]:
    """The items of an array in batches, numbered from 1 like lines."""
    for start in range(0, len(items), BATCH_LINES):
        part = (bytes(item) for item in items[start : start + BATCH_LINES])
        yield Batch(start + 1, [item if len(item) <= bytes_max else None for item in part])


class Schedules:
    """The resource `/v1/schedules` and the paths below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._engine = edge.engine
        self._preconditions = Preconditions(self._etag)

    async def add(self, call: Call) -> Reply:
        """Add one schedule, an array, or lines."""
        return await accept(self._edge, call)

    async def index(self, call: Call) -> Reply:
        """A page of the schedules that match."""
        query = query_of(call.scope, "topic", "state", "from", "to", "prefix", "label", "cursor", "limit")
        due_from, due_to = window(query, self._engine.clock.now())
        rows_max = self._engine.settings.limits.page_rows_max
        search = Query(
            topic=query.get("topic"),
            state=one_of(query, "state", STATES),
            due_from=due_from,
            due_to=due_to,
            prefix=query.get("prefix"),
            label=_label(query.get("label")),
            after=query.get("cursor"),
            limit=whole_number(query, "limit", min(PAGE_ROWS_DEFAULT, rows_max), 1, rows_max),
        )
        page = await self._engine.page(call.caller.tenant, search)
        rows = [row for row in page.schedules if search.topic is not None or not _is_rejection(row)]
        return json_answer({"schedules": [_summary(row) for row in rows], "cursor": page.cursor})

    async def show(self, call: Call) -> Reply:
        """One schedule and its state."""
        query_of(call.scope)
        body = encode(await self._found(call))
        etag = etag_of(body)
        known = call.headers.get(b"if-none-match")
        if known is not None and lists_etag(known, etag, weakly=True):
            return Answer(b"", 304, [(b"etag", etag)])
        return Answer(body + b"\n", 200, [(b"etag", etag)])

    async def explain(self, call: Call) -> Reply:
        """One schedule with its history."""
        query_of(call.scope)
        document = await self._found(call)
        events = await self._engine.history(call.caller.tenant, call.text("id"))
        if document["state"] == "in_flight" and events and events[-1].event == "released":
            events = events[:-1]  # it left the timeline, and is not yet on Kafka
        return json_answer(document | {"history": [event_document(event) for event in events]})

    async def replace(self, call: Call) -> Reply:
        """Add a schedule, or replace the one with this id."""
        asked = query_of(call.scope, "reuse", "keep_count")
        reuse, keep_count = yes_or_no(asked, "reuse"), yes_or_no(asked, "keep_count")
        if body_kind(call.headers) != "json":
            raise Refusal("media_type", "send one schedule as 'Content-Type: application/json'")
        body = await read_body(call.headers, call.receive, object_bytes_max(self._edge))
        tenant, schedule_id = call.caller.tenant, call.text("id")
        add = _replacement(self._edge, tenant, body, schedule_id)
        async with self._preconditions.hold(call, schedule_id):
            # Ids of the generated form are reserved: one that does not exist yet could be generated later.
            if MADE_ID.match(schedule_id) and await self._engine.find(tenant, schedule_id) is None:
                check_new_id(schedule_id)
            submitted = await self._engine.submit([Replace(add, reuse, keep_count)])
            outcome = self._engine.accepted(submitted)
        return added(await with_reason(self._edge, tenant, outcome))

    async def patch(self, call: Call) -> Reply:
        """Change only the given fields of a pending schedule."""
        query_of(call.scope)
        if body_kind(call.headers) != "json":
            raise Refusal("media_type", "send the fields that change as 'Content-Type: application/json'")
        body = await read_body(call.headers, call.receive, object_bytes_max(self._edge))
        changes = decode(_changes, body, NewSchedule)
        check_new_time(changes, _TIME)
        tenant, schedule_id = call.caller.tenant, call.text("id")
        async with self._preconditions.hold(call, schedule_id):
            found = await self._engine.find(tenant, schedule_id)
            if found is None:
                raise conflict(outcome_document(self._engine.unknown(schedule_id)))
            if (owned := replacement_refused(found)) is not None:
                raise conflict(outcome_document(owned))
            add = _replacement(self._edge, tenant, _patched(found, changes), schedule_id, as_instant=True)
            keep_count = False
            if found.when is not None and not changes.keys() & _TIME:
                add = at_time_of(add, found, new_jitter="jitter" in changes)
                keep_count = not is_once(found.when)
            if found.state not in FINISHED and is_same(add, found):
                return added(Outcome(schedule_id, "unchanged", found.due, found.state))
            submitted = await self._engine.submit([Replace(add, keep_count=keep_count)])
            outcome = self._engine.accepted(submitted)
        return added(await with_reason(self._edge, tenant, outcome))

    async def cancel(self, call: Call) -> Reply:
        """Cancel it: nothing more is released."""
        return await self._change(call, Cancel, "cancelled")

    async def pause(self, call: Call) -> Reply:
        """Pause it."""
        await refuse_body(call.headers, call.receive)
        return await self._change(call, Pause, "paused")

    async def resume(self, call: Call) -> Reply:
        """Resume it."""
        missed = one_of(query_of(call.scope, "missed"), "missed", POLICIES)
        await refuse_body(call.headers, call.receive, "leave it out, and give ?missed=skip in the URL")
        resume = partial(Resume, missed=missed)
        return await self._submit(call, resume, "resumed", "unchanged")

    async def fire(self, call: Call) -> Reply:
        """Release it now."""
        await refuse_body(call.headers, call.receive)
        return await self._change(call, Fire, "fired")

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method; longer paths first, because an id may contain slashes."""
        one = "/v1/schedules/{id}"
        return {
            f"{one}/explain": {"GET": self.explain},
            f"{one}/pause": {"POST": self.pause},
            f"{one}/resume": {"POST": self.resume},
            f"{one}/fire": {"POST": self.fire},
            one: {"GET": self.show, "PUT": self.replace, "PATCH": self.patch, "DELETE": self.cancel},
        }

    async def _change(self, call: Call, command: Callable[[str, str], Command], *done: OutcomeWord) -> Answer:
        query_of(call.scope)
        return await self._submit(call, command, *done)

    async def _submit(self, call: Call, command: Callable[[str, str], Command], *done: OutcomeWord) -> Answer:
        tenant, schedule_id = call.caller.tenant, call.text("id")
        key = idempotency_key(call.headers) if call.scope["method"] == "POST" else None
        idempotency = idempotency_for(tenant, key, call.scope["path"].encode(), call.scope["query_string"])
        async with self._preconditions.hold(call, schedule_id):
            outcome = self._engine.accepted(await self._engine.submit([command(tenant, schedule_id)], idempotency))
        if outcome.outcome not in done:
            raise conflict(outcome_document(await with_reason(self._edge, tenant, outcome)))
        return json_answer(outcome_document(outcome))

    async def _etag(self, tenant: str, schedule_id: str) -> bytes | None:
        found = await self._engine.find(tenant, schedule_id)
        return None if found is None else etag_of(encode(await document_of(self._engine, tenant, found)))

    async def _found(self, call: Call) -> Document:
        schedule_id = call.text("id")
        found = await self._engine.find(call.caller.tenant, schedule_id)
        if found is None:
            raise conflict(outcome_document(self._engine.unknown(schedule_id)))
        return await document_of(self._engine, call.caller.tenant, found)


def _patched(schedule: Schedule, changes: dict[str, Any]) -> bytes:
    """The document of a schedule with the changes; null removes a field. Its time is in it only if it changes."""
    for name in changes.keys() - set(names_of(NewSchedule)):
        raise unknown_field(name, names_of(NewSchedule))
    known = {
        name: value
        for name, value in schedule_document(schedule).items()
        if name in names_of(NewSchedule) and name not in _TIME
    }
    for group in _ALTERNATIVES:
        if changes.keys() & group:
            known = {name: value for name, value in known.items() if name not in group}
    return encode({name: value for name, value in (known | changes).items() if value is not None or name == "value"})


def _is_rejection(schedule: Schedule) -> bool:
    """Whether it is the record of a rejected Kafka request, which Tidings itself scheduled."""
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


class Previews:
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
            raise Invalid("scheduled_at", "is another name for 'at': give only one of them")
        now = self._engine.clock.now()
        at = sent.at if sent.scheduled_at is None else sent.scheduled_at
        timing = timing_of(sent, _TIMING)
        request = Request("preview", at=at, every=sent.every, timing=timing)
        add = self._engine.admission.admit(call.caller.tenant, request, now)
        add.check_past()
        when = await self._engine.dated(call.caller.tenant, add.when)
        start = now if sent.after is None else _after(sent.after, when, now) + 1  # strictly after that moment
        return json_answer(_moments(when, start, sent.count, sent.zone) | self._passed(when, now, add.note))

    async def forecast(self, call: Call) -> Reply:
        """How many schedules are due in each step of time."""
        query = query_of(call.scope, "by", "from", "to")
        by = query.setdefault("by", "minute")
        width_us = one_of(query, "by", WIDTHS_US) or 0
        now = self._engine.clock.now()
        start, end = window(query, now)
        start = (now if start is None else start) // width_us * width_us
        end = start + STEPS_DEFAULT * width_us if end is None else -(-end // width_us) * width_us
        if end <= start:
            raise Invalid("to", "must be after 'from', which is now if it is left out: change one")
        if end - start > STEPS_MAX * width_us:
            raise Invalid("to", f"is more than {STEPS_MAX} steps after 'from': change it, or use a coarser 'by'")
        steps, cut = await self._engine.store.forecast(call.caller.tenant, start, end, width_us)
        document: Document = {"by": by, "from": format_instant(start), "to": format_instant(end)}
        document["steps"] = [{"at": format_instant(at), "pending": pending} for at, pending in steps]
        return json_answer(document | {"complete": not cut})

    def _passed(self, when: When, now: int, given: str | None) -> Document:
        """How many moments of an interval are past, and what each lateness policy would do with them."""
        passed, note = passed_note(when, now, self._engine.settings.limits)
        note = given or note
        return ({"passed": passed} if passed else {}) | ({} if note is None else {"note": note})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/v1/preview": {"POST": self.preview}, "/v1/forecast": {"GET": self.forecast}}


def _sent(body: bytes) -> Preview:
    """Decode a preview; the other fields of a schedule are refused with the reason."""
    try:
        return decode(_decoder, body, Preview)
    except Invalid as invalid:
        if invalid.field in names_of(NewSchedule) and invalid.field not in names_of(Preview):
            raise Invalid(invalid.field, NOT_WHEN) from None
        raise


def _after(text: str, when: When, now: int) -> int:
    """An instant, or a local time or date in the time zone of the rule."""
    with contextlib.suppress(Invalid):
        return moment({"after": text}, "after", now) or 0
    zone = zone_named(when.zone if isinstance(when, Local | Rule | Cron) else "UTC")
    return instants_of(zone, parse_moment(text, "after"), "forward", "first")[0] * SECOND_US


def _moments(when: When, start: int, count: int, zone: str | None) -> Document:
    """The moments from an instant on; a single one that is past is due now. An interval's zone is only for display."""
    if isinstance(when, Local | Rule | Cron):
        return _local_moments(when, start, count)
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


def _local_moments(when: Local | Rule | Cron, start: int, count: int) -> Document:
    """The same with the local time of each moment, and the effect of DST changes."""
    lines = preview(when, start - 1, count)
    numbers = [line.number for line in lines if line.number is not None]
    more = len(numbers) == count and occurrence(when, numbers[-1] + 1) is not None
    return {"moments": [moment_document(line) for line in lines], "more": more}

"""Reads of the timeline: lists, forecasts, counts and histories."""

from collections.abc import Iterator

import apsw

from tidings.domain.changes import history as history_of
from tidings.domain.names import BUSES
from tidings.domain.schedules.command import FINISHED
from tidings.domain.schedules.schedule import (
    Event,
    Key,
    ListPosition,
    Page,
    Query,
    Schedule,
    decode_cursor,
    encode_cursor,
    join,
)
from tidings.timeline.sqlite import id_lookup
from tidings.timeline.sqlite.database import queries
from tidings.timeline.sqlite.pending import packed_reads
from tidings.timeline.sqlite.pending.packed_rows import DAY_LAST, DAY_US, QUARTER_US, place_of
from tidings.timeline.sqlite.writer import Writer

DAYS_PER_PAGE_MAX = 31
STEPS_MAX = 10_000
OVERDUE_ROWS_MAX = 1_000_000

_SQL = queries("pages")
_END = 1 << 61
_Row = tuple[Key, id_lookup.Found]


class Pages:
    """One page of a list: pending rows of all tables in order of (due, arrival), then finished ones backwards."""

    def __init__(self, connection: apsw.Connection, writer: Writer, tenant: str, query: Query, now: int) -> None:
        self._connection = connection
        self._writer = writer
        self._tenant = tenant
        self._query = query
        self._reach = _END
        cursor = None if query.after is None else decode_cursor(query.after)
        self._is_finished = cursor is not None and cursor.finished
        after = (-1, 0) if cursor is None or cursor.finished else (cursor.due, cursor.arrival)
        if query.due_from is not None and after < (query.due_from - 1, _END):
            after = (query.due_from - 1, _END)
        named = query.topic is not None
        self._topics = [writer.topics.get((tenant, join(bus, query.topic or "")), -1) for bus in BUSES] if named else []
        self._after = after
        self._until = _END if query.due_to is None else query.due_to
        self._values: dict[str, object] = {
            "tenant": tenant,
            "due": after[0],
            "arrival": after[1],
            "until": self._until,
            "from": 0 if query.due_from is None else query.due_from,
            "before": self._until,
            "before_arrival": -1,
            "topic": self._topics[0] if named else None,
            "kafka_topic": self._topics[1] if named else None,
            "prefix": query.prefix,
            "label": None if query.label is None else query.label[0],
            "label_value": None if query.label is None else query.label[1],
            "state": "released" if query.state == "in_flight" else query.state,
            "flying": {"in_flight": 1, "released": 0}.get(query.state or ""),
            "arrived": writer.arrived,
            "limit": query.limit + 1,
            "remembered": now - writer.options.id_retention_us,
        }
        if cursor is not None and cursor.finished and cursor.due < self._until:
            self._values |= {"before": cursor.due, "before_arrival": cursor.arrival}

    def page(self) -> Page:
        """The schedules after the cursor."""
        with self._connection:  # one snapshot, so that no row moves between tables meanwhile
            found = [(ListPosition(False, *key), row) for key, row in self._ahead()]
            if self._reach == _END and len(found) <= self._query.limit:
                found += [(ListPosition(True, *key), row) for key, row in self._behind()]
        page = found[: self._query.limit]
        schedules = tuple(id_lookup.present(self._writer, row) for _, row in page)
        if len(found) > len(page):
            return Page(schedules, encode_cursor(page[-1][0]))
        return Page(
            schedules, None if self._reach == _END else encode_cursor(ListPosition(False, self._reach - 1, _END))
        )

    def _ahead(self) -> list[_Row]:
        """The pending and paused rows of the days that were read."""
        state, found = self._query.state, list[_Row]()
        if self._is_finished:
            return found
        if state in {None, "pending"}:
            found += self._far()
            found += self._near()
        if state in {None, "paused"}:
            found += self._paused()
        return sorted((row for row in found if row[0][0] < self._reach), key=_key)

    def _behind(self) -> list[_Row]:
        """The rows that are finished, or in flight to Kafka."""
        state = self._query.state
        if state is None or state in FINISHED or state == "in_flight":
            return sorted(self._finished(), key=_key, reverse=True)
        return []

    def _near(self) -> Iterator[_Row]:
        for (tenant, *_), stream in list(self._writer.streams.items()):
            if tenant == self._tenant:
                yield from self._pending("near", {"stream": stream})

    def _far(self) -> Iterator[_Row]:
        """Rows that are due later, day by day from the cursor on, until the page is full or enough days were read."""
        taken, day = 0, min(max(0, self._after[0]) // DAY_US, DAY_LAST)
        for _ in range(DAYS_PER_PAGE_MAX):
            found = packed_reads.next_day(self._connection, day)
            if found is None or found * DAY_US >= self._until or taken > self._query.limit:
                return
            for row in self._day(found):
                taken += 1
                yield row
            day = found + 1
        self._reach = day * DAY_US

    def _day(self, day: int) -> Iterator[_Row]:
        first, end = packed_reads.day_places(day)
        yield from self._pending("far", {"first": first, "end": end})
        for found in packed_reads.page(self._connection, self._wanted(), first, end):
            yield (found.due, found.arrival), found

    def _wanted(self) -> packed_reads.Wanted:
        streams = [stream for (tenant, *_), stream in list(self._writer.streams.items()) if tenant == self._tenant]
        return packed_reads.Wanted(
            query=self._query, streams=streams, after=self._after, until=self._until, topics=self._topics
        )

    def _pending(self, table: id_lookup.Table, more: dict[str, object]) -> Iterator[_Row]:
        for row in self._connection.execute(_SQL[table], {**self._values, **more}).fetchall():
            found = id_lookup.plain(table, row[0], row[1], row[2:])
            key = (found.due, found.arrival)
            if found.n != 0:
                yield key, found
                continue
            for found_row in id_lookup.recurring(self._connection, found.arrival):
                yield key, found_row

    def _paused(self) -> Iterator[_Row]:
        for (arrival,) in self._connection.execute(_SQL["paused"], self._values).fetchall():
            for found in id_lookup.recurring(self._connection, arrival):
                yield (found.due, found.arrival), found

    def _finished(self) -> Iterator[_Row]:
        for table in ("finished", "finished_last"):
            for arrival, origin, *row in self._connection.execute(_SQL[table], self._values).fetchall():
                found = id_lookup.finished(arrival, origin, tuple(row))
                yield (found.due, arrival), found


def _key(row: _Row) -> Key:
    return row[0]


def forecast(
    connection: apsw.Connection, tenant: str, start: int, end: int, width_us: int
) -> tuple[list[tuple[int, int]], bool]:
    """Pending occurrences by step of time; cut short after `STEPS_MAX` steps."""
    values = {"tenant": tenant, "start": start, "end": end, "width": width_us}
    with connection:
        streams = [stream for (stream,) in connection.execute("SELECT stream FROM stream WHERE tenant = ?", (tenant,))]
        steps = packed_reads.forecast(connection, streams, start, end, width_us)
        for table in ("forecast_near", "forecast_far"):
            steps.update(dict(connection.execute(_SQL[table], values).fetchall()))
    shown = sorted(steps)[:STEPS_MAX]
    return [(step * width_us, steps[step]) for step in shown], len(steps) > STEPS_MAX


def overdue(connection: apsw.Connection, writer: Writer, now: int) -> int:
    """How many rows are due and not released; counted up to a limit."""
    total = 0
    sql = "SELECT count(*) FROM (SELECT 1 FROM near WHERE stream = ? AND due <= ? LIMIT ?)"
    for stream in list(writer.stream_names):
        total += int(connection.execute(sql, (stream, now, OVERDUE_ROWS_MAX)).get)
    sql = "SELECT count(*) FROM (SELECT 1 FROM far WHERE place < ? AND due <= ? LIMIT ?)"
    first = place_of(now // QUARTER_US + 1)
    total += int(
        connection.execute(sql, (first, now, OVERDUE_ROWS_MAX)).get
    )  # after an outage, overdue rows may still be in `far`
    total += packed_reads.overdue(connection, now, OVERDUE_ROWS_MAX)
    return min(total, OVERDUE_ROWS_MAX)


def first_overdue(connection: apsw.Connection, writer: Writer, now: int) -> int | None:
    """The due time of the first row that is due and not released."""
    dues = [
        connection.execute("SELECT min(due) FROM near WHERE stream = ? AND due <= ?", (stream, now)).get
        for stream in list(writer.stream_names)
    ]
    first = place_of(now // QUARTER_US + 1)
    dues.append(connection.execute("SELECT min(due) FROM far WHERE place < ? AND due <= ?", (first, now)).get)
    dues.append(packed_reads.first_overdue(connection, now))
    return min((due for due in dues if due is not None), default=None)


def history(connection: apsw.Connection, writer: Writer, schedule: Schedule, now: int) -> list[Event]:
    """What happened to a schedule, oldest first."""
    id_hash = writer.idmap.hash(schedule.tenant, schedule.id)
    rows = connection.execute(_SQL["history"], (id_hash, schedule.tenant, schedule.id))
    lines = [Event(*row) for row in rows]
    return history_of(schedule, lines, now - writer.options.id_retention_us)

"""What can be seen of the schedules: one, a page of them, and how many fall due when."""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from tidings.domain.changes import ahead
from tidings.domain.destination import split
from tidings.domain.schedule import Page, Query, Schedule
from tidings.timeline.memory.rows import Row
from tidings.timeline.paging import Place, decode_cursor, encode_cursor


def view(row: Row, now: int | None = None, *, in_flight: bool = False, held: str | None = None) -> Schedule:
    """The schedule as a reader sees it; of a finished one only what truthful answers need is kept."""
    add, kept = row.add, not row.is_finished
    coming = ahead(row.terms if row.state == "pending" else None, row.number, row.due, now)
    return Schedule(
        tenant=add.tenant,
        id=row.id,
        generation=row.generation,
        topic=add.topic,
        state="in_flight" if in_flight else row.state,
        due=coming.due,
        accepted=row.accepted,
        priority=add.priority,
        occurrence=coming.number,
        when=row.terms.when if kept else None,
        lateness=row.terms.lateness if kept else None,
        labels=add.labels,
        message=add.message if kept else None,
        finished=row.finished,
        reason=held if held is not None else row.reason,
        partition=row.partition,
        offset=None if row.partition is None else row.offset,
        tzdata=row.terms.tzdata if kept else None,
    )


def page(
    rows: Iterable[Row], query: Query, in_flight: Callable[[Row], bool], held: Callable[[Row], str | None]
) -> Page:
    """The rows that fit, in the order of lists, after the cursor."""
    found = sorted((row for row in rows if _fits(row, query, in_flight)), key=lambda row: _place(row).order())
    if query.after is not None:
        after = decode_cursor(query.after).order()
        found = [row for row in found if _place(row).order() > after]
    shown = found[: query.limit]
    cursor = encode_cursor(_place(shown[-1])) if len(found) > len(shown) else None
    return Page(tuple(view(row, in_flight=in_flight(row), held=held(row)) for row in shown), cursor)


def forecast(rows: Iterable[Row], start: int, end: int, width_us: int) -> list[tuple[int, int]]:
    """How many rows fall due from `start` to `end` (exclusive); steps begin at multiples of the width."""
    steps = Counter(row.due // width_us for row in rows if start <= row.due < end)
    return [(step * width_us, steps[step]) for step in sorted(steps)]


def _fits(row: Row, query: Query, in_flight: Callable[[Row], bool]) -> bool:
    return (
        (query.topic is None or split(row.add.topic)[1] == query.topic)
        and (query.state is None or ("in_flight" if in_flight(row) else row.state) == query.state)
        and (query.due_from is None or row.due >= query.due_from)
        and (query.due_to is None or row.due < query.due_to)
        and (query.prefix is None or row.id.startswith(query.prefix))
        and (query.label is None or _has_label(row, *query.label))
    )


def _has_label(row: Row, name: str, value: str) -> bool:
    if row.add.labels is None:
        return False
    labels = msgspec.json.decode(row.add.labels, type=dict[str, str])
    return labels.get(name) == value


def _place(row: Row) -> Place:
    return Place(row.is_finished, row.due, row.arrival)

"""Releasing standing schedules: the policy decides, the next occurrence follows from the anchor."""

from tidings.domain.lateness import MissedRange
from tidings.domain.schedule import Event
from tidings.domain.terms import Terms
from tidings.domain.when import is_once
from tidings.timeline.dating import ended_why
from tidings.timeline.sqlite import single
from tidings.timeline.sqlite.lookup import Found, standing
from tidings.timeline.sqlite.writer import PARTITIONS_MAX, Writer


class Recurring:
    """One batch of standing schedules, inside the release transaction."""

    def __init__(self, writer: Writer, now: int) -> None:
        self._writer = writer
        self._now = now
        self.lateness_us: list[int] = []
        self.topics: set[tuple[str, str]] = set()
        self.handed = 0
        self.missed: dict[str, int] = {}

    def release(self, arrival: int) -> None:
        """Release what is due of one schedule and put its next occurrence onto the timeline."""
        found = next(standing(self._writer.connection, arrival), None)
        assert found is not None, "a row on the timeline points to a schedule that is not there"
        assert found.terms is not None, "a standing schedule has its terms"
        terms = found.terms
        decision = terms.decide(found.n, self._now)
        for missed in decision.missed:
            count = missed.last - missed.first + 1
            self.missed[missed.reason] = self.missed.get(missed.reason, 0) + count
            if not is_once(terms.when):
                of = (missed.first, terms.due(missed.first), missed.reason, count)
                single.note(self._writer, found, Event(self._now, "missed", *of))
        position = None
        if decision.release is not None:
            position = self._append(found, terms, decision.release, final=decision.next is None)
        if decision.next is None:
            self._end(found, terms, position, decision.missed)
        else:
            self._go_on(found, terms, decision.next)

    def release_extra(self, found: Found) -> None:
        """Release a record that was fired by hand, beside the schedule's own times."""
        single.append(self._writer, found, self._now, found.n, found.due, final=False)
        self._writer.connection.execute("DELETE FROM fired WHERE arrival = ?", (found.arrival,))
        self._left(found, found.n, found.due)

    def _left(self, found: Found, n: int, due: int) -> None:
        self._count(found, due)
        single.note(self._writer, found, Event(self._now, "released", n, due))

    def _count(self, found: Found, due: int) -> None:
        topic = found.partition // PARTITIONS_MAX
        if topic in self._writer.on_kafka:
            self.handed += 1
        else:
            self.lateness_us.append(self._now - due)
            self.topics.add(self._writer.topic_names[topic])

    def _append(self, found: Found, terms: Terms, n: int, *, final: bool) -> int:
        due = terms.due(n)
        assert due is not None
        position = single.append(self._writer, found, self._now, n, due, final=final)
        found.released += 1
        found.n, found.due = n, due
        if is_once(terms.when):
            self._count(found, due)
        else:
            self._left(found, n, due)
        return position

    def _end(self, found: Found, terms: Terms, position: int | None, missed: tuple[MissedRange, ...]) -> None:
        self._writer.connection.execute("DELETE FROM standing WHERE arrival = ?", (found.arrival,))
        if missed and position is None:
            found.n = missed[-1].last
            found.due = terms.due(found.n) or found.due
        if not found.released:
            single.finish(self._writer, found, "missed", self._now, missed[-1].reason)
        elif is_once(terms.when):
            single.finish(self._writer, found, "released", self._now, position=position)
        else:
            single.finish(self._writer, found, "ended", self._now)
            single.note(self._writer, found, Event(self._now, "ended", reason=ended_why(terms.when)))

    def _go_on(self, found: Found, terms: Terms, n: int) -> None:
        due = terms.due(n)
        assert due is not None
        found.n, found.due = n, due
        self._writer.connection.execute(
            "UPDATE standing SET n = ?, due = ?, released = ? WHERE arrival = ?",
            (n, due, found.released, found.arrival),
        )
        single.insert_pointer(self._writer, found)

"""The terms of a recurring or paused schedule: when it is due, how late it may be, and by which zone rules."""

import msgspec

from tidings.domain.recurrence import timezone
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.lateness import Decision, Lateness, Pardon, Policy, decide, tightest
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.when import Once, When, is_once, occurrence


class RecurrenceState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The stored terms of a recurring or paused schedule.

    `tzdata` is the version of the time zone rules by which the pending occurrence was computed, `rules` the digest of
    the rules of its zone; None without a zone. `revised`: a changed calendar or zone was applied, so the due time with
    which it was accepted cannot be computed any more. `jitter_us` lies within `jitter_window_us`, the configured
    jitter, which is 0 in what earlier versions stored.
    """

    when: When
    lateness: Lateness
    jitter_us: int
    tzdata: str | None = None
    rules: str | None = None
    pardon: Pardon | None = None
    revised: bool = False
    jitter_window_us: int = 0

    @property
    def recurs(self) -> bool:
        """Whether it has more than one occurrence."""
        return not is_once(self.when)

    def decide(self, n: int, now: int) -> Decision:
        """Decide what to release at `now` while occurrence n is pending."""
        return decide(self.when, n, now - self.jitter_us, self.lateness, self.pardon)

    def due(self, n: int) -> int | None:
        """When occurrence n is due, jitter included."""
        at = occurrence(self.when, n)
        return None if at is None else at + self.jitter_us

    def pardoned(self, policy: Policy | None, now: int) -> "RecurrenceState":
        """The terms after a pause that ends now; `policy` decides on the occurrences of the pause."""
        pardon = None if policy is None else Pardon(policy, now - self.jitter_us)
        return msgspec.structs.replace(self, pardon=pardon)


def terms_of(add: Add) -> RecurrenceState:
    """The terms of a new schedule, computed by the current time zone rules."""
    if isinstance(add.when, Once):
        return single(add.due, tightest(add.lateness))
    terms = RecurrenceState(add.when, add.lateness, add.jitter_us, jitter_window_us=add.jitter_window_us)
    return stamped(terms, add.when)


def single(due: int, lateness: Lateness) -> RecurrenceState:
    """The terms of a one-shot. Its row stores only the due time and the tightest lateness limit."""
    return RecurrenceState(Once(due), lateness, 0)


def stamped(terms: RecurrenceState, when: When) -> RecurrenceState:
    """The terms with a rule computed by the current time zone rules."""
    zone = zone_of(when)
    if zone is None:
        return msgspec.structs.replace(terms, when=when)
    return msgspec.structs.replace(terms, when=when, tzdata=timezone.VERSION, rules=timezone.rules_of(zone))


def revised(terms: RecurrenceState, when: When) -> RecurrenceState:
    """The terms after a change of the calendar or zone that the rule depends on."""
    return msgspec.structs.replace(stamped(terms, when), revised=True)


encode_state = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(RecurrenceState).decode

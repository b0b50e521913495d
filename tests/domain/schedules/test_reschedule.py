"""Changes of time zone rules and calendars: nothing that was handled is due again, and nothing ahead is lost."""

from random import Random

import msgspec
import pytest

from tests.domain.recurrence import random_rules
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.request_fields import Terms, read_cron, read_rule
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.rule import GAPS, OVERLAPS, Cron, Rule
from tidings.domain.schedules.iso8601 import parse_instant
from tidings.domain.schedules.reschedule import KEPT_MAX, Pending, by_calendar, by_zone, in_zone
from tidings.domain.schedules.when import DAY_US, When, occurrence

BERLIN, HELSINKI, LONDON = "Europe/Berlin", "Europe/Helsinki", "Europe/London"
NEW_YORK, TOKYO = "America/New_York", "Asia/Tokyo"
ZONES = [BERLIN, HELSINKI, LONDON, NEW_YORK, TOKYO, "Asia/Kathmandu", "Pacific/Apia"]
ACCEPTED = parse_instant("2026-11-16T09:00:00Z")
TIMES = "BYHOUR=13;BYMINUTE=35;BYSECOND=19;COUNT=3"


def at(text: str) -> int:
    return parse_instant(text)


def pending(when: When, n: int = 1) -> Pending:
    return Pending(when, n, occurrence(when, n))


def released(one: Pending) -> Pending:
    return pending(one.when, one.n + 1)


def moved(one: Pending, zone: str, now: int) -> Pending:
    """The schedule after its zone took the rules of another zone."""
    assert isinstance(one.when, Rule | Cron)
    return by_zone(msgspec.structs.replace(one, when=msgspec.structs.replace(one.when, zone=zone)), one.when.zone, now)


@pytest.mark.parametrize(
    "when",
    [
        read_rule(f"FREQ=DAILY;{TIMES}", ACCEPTED, Terms(zone=BERLIN)),
        read_rule(f"FREQ=YEARLY;BYMONTH=11;BYMONTHDAY=16,17,18;{TIMES}", ACCEPTED, Terms(zone=BERLIN)),
        read_cron("19 35 13 * * *", ACCEPTED, Terms(zone=BERLIN, count=3)),
    ],
)
@pytest.mark.parametrize("way", [(HELSINKI,), (NEW_YORK, TOKYO), (TOKYO, NEW_YORK), (HELSINKI, LONDON, HELSINKI)])
def test_two_opposite_zone_changes_give_the_original_schedule(when: When, way: tuple[str, ...]) -> None:
    one = released(pending(when))
    now = at("2026-11-16T12:40:00Z")
    there = one
    for zone in (*way, BERLIN):
        there = moved(there, zone, now)
        assert there.n == 2
        assert there.due is not None
        assert there.due > at("2026-11-16T12:35:19Z")
    assert there.due == one.due == at("2026-11-17T12:35:19Z")
    last = released(there)
    assert last.due == at("2026-11-18T12:35:19Z")
    assert released(last).due is None


def test_calendar_change_between_two_zone_changes_repeats_nothing() -> None:
    """9:00 in Berlin was released. By London's rules 9:00 is still ahead, but it must not be released again."""
    terms = Terms(start="2026-11-16T09:00", zone=BERLIN, calendar="off")
    one = moved(released(pending(read_rule("FREQ=DAILY", ACCEPTED, terms))), LONDON, at("2026-11-16T08:10:00Z"))
    assert one.due == at("2026-11-17T09:00:00Z")
    one = by_calendar(one, (0,), at("2026-11-16T08:30:00Z"))
    assert one.due == at("2026-11-17T09:00:00Z")
    assert moved(one, BERLIN, at("2026-11-16T08:40:00Z")).due == at("2026-11-17T08:00:00Z")


def test_excluded_days_in_the_past_stay_excluded_after_a_zone_change() -> None:
    """Nothing was released yet: the day that the calendar no longer excludes is in the past by either rules."""
    terms = Terms(start="2026-11-14T09:00", zone=BERLIN, calendar="off")
    today = ACCEPTED // DAY_US
    rule = msgspec.structs.replace(read_rule("FREQ=DAILY", ACCEPTED, terms), excluded=(today - 2, today - 1, today))
    one = by_calendar(pending(rule), (), ACCEPTED)
    for zone in (NEW_YORK, TOKYO, HELSINKI, BERLIN):
        one = moved(one, zone, ACCEPTED)
        assert one.due is not None
        assert one.due > ACCEPTED


def test_row_without_handled_repeats_nothing() -> None:
    """The row does not say what was handled, only that numbers had continued."""
    rule = read_rule(f"FREQ=DAILY;{TIMES}", at("2026-11-16T12:00:00Z"), Terms(zone=BERLIN))
    old = msgspec.structs.replace(rule, zone=HELSINKI, shift=1, given=1)  # as it was written after a first change
    one = moved(pending(old, 2), BERLIN, at("2026-11-16T12:40:00Z"))
    assert (one.n, one.due) == (2, at("2026-11-17T12:35:19Z"))
    assert released(released(one)).due is None


def test_occurrences_on_excepted_days_count_once() -> None:
    """COUNT includes occurrences that EXDATE removes, also after changes of the zone."""
    rule = "DTSTART:20261116T090000\nRRULE:FREQ=DAILY;COUNT=5\nEXDATE:20261117T090000"
    one = released(pending(read_rule(rule, ACCEPTED, Terms(zone=BERLIN))))
    for zone in (HELSINKI, NEW_YORK, BERLIN):
        one = moved(one, zone, at("2026-11-16T08:10:00Z"))
    dues = []
    while one.due is not None:
        dues.append(one.due)
        one = released(one)
    assert dues == [at(f"2026-11-{day}T08:00:00Z") for day in (18, 19, 20)]


def some_schedule(random: Random) -> Rule | Cron:
    """A random rule or expression in a random zone, mostly with a count."""
    count = random.choice([None, 2, 3, 5, 8])
    gap, overlap = GAPS[random.choice(list(GAPS))], OVERLAPS[random.choice(list(OVERLAPS))]
    zone = random.choice(ZONES)
    if random.random() < 0.4:
        return read_cron(
            random_rules.expression(random), ACCEPTED, Terms(zone=zone, count=count, gap=gap, overlap=overlap)
        )
    start = random.choice([None, None, "2026-11-15T13:35:19", "2026-11-17T02:30:00"])
    text = random_rules.rule(random, ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "DAILY", "HOURLY", "MINUTELY"])
    return read_rule(
        text if count is None else f"{text};COUNT={count}", ACCEPTED, Terms(start, zone, gap=gap, overlap=overlap)
    )


def count_of(when: Rule | Cron) -> int | None:
    return when.count if isinstance(when, Cron) else parse_rrule(when.rrule).count


class RandomSchedule:
    """A schedule that goes through random changes and releases, and what was handled of it."""

    def __init__(self, when: Rule | Cron) -> None:
        self.one = pending(when)
        self.handled: list[int] = []
        self.now = ACCEPTED
        self.cut = False  # under the rules of some zone no occurrence was left

    def release(self) -> None:
        assert self.one.due is not None
        self.now = max(self.now, self.one.due)
        self.handled.append(self.one.due)
        assert self.one.n == len(self.handled)
        self.one = released(self.one)

    def wander(self, random: Random) -> None:
        """Change the zone's rules several times; the result must equal that of the last change alone."""
        target = random.choice(ZONES)
        straight = moved(self.one, target, self.now)
        for zone in (*random.sample(ZONES, random.randint(1, 3)), target):
            self.one = moved(self.one, zone, self.now)
            assert self.one.n == len(self.handled) + 1
            if self.one.due is None:
                self.cut = True
                return
            assert not self.handled or self.one.due > self.handled[-1]
        assert (self.one.n, self.one.due) == (straight.n, straight.due)


@pytest.mark.parametrize("seed", range(300))
def test_random_sequences_of_changes(seed: int) -> None:
    """No instant and no number occurs twice, COUNT is exact, and intermediate zone changes have no effect."""
    random = Random(seed)
    try:
        when = some_schedule(random)
    except Invalid:
        return  # a rule that never occurs
    schedule, count = RandomSchedule(when), count_of(when)
    for _ in range(12):
        if schedule.one.due is not None and random.random() < 0.5:
            schedule.release()
        elif schedule.one.due is not None:
            schedule.wander(random)
    while count is not None and schedule.one.due is not None:
        schedule.release()
    assert schedule.handled == sorted(set(schedule.handled))
    if count is not None and not schedule.cut:
        assert len(schedule.handled) == count


def test_overdue_occurrences_keep_their_instants_through_every_later_change() -> None:
    """Numbers 2 and 3 are overdue when the rule moves; then its calendar and the rules of its zone change."""
    one = released(pending(read_rule(f"FREQ=DAILY;{TIMES.replace('3', '5')}", ACCEPTED, Terms(zone=NEW_YORK))))
    assert one.due is not None
    now = one.due + DAY_US + 1
    there = in_zone(one, TOKYO, now)
    assert there is not None
    excluded = tuple(range(20_000, 20_900))
    for changed in (there, by_calendar(there, excluded, now), moved(there, HELSINKI, now)):
        assert [occurrence(changed.when, n) for n in (2, 3)] == [one.due, one.due + DAY_US]
        after = occurrence(changed.when, 4)
        assert after is None or after > now


def test_a_schedule_with_too_many_overdue_occurrences_stays() -> None:
    one = pending(read_rule("FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0", ACCEPTED, Terms(zone=NEW_YORK)))
    assert one.due is not None
    assert in_zone(one, TOKYO, one.due + (KEPT_MAX - 1) * DAY_US) is not None
    assert in_zone(one, TOKYO, one.due + KEPT_MAX * DAY_US) is None

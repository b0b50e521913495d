"""From a stored rule, cron expression or local time to its moments, with what is equal worked out once."""

from collections.abc import Sequence
from functools import lru_cache

from tidings.domain.recurrence.building import completed, least_distance, reduced_start, walls_of
from tidings.domain.recurrence.calendar import DAY_S, SECOND_US, year_of, year_start
from tidings.domain.recurrence.cron import cron_times, cron_walls, is_exact, parse_cron
from tidings.domain.recurrence.excluding import amended
from tidings.domain.recurrence.moments import Bounded, Few, Moments, Shifted
from tidings.domain.recurrence.parts import DAILY, Cron, Gap, Local, Moment, Overlap, Parts, Recurrence, Rule
from tidings.domain.recurrence.resolve import folded, instants_of, resolved
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.zoned import Zoned
from tidings.domain.recurrence.zones import Zone, zone_named


@lru_cache(maxsize=16_384)
def compiled(recurrence: Recurrence) -> Moments:
    """The moments of a schedule."""
    match recurrence:
        case Local(wall, zone, gap, overlap):
            return Few(resolved(zone_named(zone), wall, gap, overlap))
        case Rule():
            return _rule(recurrence)
        case Cron():
            return _cron(recurrence)


def _rule(rule: Rule) -> Moments:
    zone = zone_named(rule.zone)
    parts = parse_rrule(rule.rrule)
    anchor = folded(zone, rule.start, rule.fold)
    full = completed(parts, rule.start)
    decade = year_of(rule.start // DAY_S) // 10 * 10
    exact = parts.frequency > DAILY
    # Only rules in exact time know the offset of their anchor, and no policy.
    clock = rule.start - anchor if exact else 0
    gap, overlap = ("skip", "both") if exact else (rule.gap, rule.overlap)
    zoned = _rule_zoned(full, reduced_start(full, rule.start), clock, (rule.zone, gap, overlap), decade)
    end = None if parts.until is None else max(instants_of(zone, parts.until, "forward", "second"))
    bounded = Bounded(zoned, max(anchor, -(-rule.since // SECOND_US)), end, _left(parts.count, rule.given))
    return _amended(bounded, zone, rule)


def _cron(cron: Cron) -> Moments:
    zone = zone_named(cron.zone)
    since = -(-cron.since // SECOND_US)
    fields = parse_cron(cron.expression)
    gap, overlap = ("skip", "both") if is_exact(fields) else (cron.gap, cron.overlap)
    zoned = _cron_zoned(cron.expression, (cron.zone, gap, overlap), year_of(since // DAY_S) // 10 * 10)
    end = None if cron.end is None else cron.end // SECOND_US
    return _amended(Bounded(zoned, since, end, _left(cron.count, cron.given)), zone, cron)


Policy = tuple[str, Gap, Overlap]


@lru_cache(maxsize=2_048)
def _rule_zoned(parts: Parts, start: int, clock: int, policy: Policy, decade: int) -> Zoned:
    walls = walls_of(parts, start, decade - 1)
    zone, gap, overlap = policy
    lower = (year_start(decade) - 2) * DAY_S
    exact = parts.frequency > DAILY
    return Zoned(lambda offset: walls(clock - offset), zone_named(zone), gap, overlap, lower, exact=exact)


@lru_cache(maxsize=2_048)
def _cron_zoned(expression: str, policy: Policy, decade: int) -> Zoned:
    walls = cron_walls(parse_cron(expression), decade - 1)
    zone, gap, overlap = policy
    return Zoned(lambda _offset: walls, zone_named(zone), gap, overlap, (year_start(decade) - 2) * DAY_S)


def _amended(moments: Bounded, zone: Zone, asked: Rule | Cron) -> Moments:
    counted: Moments = moments
    if asked.added or asked.excepted or asked.excluded:
        added = _instants(zone, asked.added, asked.gap, asked.overlap)
        counted = amended(moments, zone, asked, added)
    return Shifted(counted, asked.shift) if asked.shift else counted


def _left(count: int | None, given: int) -> int | None:
    """How many a rule may still give."""
    return None if count is None else max(0, count - given)


def _instants(zone: Zone, written: Sequence[Moment], gap: Gap, overlap: Overlap) -> list[int]:
    found = {instant for moment in written for instant in instants_of(zone, moment, gap, overlap)}
    return sorted(found)


def least_distance_us(asked: Rule | Cron) -> int:
    """The shortest time between two wall times of a rule as such, whatever is added to it and clocks do."""
    if isinstance(asked, Cron):
        return cron_times(parse_cron(asked.expression)).least_distance() * SECOND_US
    return least_distance(completed(parse_rrule(asked.rrule), asked.start), asked.start) * SECOND_US

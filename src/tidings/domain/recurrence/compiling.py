"""From a stored rule, cron expression or local time to its moments, with what is equal worked out once."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from tidings.domain.recurrence.building import completed, least_distance, most_a_day, reduced_start, walls_of
from tidings.domain.recurrence.calendar import DAY_S, SECOND_US, decade_of, year_start
from tidings.domain.recurrence.cron import cron_times, cron_walls, is_exact, parse_cron
from tidings.domain.recurrence.excluding import Excluding, Moving, Runs, amended, check_movable
from tidings.domain.recurrence.kept import Kept
from tidings.domain.recurrence.lattice import BLOCKS
from tidings.domain.recurrence.moments import Bounded, Few, Moments, Shifted
from tidings.domain.recurrence.parts import DAILY, Cron, Gap, Local, Moment, Overlap, Parts, Recurrence, Rule
from tidings.domain.recurrence.remainders import TABLES
from tidings.domain.recurrence.resolve import end_of, folded, instants_of, resolved
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.zoned import STRETCHES, Zoned
from tidings.domain.recurrence.zones import Zone, zone_named

SCHEDULES_KEPT = 16_384
LISTED_KEPT = 512  # with up to 1,000 moments of their own each: some 150 kB
FEW = 20
DATED_BYTES_MAX = 64 * 1024 * 1024  # with the days of calendars
DAY_BYTES = 64
CALENDARS_KEPT = 128

DATED: Kept[tuple[Rule | Cron, Runs], Moments] = Kept(DATED_BYTES_MAX)


def compiled(recurrence: Recurrence) -> Moments:
    """The moments of a schedule."""
    if isinstance(recurrence, Local) or not recurrence.excluded:
        long = not isinstance(recurrence, Local) and len(recurrence.added) + len(recurrence.excepted) > FEW
        return _listed(recurrence) if long else _plain(recurrence)
    runs, asked = _runs(recurrence.excluded), msgspec.structs.replace(recurrence, excluded=())
    moments = DATED.get((asked, runs))
    if moments is None:
        moments = _dated(asked, runs)
        DATED.put((asked, runs), moments, 1_000 + DAY_BYTES * len(runs.days))
    return moments


def forget() -> None:
    """Drop all that was worked out, as after new rules of zones."""
    for cached in (_plain, _listed, _runs, _rule_zoned, _cron_zoned, zone_named):
        cached.cache_clear()
    for kept in (DATED, STRETCHES, BLOCKS, TABLES):
        kept.clear()


@lru_cache(maxsize=LISTED_KEPT)
def _listed(recurrence: Recurrence) -> Moments:
    """The same for what is heavier to keep."""
    return _undated(recurrence)


@lru_cache(maxsize=SCHEDULES_KEPT)
def _plain(recurrence: Recurrence) -> Moments:
    return _undated(recurrence)


def _undated(recurrence: Recurrence) -> Moments:
    """The moments, whatever days a calendar excludes."""
    if isinstance(recurrence, Local):
        zone = zone_named(recurrence.zone)
        return Few(
            resolved(zone, recurrence.wall, "forward", recurrence.overlap)
        )  # what of `skip` is missed there: `is_swallowed`
    moments = _rule(recurrence) if isinstance(recurrence, Rule) else _cron(recurrence)
    if recurrence.on_excluded == "next_day":
        check_movable(_most_a_day(recurrence))
    return Shifted(moments, recurrence.shift) if recurrence.shift else moments


@lru_cache(maxsize=CALENDARS_KEPT)
def _runs(days: tuple[int, ...]) -> Runs:
    """One table for all schedules with equal days, and a key that is the same for them."""
    return Runs(days)


def _dated(asked: Rule | Cron, runs: Runs) -> Moments:
    """The moments without those of excluded days."""
    base, zone = compiled(msgspec.structs.replace(asked, shift=0)), zone_named(asked.zone)
    if asked.on_excluded == "skip":
        counted = Excluding(base, zone, runs)
    else:
        counted = Moving(base, zone, runs, (asked.gap, asked.overlap), _most_a_day(asked))
    return Shifted(counted, asked.shift) if asked.shift else counted


def _rule(rule: Rule) -> Moments:
    zone = zone_named(rule.zone)
    parts = parse_rrule(rule.rrule)
    anchor = folded(zone, rule.start, rule.fold)
    full = completed(parts, rule.start)
    exact = parts.frequency > DAILY
    # Only rules in exact time know the offset of their anchor, and no policy.
    clock = rule.start - anchor if exact else 0
    gap, overlap = ("skip", "both") if exact else (rule.gap, rule.overlap)
    decade = decade_of(rule.start // DAY_S)
    zoned = _rule_zoned(full, reduced_start(full, rule.start), clock, (rule.zone, gap, overlap), decade)
    lower = max(anchor, -(-rule.since // SECOND_US))
    end = None if parts.until is None else end_of(zone, parts.until)
    return _amended(Bounded(zoned, lower, end, _left(parts.count, rule.given)), zone, rule, lower)


def _cron(cron: Cron) -> Moments:
    zone = zone_named(cron.zone)
    since = -(-cron.since // SECOND_US)
    fields = parse_cron(cron.expression)
    gap, overlap = ("skip", "both") if is_exact(fields) else (cron.gap, cron.overlap)
    zoned = _cron_zoned(cron.expression, (cron.zone, gap, overlap), decade_of(since // DAY_S))
    end = None if cron.end is None else cron.end // SECOND_US
    return _amended(Bounded(zoned, since, end, _left(cron.count, cron.given)), zone, cron, since)


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


def _amended(moments: Bounded, zone: Zone, asked: Rule | Cron, lower: int) -> Moments:
    """With its single moments; what is added counts from where the rule begins."""
    if not asked.added and not asked.excepted:
        return moments
    added = [at for at in _instants(zone, asked.added, asked.gap, asked.overlap) if at >= lower]
    return amended(moments, zone, asked, added)


def _left(count: int | None, given: int) -> int | None:
    """How many a rule may still give."""
    return None if count is None else max(0, count - given)


def _instants(zone: Zone, written: Sequence[Moment], gap: Gap, overlap: Overlap) -> list[int]:
    found = {instant for moment in written for instant in instants_of(zone, moment, gap, overlap)}
    return sorted(found)


def _most_a_day(asked: Rule | Cron) -> int:
    """How many wall times of a rule as such can lie on one day, at most."""
    if isinstance(asked, Cron):
        return cron_times(parse_cron(asked.expression)).size
    return most_a_day(completed(parse_rrule(asked.rrule), asked.start), asked.start)


def least_distance_us(asked: Rule | Cron) -> int:
    """The shortest time between two wall times of a rule as such, whatever is added to it and clocks do."""
    if isinstance(asked, Cron):
        return cron_times(parse_cron(asked.expression)).least_distance() * SECOND_US
    return least_distance(completed(parse_rrule(asked.rrule), asked.start), asked.start) * SECOND_US

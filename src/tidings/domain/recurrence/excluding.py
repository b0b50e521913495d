"""EXDATE and excluded days as a pure change of a schedule's moments: left out, or moved to the next allowed day."""

from collections.abc import Iterable, Sequence

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.calendar import DAY_S
from tidings.domain.recurrence.moments import Amended, Moments
from tidings.domain.recurrence.parts import Cron, Rule
from tidings.domain.recurrence.resolve import day_range, instants_of, resolved
from tidings.domain.recurrence.steps import METER
from tidings.domain.recurrence.zones import Zone

EXCLUDED_MAX = 5_000
MOVED_A_DAY_MAX = 100


def amended(moments: Moments, zone: Zone, asked: Rule | Cron, added: Sequence[int]) -> Moments:
    """The moments without what is excepted or lies on an excluded day, with what is added or moved."""
    exceptions = []
    for moment in asked.excepted:
        if moment.form == "date":
            exceptions.append(day_range(zone, moment.seconds // DAY_S))
        else:
            exceptions += [(at, at) for at in instants_of(zone, moment, "forward", "both")]
    days = [(day_range(zone, first)[0], day_range(zone, last)[1]) for first, last in runs(asked.excluded)]
    if asked.on_excluded == "skip" or not asked.excluded:
        return Amended(moments, merged([*exceptions, *days]), added)
    kept = Amended(moments, merged(exceptions), added)  # what is excepted does not move
    return Amended(kept, merged(days), sorted(set(_moved(kept, zone, asked))))


def runs(days: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted days as runs of neighbours, each with its first and last day."""
    found: list[tuple[int, int]] = []
    for day in sorted(set(days)):
        if found and found[-1][1] == day - 1:
            found[-1] = (found[-1][0], day)
        else:
            found.append((day, day))
    return found


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges sorted and apart; empty ones (a day that a zone skipped) are dropped."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def _moved(moments: Moments, zone: Zone, asked: Rule | Cron) -> Iterable[int]:
    """Where the moments of excluded days go: to the same wall time on the day behind the run."""
    for first, last in runs(asked.excluded):
        target = (last + 1) * DAY_S
        for day in range(first, last + 1):
            METER.taken += 1
            for at in _on(moments, *day_range(zone, day)):
                second = (at + zone.offset_at(at)) % DAY_S
                yield from resolved(zone, target + second, asked.gap, asked.overlap)


def _on(moments: Moments, first: int, last: int) -> list[int]:
    begin, end = moments.through(first - 1), moments.through(last)
    if end - begin > MOVED_A_DAY_MAX:
        detail = f"{end - begin:,} occurrences lie on one excluded day, at most {MOVED_A_DAY_MAX} can move"
        raise Invalid("on_excluded", f"{detail}: use skip, or a rule that occurs less often")
    return [at for number in range(begin + 1, end + 1) if (at := moments.at(number)) is not None]

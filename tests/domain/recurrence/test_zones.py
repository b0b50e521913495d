"""Every IANA zone and every transition from 1970 to 2037, under each policy, against the standard library."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise, product

import pytest

from tests.domain.recurrence.oracle import both, chosen, library_zone
from tests.domain.recurrence.text_api import EPOCH, between
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.local_time import resolve_wall
from tidings.domain.recurrence.rule import Gap, Overlap, Rule
from tidings.domain.recurrence.timezone import VERSION, content_of, digest_of, names, parse_posix_rule, zone_named

GAPS: tuple[Gap, ...] = ("forward", "skip")
OVERLAPS: tuple[Overlap, ...] = ("first", "second", "both")
Y2038 = 2_145_916_800
MINUTES = (0, 30)
RULE = f"FREQ=DAILY;BYHOUR={','.join(map(str, range(24)))};BYMINUTE={','.join(map(str, MINUTES))};BYSECOND=0"
FEW = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/St_Johns",
    "Africa/Casablanca",
]


def distinct_zones() -> list[str]:
    """One name for each zone, without aliases."""
    return sorted({digest_of(content_of(name)): name for name in sorted(names(), reverse=True)}.values())


def changes(name: str) -> list[tuple[int, int, int]]:
    """The transitions from 1970 to 2037: the instant, the offset before, the offset after."""
    zone = zone_named(name)
    zone.segment(Y2038)
    places = range(1, len(zone.starts))
    found = [(zone.starts[place], zone.offsets[place - 1], zone.offsets[place]) for place in places]
    return [change for change in found if 0 < change[0] < Y2038]


def test_version_and_names() -> None:
    assert VERSION[:2] == "20"
    for name, advice in (
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("America", "IANA"),
        ("../x", "IANA"),
    ):
        with pytest.raises(Invalid, match=advice):
            zone_named(name)


@pytest.mark.parametrize("name", distinct_zones())
def test_offsets_agree_with_the_standard_library(name: str) -> None:
    zone, library = zone_named(name), library_zone(name)
    far = [year * 31_556_952 + month * 2_629_746 for year in range(67, 500, 9) for month in range(12)]
    near = [at + more for at, _, _ in changes(name) for more in (-3_600, -1, 0, 1, 3_600)]
    for at in near + far:
        offset = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)).astimezone(library).utcoffset()
        assert offset is not None
        assert zone.offset_at(at) == offset.total_seconds(), at


def check_zone(name: str) -> int:
    """Compare a daily rule with many times around each transition with the standard library, under each policy."""
    library = library_zone(name)
    start = 86_400 * 2
    policies = [
        (gap, overlap, Rule(rrule=RULE, start=start, zone=name, fold=0, gap=gap, overlap=overlap))
        for gap, overlap in product(GAPS, OVERLAPS)
    ]
    for at, before, after in changes(name):
        if at < 86_400 * 4:
            continue
        shift = abs(after - before)
        begin, end = at - 3_600, at + min(shift, 7_200) + 3_600
        first = EPOCH + timedelta(seconds=(begin + min(before, after) - shift) // 3_600 * 3_600)
        hours = (end - begin + 3 * shift) // 3_600 + 3
        walls = [first + timedelta(hours=hour, minutes=minute) for hour in range(hours) for minute in MINUTES]
        pairs = both(walls, library)
        for gap, overlap, rule in policies:
            moments = compiled(rule)
            wanted = [instant for instant in chosen(pairs, gap, overlap) if begin <= instant <= end]
            found = between(rule, begin, end)
            assert found == wanted, (name, gap, overlap, at)
            assert all(one < other for one, other in pairwise(found)), "never twice"
            assert [moments.through(instant) for instant in found[:2]] == [
                moments.through(begin - 1) + number for number in range(1, len(found[:2]) + 1)
            ]
    return len(changes(name))


@pytest.mark.parametrize("name", FEW)
def test_policies_around_transitions(name: str) -> None:
    assert check_zone(name) > 0


@pytest.mark.slow
def test_policies_around_every_transition_of_every_zone() -> None:
    zones = distinct_zones()
    assert len(zones) > 300
    assert sum(check_zone(name) for name in zones) > 10_000


@pytest.mark.parametrize("name", distinct_zones())
def test_single_wall_times_around_every_transition(name: str) -> None:
    """A wall time in a gap moves forward by its length; of two equal ones the policy selects."""
    zone = zone_named(name)
    for at, before, after in changes(name):
        low, high = sorted((at + before, at + after))
        for wall in (low - 1, low, (low + high) // 2, high - 1, high):
            inside = low <= wall < high
            if inside and after > before:
                assert resolve_wall(zone, wall, "skip", "first") == []
                assert resolve_wall(zone, wall, "forward", "both") == [wall - before]
                assert wall - before >= at
            elif inside:
                assert resolve_wall(zone, wall, "forward", "both") == [wall - before, wall - after]
                assert resolve_wall(zone, wall, "forward", "first") == [wall - before]
                assert resolve_wall(zone, wall, "skip", "second") == [wall - after]
            else:
                offset = before if wall < low else after
                assert resolve_wall(zone, wall, "skip", "both") == [wall - offset]


def test_footers_of_every_form() -> None:
    julian = parse_posix_rule("AAA3BBB,J60/0,J300/24")
    assert julian is not None
    changes = [datetime.fromtimestamp(at, UTC).isoformat() for at, _ in julian.transitions(2028)]
    assert changes == ["2028-03-01T03:00:00+00:00", "2028-10-28T02:00:00+00:00"]  # J60 is never February 29
    counted = parse_posix_rule("<-03>3<-02>,59/-2,299/26:30:15")
    assert counted is not None
    assert (counted.standard, counted.summer) == (-10_800, -7_200)
    assert counted.ends.seconds == 26 * 3_600 + 30 * 60 + 15
    assert parse_posix_rule("UTC0") is None

"""Random rules compared with dateutil, cronsim and our brute-force oracle; the documented differences one by one."""

from datetime import datetime

import pytest
from dateutil.rrule import rrulestr

from tests.domain.recurrence.differential import tally
from tests.domain.recurrence.oracle import Oracle
from tests.domain.recurrence.text_api import first, rule, shown


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_some_rules_agree(seed: int) -> None:
    assert tally(seed, range(500)).differences == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_rules_agree(seed: int) -> None:
    assert tally(seed, range(5_000)).differences == []


def ours(text: str, start: str, count: int) -> list[str]:
    return [shown(at) for at in first(rule(text, start), count)]


def theirs(text: str, start: str, count: int) -> list[str]:
    at = datetime.strptime(start, "%Y%m%dT%H%M%S")  # noqa: DTZ007 dateutil takes wall time
    return [found.strftime("%Y%m%dT%H%M%S") for found, _ in zip(rrulestr(text, dtstart=at), range(count), strict=False)]


def plain(text: str, start: str, count: int) -> list[str]:
    at = datetime.strptime(start, "%Y%m%dT%H%M%S")  # noqa: DTZ007 wall time
    walls = Oracle(text, at).walls(at.date().replace(day=1, month=1), at.date().replace(year=at.year + 50))
    return [wall.strftime("%Y%m%dT%H%M%S") for wall in walls if wall >= at][:count]


DOCUMENTED = [
    ("a week without a weekday takes the start's", "FREQ=YEARLY;BYWEEKNO=20", "19970902T090000"),
    ("plain and numbered weekdays add up", "FREQ=MONTHLY;BYDAY=1MO,TU;UNTIL=19980902T090000", "19970902T090000"),
    ("week 1 of the next year counts from its end too", "FREQ=YEARLY;BYWEEKNO=-52;BYDAY=MO", "20020101T090000"),
    ("2010 had no week 53", "FREQ=YEARLY;BYWEEKNO=53;BYDAY=SU", "20010113T090000"),
    ("BYSETPOS counts in whole weeks", "FREQ=WEEKLY;BYDAY=MO,FR;BYSETPOS=1", "20261111T090000"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "text", "start"), DOCUMENTED)
def test_documented_differences_from_dateutil(what: str, text: str, start: str) -> None:
    found = ours(text, start, 6)
    assert found == plain(text, start, 6), what
    assert len(found) == 6
    assert found != theirs(text, start, 6), f"dateutil agrees now: {what}"

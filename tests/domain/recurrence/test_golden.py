"""The examples of RFC 5545, and the test cases of libical and rrule-go."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.domain.recurrence.oracle import library_zone
from tests.domain.recurrence.text_api import between, first, rule, shown, wall
from tidings.domain.errors import Invalid
from tidings.domain.recurrence.compiler import compiled
from tidings.domain.recurrence.request_fields import read_rule
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.rule import Moment, Rule

DATA = Path(__file__).parent / "data"
NEW_YORK = "America/New_York"
Example = tuple[str, str, list[str], bool]

# What others accept and RFC 5545 forbids; we refuse it and say what to write.
FORBIDDEN = [
    r"FREQ=(?!YEARLY).*BYWEEKNO",
    r"FREQ=(MONTHLY|WEEKLY|DAILY).*BYYEARDAY",
    r"FREQ=WEEKLY.*BYMONTHDAY",
    r"FREQ=(WEEKLY|DAILY|HOURLY|MINUTELY|SECONDLY).*BYDAY=[-+0-9]",
    r".*COUNT=.*UNTIL=",
    r"FREQ=HOURLY;BYSETPOS=1,-1,2;UNTIL=19970902T110000Z",  # BYSETPOS alone
]
# BYWEEKNO without BYDAY: RFC 5545 takes the weekday from the start, as libical does; dateutil's line all seven days.
DIFFERENT = {"FREQ=YEARLY;COUNT=3;BYWEEKNO=20"}


def rfc_examples() -> Iterator[Example]:
    for block in (DATA / "rfc5545.txt").read_text("utf-8").strip().split("\n\n"):
        title, *lines = block.splitlines()
        rules = [line for line in lines if "FREQ=" in line]
        days = "; ".join(line for line in lines if line not in rules)
        for number, line in enumerate(rules, start=1):
            start, text = line.split()
            yield f"{title} ({number})", line, list(expected(days.removesuffix(" ..."), start)), days.endswith("...")
            assert text.startswith("FREQ=")


def expected(days: str, start: str) -> Iterator[str]:
    for part in days.split("; "):
        month, _, listed = part.partition(": ")
        for item in listed.split(","):
            low, _, high = item.partition("T")[0].partition("-")
            time = item.partition("T")[2].replace(":", "") + "00" if "T" in item else start[9:]
            for day in range(int(low), int(high or low) + 1):
                yield f"{month.replace('-', '')}{day:02}T{time}"


def in_new_york(instant: int) -> str:
    return datetime.fromtimestamp(instant, library_zone(NEW_YORK)).strftime("%Y%m%dT%H%M%S")


@pytest.mark.parametrize(
    ("title", "line", "wanted", "goes_on"), list(rfc_examples()), ids=lambda value: str(value)[:60]
)
def test_rfc_5545_examples(title: str, line: str, wanted: list[str], goes_on: bool) -> None:
    start, text = line.split()
    asked = rule(text, start, NEW_YORK)
    found = [in_new_york(at) for at in first(asked, len(wanted) + 1)]
    assert found[: len(wanted)] == wanted, title
    assert (len(found) > len(wanted)) == goes_on, title


def test_number_of_examples() -> None:
    assert len(list(rfc_examples())) == 44


def cases(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", cases("libical"), ids=lambda case: str(case["rule"]))
def test_libical(case: dict[str, list[str] | str]) -> None:
    check(case)


@pytest.mark.parametrize("case", cases("rrule_go"), ids=lambda case: str(case["name"]))
def test_rrule_go(case: dict[str, list[str] | str]) -> None:
    text = str(case["rule"])
    if any(re.match(pattern, text) for pattern in FORBIDDEN):
        with pytest.raises(Invalid):
            parse_rrule(text)
    elif text in DIFFERENT:
        assert [shown(at) for at in first(rule(text, str(case["start"])), 1)] != case["expect"][:1]
    else:
        check(case)


def check(case: dict[str, list[str] | str]) -> None:
    text, wanted = str(case["rule"]), list(case["expect"])
    asked = rule(text.removesuffix(";"), str(case["start"]))
    if "from" in case:
        found = between(asked, wall(str(case["from"])), wall(wanted[-1]) + 86_400 * 3_650)
    else:
        found = first(asked, len(wanted) + 1)
    assert [shown(at) for at in found][: len(wanted)] == wanted
    assert len(found) == len(wanted), "COUNT or UNTIL did not end it"


def test_exdate_of_a_start_that_is_not_an_occurrence_has_no_effect() -> None:
    text = "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13"
    asked = Rule(
        rrule=text, start=wall("19970902T090000"), zone=NEW_YORK, excepted=(Moment(wall("19970902T090000"), "local"),)
    )
    assert first(asked, 5) == first(rule(text, "19970902T090000", NEW_YORK), 5)


def test_block_of_lines() -> None:
    text = (
        "DTSTART;TZID=America/New_York:19970902T090000\r\nRRULE:FREQ=DAILY;COUNT=5\r\n"
        "EXDATE;TZID=America/New_York:19970903T090000,1997\r\n 0904T090000\r\nRDATE:19970902T150000Z\r\n"
    )
    found = first(read_rule(text, 0), 9)
    assert [in_new_york(at) for at in found] == [
        "19970902T090000",
        "19970902T110000",
        "19970905T090000",
        "19970906T090000",
    ]
    assert compiled(read_rule(text, 0)).at(5) is None

"""Whatever tenants write, what is kept for rules has a most; what went is worked out again."""

from tests.domain.recurrence.asking import rule
from tidings.domain.recurrence.compiling import compiled, forget
from tidings.domain.recurrence.kept import BoundedCache
from tidings.domain.recurrence.lattice import YEAR_BLOCKS
from tidings.domain.recurrence.remainders import UNIT_TABLES
from tidings.domain.recurrence.zoned import SEGMENTS


def test_the_oldest_goes_first() -> None:
    kept: BoundedCache[str, int] = BoundedCache(10)
    kept.put("a", 1, 4)
    kept.put("b", 2, 4)
    kept.put("a", 3, 5)  # it is new again
    kept.put("c", 4, 4)
    assert [kept.get(key) for key in "abc"] == [3, None, 4]
    assert kept.weight == 9
    kept.put("d", 5, 99)  # alone too heavy, and still answered from
    assert [kept.get(key) for key in "acd"] == [None, None, 5]
    kept.clear()
    assert kept.weight == 0


def test_answers_are_the_same_after_it_went() -> None:
    forget()
    asked = rule("FREQ=SECONDLY;INTERVAL=1441;BYDAY=MO,TU;BYSECOND=1,2,3", "20060101T000000", "Europe/Berlin")
    moments = compiled(asked)
    before = [moments.at(number) for number in range(1, 4_000, 97)]
    assert min(SEGMENTS.weight, YEAR_BLOCKS.weight, UNIT_TABLES.weight) > 0
    for kept in (SEGMENTS, YEAR_BLOCKS, UNIT_TABLES):
        kept.clear()
    assert [moments.at(number) for number in range(1, 4_000, 97)] == before
    assert [moments.through(at) for at in before if at is not None] == list(range(1, 4_000, 97))


def test_the_few_answers_that_are_remembered_change_nothing() -> None:
    forget()
    asked = rule("FREQ=DAILY;COUNT=60", "20260301T023000", "Europe/Berlin")
    moments = compiled(asked)
    there_and_back = [*range(1, 62), *range(61, 0, -1)]
    answers = [moments.at(number) for number in there_and_back]
    assert answers == answers[::-1]
    assert answers[60] is None  # behind the count
    fresh = []
    for number in range(1, 62):
        forget()
        fresh.append(compiled(asked).at(number))
    assert fresh == answers[:61]

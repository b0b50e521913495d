"""Caches of rules are bounded, and evicted entries are computed again."""

from tests.domain.recurrence.text_api import rule
from tidings.domain.recurrence.cache import BoundedCache
from tidings.domain.recurrence.compiler import compiled, forget
from tidings.domain.recurrence.lattice import UNIT_TABLES, YEAR_BLOCKS
from tidings.domain.recurrence.local_time import SEGMENTS


def test_oldest_entry_is_evicted_first() -> None:
    kept: BoundedCache[str, int] = BoundedCache(10)
    kept.put("a", 1, 4)
    kept.put("b", 2, 4)
    kept.put("a", 3, 5)  # replaced: it is now the newest
    kept.put("c", 4, 4)
    assert [kept.get(key) for key in "abc"] == [3, None, 4]
    assert kept.weight == 9
    kept.put("d", 5, 99)  # heavier than the limit alone, but the last entry stays
    assert [kept.get(key) for key in "acd"] == [None, None, 5]
    kept.clear()
    assert kept.weight == 0


def test_answers_are_the_same_after_eviction() -> None:
    forget()
    asked = rule("FREQ=SECONDLY;INTERVAL=1441;BYDAY=MO,TU;BYSECOND=1,2,3", "20060101T000000", "Europe/Berlin")
    moments = compiled(asked)
    before = [moments.at(number) for number in range(1, 4_000, 97)]
    assert min(SEGMENTS.weight, YEAR_BLOCKS.weight, UNIT_TABLES.weight) > 0
    for kept in (SEGMENTS, YEAR_BLOCKS, UNIT_TABLES):
        kept.clear()
    assert [moments.at(number) for number in range(1, 4_000, 97)] == before
    assert [moments.through(at) for at in before if at is not None] == list(range(1, 4_000, 97))


def test_cached_answers_equal_fresh_ones() -> None:
    forget()
    asked = rule("FREQ=DAILY;COUNT=60", "20260301T023000", "Europe/Berlin")
    moments = compiled(asked)
    there_and_back = [*range(1, 62), *range(61, 0, -1)]
    answers = [moments.at(number) for number in there_and_back]
    assert answers == answers[::-1]
    assert answers[60] is None  # after the last of COUNT
    fresh = []
    for number in range(1, 62):
        forget()
        fresh.append(compiled(asked).at(number))
    assert fresh == answers[:61]

"""The evaluation of the records that a reader of Kafka saw."""

from bench.kafka.arrivals import Arrivals
from bench.kafka_outage import Outage, figures_of

SECOND_US = 1_000_000


def test_faults_are_counted() -> None:
    read = Arrivals([10, 20, 30], [15, 19, 31], twice=2)
    assert read.faults(5) == {"lost": 2, "twice": 2, "early": 1}


def test_a_span_selects_by_due_time() -> None:
    read = Arrivals([10, 20, 30], [100, 101, 102], 0)
    assert read.since(20) == Arrivals([20, 30], [101, 102], 0)
    assert read.since(10, 30) == Arrivals([10, 20], [100, 101], 0)


def test_an_outage_is_over_when_a_second_of_messages_is_as_late_as_usual() -> None:
    """One a tenth of a second, 5 ms late; unavailable from 10 s to 20 s, with the backlog delivered 3.5 s later."""
    due = list(range(0, 40 * SECOND_US, SECOND_US // 10))
    at = [23 * SECOND_US + 500_000 if 10 * SECOND_US <= each < 23 * SECOND_US else each + 5_000 for each in due]
    figures, before = figures_of(Outage(10 * SECOND_US, 20 * SECOND_US), Arrivals(due, at, 0))
    assert before == {"late_p50_ms": 5, "late_p99_ms": 5}
    assert figures == {
        "away_s": 10,
        "waiting": 100,
        "drained_s": 3.5,
        "normal_s": 3,
        "late_p50_ms": 5,
        "late_p99_ms": 5,
    }

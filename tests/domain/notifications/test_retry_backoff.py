"""Backoff, circuit breakers and token buckets."""

import random

import pytest

from tidings.domain.notifications.circuit_breaker import Breaker, Terms, opened, state_at, tried, untried
from tidings.domain.notifications.rate_limit import WHOLE, Bucket, Rate, filled, next_at, take
from tidings.domain.notifications.retry_backoff import Backoff, next_try, pause_us

SECOND = 1_000_000
BACKOFF = Backoff(first_us=SECOND, longest_us=10 * SECOND, attempts_max=5, age_us_max=60 * SECOND)


def test_the_pause_doubles_up_to_the_longest() -> None:
    assert [pause_us(BACKOFF, attempts, 1.0) // SECOND for attempts in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    assert pause_us(BACKOFF, 5_000, 1.0) == 10 * SECOND


def test_full_jitter_covers_the_whole_pause() -> None:
    shares = random.Random(7)
    pauses = [pause_us(BACKOFF, 3, shares.random()) for _ in range(2_000)]
    assert 0 <= min(pauses) < 40_000
    assert 3_960_000 < max(pauses) < 4_000_000
    assert 1_900_000 < sum(pauses) / len(pauses) < 2_100_000


def test_attempts_and_age_are_bounded() -> None:
    assert next_try(BACKOFF, 4, 0, 0, 0.5) == 4 * SECOND
    assert next_try(BACKOFF, 5, 0, 0, 0.5) is None
    assert next_try(BACKOFF, 1, 60 * SECOND, 7, 0.0) == 7
    assert next_try(BACKOFF, 1, 60 * SECOND, 7, 0.1) is None
    assert next_try(BACKOFF, 1, 0, 1_000 * SECOND, 0.0) == 1_000 * SECOND, "what was not tried does not get older"


def test_retry_after_of_a_provider_is_respected() -> None:
    assert next_try(BACKOFF, 1, 0, 0, 0.0, asked_us=30 * SECOND) == 30 * SECOND
    assert 30 * SECOND <= (next_try(BACKOFF, 1, 0, 0, 1.0, asked_us=30 * SECOND) or 0) <= 33 * SECOND
    assert next_try(BACKOFF, 1, 0, 0, 0.0, asked_us=61 * SECOND) is None


def test_a_breaker_opens_for_longer_each_time() -> None:
    terms = Terms(first_us=SECOND, longest_us=5 * SECOND)
    breaker = opened(None, terms, "timeout", 0)
    lengths = [breaker.until]
    for _ in range(4):
        breaker = opened(breaker, terms, "timeout", 0)
        lengths.append(breaker.until)
    assert lengths == [SECOND, 2 * SECOND, 4 * SECOND, 5 * SECOND, 5 * SECOND]


def test_states_of_a_breaker() -> None:
    assert state_at(None, 7) == ("closed", 7)
    breaker = Breaker(100)
    assert state_at(breaker, 99) == ("open", 100)
    assert state_at(breaker, 100) == ("due", 100)
    trial = tried(breaker, Terms(trial_us=50), "w", 100)
    assert state_at(trial, 149) == ("open", 150)
    assert state_at(trial, 150) == ("due", 150)


def test_breaker_allows_a_trial_after_the_clock_was_set_back() -> None:
    terms = Terms(first_us=15 * SECOND, trial_us=40 * SECOND)
    then, now = 3_600 * SECOND, 60 * SECOND
    breaker = opened(None, terms, "timeout", then)
    assert state_at(breaker, then - SECOND // 2)[0] == "open", "another worker's clock is a little behind"
    assert state_at(breaker, now) == ("due", now)
    trial = tried(breaker, terms, "w", now)
    assert state_at(trial, now + 1) == ("open", now + 40 * SECOND)
    assert state_at(untried(trial), now + 1)[0] == "due"
    assert state_at(tried(breaker, terms, "w", then), now)[0] == "due", "nor does a trial of before last any longer"


def test_bucket_fills_up_to_its_burst() -> None:
    rate = Rate(10.0, burst=5)
    assert take(None, rate, 9, 0) == (Bucket(0, 0), 5)
    assert take(Bucket(0, 0), rate, 9, SECOND // 10 - 1)[1] == 0
    assert take(Bucket(0, 0), rate, 9, SECOND // 10)[1] == 1
    assert filled(Bucket(0, 0), rate, 3_600 * SECOND).parts == 5 * WHOLE


def test_bucket_counts_no_time_twice_and_continues_after_the_clock_was_set_back() -> None:
    rate = Rate(10.0, burst=5)
    ahead = filled(Bucket(WHOLE, SECOND), rate, SECOND - 1_000)
    assert ahead == Bucket(WHOLE, SECOND), "another worker's clock is a little ahead"
    assert next_at(ahead, Rate(10.0, burst=5), SECOND - 1_000, left=1) == SECOND + SECOND // 10 + 1
    back = filled(Bucket(WHOLE, 3_600 * SECOND), rate, SECOND)
    assert back == Bucket(WHOLE, SECOND)
    assert filled(back, rate, 2 * SECOND).parts == 5 * WHOLE


def test_next_token_is_available_at_next_at() -> None:
    rate = Rate(3.0)
    bucket = Bucket(0, 0)
    moment = next_at(bucket, rate, 0)
    assert take(bucket, rate, 1, moment)[1] == 1
    assert take(bucket, rate, 1, moment - 3)[1] == 0


@pytest.mark.parametrize("given", [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_rate_must_be_positive(given: tuple[float, int]) -> None:
    with pytest.raises(ValueError, match="rate"):
        Rate(*given)


def test_attempts_that_a_rate_limit_refused_do_not_count_but_the_pauses_grow() -> None:
    assert next_try(BACKOFF, 5, 0, 0, 1.0, SECOND) is None
    assert next_try(BACKOFF, 5, 0, 0, 1.0, SECOND, limited=5) == 10 * SECOND
    assert next_try(BACKOFF, 9, 0, 0, 1.0, SECOND, limited=5) == 10 * SECOND
    assert next_try(BACKOFF, 10, 0, 0, 1.0, SECOND, limited=5) is None
    assert next_try(BACKOFF, 6, 55 * SECOND, 0, 1.0, SECOND, limited=6) is None, "it is too old"

"""Retries with exponential backoff and full jitter, bounded in attempts and in time."""

import msgspec

SECOND_US = 1_000_000
DOUBLINGS_MAX = 40


class Backoff(msgspec.Struct, frozen=True, gc=False):
    """The first and the longest pause, and the limits on attempts and on their total time.

    Only the time of retrying counts: a delivery does not age while it waits for a worker, a circuit breaker or the end
    of quiet hours.
    """

    first_us: int = 5 * SECOND_US
    longest_us: int = 3_600 * SECOND_US
    attempts_max: int = 8
    age_us_max: int = 24 * 3_600 * SECOND_US


def pause_us(backoff: Backoff, attempts: int, share: float) -> int:
    """The pause after this many attempts: a random `share`, from 0 to 1, of a pause that doubles each time."""
    assert attempts >= 1, "there must be a first attempt"
    whole = backoff.first_us << min(attempts - 1, DOUBLINGS_MAX)
    return int(min(whole, backoff.longest_us) * share)


def next_try(
    backoff: Backoff,
    attempts: int,
    spent_us: int,
    now: int,
    share: float,
    asked_us: int | None = None,
    *,
    limited: int = 0,
) -> int | None:
    """The time of the next attempt, after `attempts` in `spent_us`; None if the limits are reached.

    `limited` of them were refused by the provider's rate limit. They do not count: only the time does. The pauses grow
    with them nevertheless, also beyond what the provider asked for.

    The pause that a provider asked for (`asked_us`) is respected, and jitter is added to it, so that deliveries with
    the same answer do not all retry at the same instant.
    """
    if attempts - limited >= backoff.attempts_max:
        return None
    pause = pause_us(backoff, attempts, share)
    if asked_us is not None:
        asked_us += min(pause, asked_us // 10)
        pause = max(pause, asked_us) if limited else asked_us
    return now + pause if spent_us + pause <= backoff.age_us_max else None

"""When to try again: exponentially later each time, spread evenly over the whole pause, and not for ever."""

import msgspec

SECOND_US = 1_000_000
DOUBLINGS_MAX = 40


class Backoff(msgspec.Struct, frozen=True, gc=False):
    """The first pause, the longest one, and the bounds on attempts and on how long all of them take.

    What counts is the time of trying: a message that waits for a worker, a breaker or quiet hours does not get older.
    """

    first_us: int = 5 * SECOND_US
    longest_us: int = 3_600 * SECOND_US
    attempts_max: int = 8
    age_us_max: int = 24 * 3_600 * SECOND_US


def pause_us(backoff: Backoff, attempts: int, share: float) -> int:
    """How long to wait after so many attempts: some share, from 0 to 1, of a pause that doubles each time."""
    assert attempts >= 1, "nothing was tried yet"
    whole = backoff.first_us << min(attempts - 1, DOUBLINGS_MAX)
    return int(min(whole, backoff.longest_us) * share)


def next_try(
    backoff: Backoff, attempts: int, spent_us: int, now: int, share: float, asked_us: int | None = None
) -> int | None:
    """The moment of the next attempt, after so many that took so long; None if it is given up.

    What a provider asked for is kept, and the spread comes on top of it: those whom it told the same do not come back
    in the same moment.
    """
    if attempts >= backoff.attempts_max:
        return None
    pause = pause_us(backoff, attempts, share)
    if asked_us is not None:
        pause = asked_us + min(pause, asked_us // 10)
    return now + pause if spent_us + pause <= backoff.age_us_max else None

"""50,000 due webhooks of low priority, and one of high priority every 100 ms: the lateness of the latter."""

import time

from bench.delivery.site import SECOND_US, Crowd, Site, Teller, now_us, opened
from bench.engines import settle
from bench.flows import Lateness, lateness
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note

TITLE = "ms from the due time of a high-priority webhook to the receiver's socket; the limit is an idle system"
LOW = 50_000
IDLE_S = 20.0
EVERY_US = 100_000
TOGETHER = 16  # requests at once, which share commits
REQUESTS_PER_S = 50  # of these, on a slow machine
LOW_PER_S = 1_000  # the high ones go on for as long as the low ones would at this rate
HIGH_PEOPLE = 200
WARM_UP = 500
TIMES, MORE_MS = 1.5, 30  # what it may take beside the low ones: so many times as long, and so much more

BARS = (Bar("beside_low_p99_ms_above", "median", "<=", MORE_MS),)


def run(options: Options) -> Report:
    """Send high-priority webhooks on an idle node, then together with the low-priority ones until those are done."""
    rounds, low = Rounds("deliver_priority"), options.rows(LOW)
    with opened() as site:
        site.fill(site.folder / "people.db", low + HIGH_PEOPLE)
        with site.node(site.folder / "people.db") as teller:
            site.deliver(teller, "webhook", range(low)[:WARM_UP])
            for number in range(1, options.rounds + 1):
                note(f"deliver_priority: round {number} of {options.rounds}")
                settle()
                idle = _idle(site, teller, low, options.seconds(IDLE_S))
                beside, rate = _beside(site, teller, low)
                above = beside.p99_ms - TIMES * idle.p99_ms
                figures = {"beside_low_p50_ms": beside.p50_ms, "beside_low_p99_ms": beside.p99_ms}
                figures |= {"beside_low_p99_ms_above": above, "low": rate, "highs": beside.count}
                rounds.add(figures, {"beside_low_p50_ms": idle.p50_ms, "beside_low_p99_ms": idle.p99_ms})
    return rounds.report()


def _tell_high(teller: Teller, low: int, start: int, count: int) -> list[int]:
    """Request one webhook for every 100 ms from a moment on, in advance; returns the due times."""
    dues = [start + number * EVERY_US for number in range(count)]
    with Crowd(teller.port, TOGETHER) as crowd:
        told = [crowd.tell_one("webhook", low + n % HIGH_PEOPLE, due, "high") for n, due in enumerate(dues)]
        if any(each.result() >= due for each, due in zip(told, dues, strict=True)):
            raise RuntimeError("the machine was too slow to tell the high ones before they were due")
    return dues


def _idle(site: Site, teller: Teller, low: int, seconds: float) -> Lateness:
    count = max(10, round(seconds * SECOND_US / EVERY_US))
    _tell_high(teller, low, now_us() + _ahead_us(count), count)
    site.receiver.wait(count)
    return lateness([mark.at - mark.due for mark in site.receiver.arrivals()])


def _ahead_us(count: int) -> int:
    """The time in which so many single requests are answered, with a margin."""
    return 2 * SECOND_US + count * SECOND_US // REQUESTS_PER_S


def _beside(site: Site, teller: Teller, low: int) -> tuple[Lateness, float]:
    """The lateness of those due while low-priority ones were waiting, and the rate of the low-priority ones."""
    before, count = teller.settled(), max(10, low * SECOND_US // LOW_PER_S // EVERY_US)
    due = site.queue(teller, "webhook", range(low), "low", ahead_us=_ahead_us(count))
    if due is None:
        raise RuntimeError("the machine was too slow to tell the low ones before they were due")
    dues = _tell_high(teller, low, due + EVERY_US, count)
    site.receiver.wait(low + len(dues))
    while teller.settled() - before < low + len(dues):
        time.sleep(0.01)
    arrivals = site.receiver.arrivals()
    lows = [mark for mark in arrivals if mark.urgency == "low"]
    if len(lows) != low or len(arrivals) != low + len(dues):
        raise RuntimeError(f"{len(lows):,} of {low:,} low ones and {len(arrivals) - len(lows)} others arrived")
    last = max(mark.at for mark in lows)
    late = [mark.at - mark.due for mark in arrivals if mark.urgency == "high" and mark.due < last]
    return lateness(late), low / ((last - due) / SECOND_US)

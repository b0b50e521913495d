"""50,000 low-priority webhooks that are due, and a high one every 100 ms: how late these reach the receiver."""

import time

from bench.delivery.site import SECOND_US, Site, Teller, now_us, opened
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
AHEAD_US = 500_000
HIGH_PEOPLE = 200
WARM_UP = 500
TIMES, MORE_MS = 1.5, 50  # what it may take beside the low ones: so many times as long, and so much more

BARS = (Bar("beside_low_p99_ms_above", "median", "<=", MORE_MS),)


def run(options: Options) -> Report:
    """High ones on an idle node, then behind the low ones, until these are through."""
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


class _High:
    """One high-priority message every 100 ms, told a little before it is due."""

    def __init__(self, teller: Teller, low: int, start: int) -> None:
        self._teller = teller
        self._low = low
        self._next = start
        self.sent = 0

    def step(self) -> None:
        """Tell those whose time has come."""
        while self._next - AHEAD_US <= now_us():
            self._teller.tell_one("webhook", self._low + self.sent % HIGH_PEOPLE, self._next, "high")
            self._next += EVERY_US
            self.sent += 1


def _idle(site: Site, teller: Teller, low: int, seconds: float) -> Lateness:
    start = now_us() + 2 * AHEAD_US
    high = _High(teller, low, start)
    while high.sent < max(1, round(seconds * SECOND_US / EVERY_US)):
        high.step()
        time.sleep(0.01)
    site.receiver.wait(high.sent)
    return lateness([mark.at - mark.due for mark in site.receiver.arrivals()])


def _beside(site: Site, teller: Teller, low: int) -> tuple[Lateness, float]:
    """How late those were that were due while low ones still waited; and how many low ones went out in a second."""
    before = teller.settled()
    due = site.queue(teller, "webhook", range(low), "low") or now_us()
    time.sleep(max(0, due - AHEAD_US - now_us()) / SECOND_US)
    high = _High(teller, low, due + EVERY_US)
    while (count := site.receiver.count()) < low:
        high.step()
        time.sleep(0.01)
    site.receiver.wait(max(count, low + high.sent))
    while teller.settled() - before < low + high.sent:
        time.sleep(0.01)
    arrivals = site.receiver.arrivals()
    lows = [mark for mark in arrivals if mark.urgency == "low"]
    if len(lows) != low or len(arrivals) != low + high.sent:
        raise RuntimeError(f"{len(lows):,} of {low:,} low ones and {len(arrivals) - len(lows)} others arrived")
    last = max(mark.at for mark in lows)
    late = [mark.at - mark.due for mark in arrivals if mark.urgency == "high" and mark.due < last]
    return lateness(late), low / ((last - due) / SECOND_US)

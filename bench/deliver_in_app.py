"""50,000 notifications due at one instant, each an entry in a user's inbox."""

import time

from bench.delivery.content import Took
from bench.delivery.site import SECOND_US, STILL_S, Site, Teller, now_us, opened
from bench.options import Options
from bench.processes import cpu_s
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note

TITLE = "50,000 due in-app messages, rendered and written to inboxes, a second"
COUNT = 50_000
WARM_UP = 500
ATTEMPTS = 4
LOOK_S = 0.05  # between two looks at the metrics, which take time of the node

BARS = (Bar("deliver_in_app", "median", ">=", 10_000),)


def run(options: Options) -> Report:
    """From the due time until every delivery is stored as sent."""
    rounds, people = Rounds("deliver_in_app"), range(options.rows(COUNT))
    with opened() as site:
        site.fill(site.folder / "people.db", len(people))
        with site.node(site.folder / "people.db") as teller:
            _deliver(site, teller, people[:WARM_UP])
            for number in range(1, options.rounds + 1):
                note(f"deliver_in_app: round {number} of {options.rounds}")
                took = _deliver(site, teller, people)
                rounds.add({"deliver_in_app": took.per_s, "cpu_us": took.cpu_us})
    return rounds.report()


def _deliver(site: Site, teller: Teller, people: range) -> Took:
    for _ in range(ATTEMPTS):
        before = teller.settled()
        due = site.queue(teller, "in_app", people, "normal")
        cpu_before, still_at, seen = cpu_s(teller.process), time.monotonic(), 0
        while (now := teller.settled() - before) < len(people):
            if now > seen:
                seen, still_at = now, time.monotonic()
            if time.monotonic() - still_at > STILL_S:
                raise TimeoutError(f"{now:,} of {len(people):,} were delivered, and no other one for {STILL_S:g} s")
            time.sleep(LOOK_S)
        settled, spent_s = now_us(), cpu_s(teller.process) - cpu_before
        if due is not None:
            return Took(len(people) / ((settled - due) / SECOND_US), spent_s / len(people) * SECOND_US)
        note("deliver_in_app: the machine was too slow to schedule all in time, once more")
    raise RuntimeError(f"{len(people):,} could not be scheduled before they were due, {ATTEMPTS} times")

"""The work of `deliver_webhook` with 1,000,000 users stored, of whom some are notified, and with only these."""

import random

from bench.deliver_webhook import COUNT, WARM_UP
from bench.delivery.site import opened
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note

TITLE = "20,000 due webhooks a second with 1,000,000 users stored (--pending says how many); the limit is with 20,000"
MANY = 1_000_000
WITHIN = 1.2

BARS = (Bar("users", "ratio", ">=", round(1 / WITHIN, 3)),)


def run(options: Options) -> Report:
    """Few and many in every round, on a node each."""
    rounds, count = Rounds("users"), options.rows(COUNT)
    stored = {"few": count, "many": max(count, options.backlog(MANY))}
    with opened() as site:
        for name, people in stored.items():
            note(f"users: {people:,} people are stored")
            site.fill(site.folder / f"{name}.db", people)
        for number in range(1, options.rounds + 1):
            note(f"users: round {number} of {options.rounds}")
            rates = {}
            for name, people in stored.items():
                notified = random.Random(number).sample(range(people), count)
                with site.node(site.folder / f"{name}.db") as teller:
                    site.deliver(teller, "webhook", notified[:WARM_UP])
                    rates[name] = site.deliver(teller, "webhook", notified).per_s
            rounds.add({"users": rates["many"]}, {"users": rates["few"]}, {"users": rates["many"] / rates["few"]})
    return rounds.report()

"""`python -m tests.sim --seeds 10000`: runs many simulations and prints the counts."""

import argparse
import sys

from tests.sim.simulated_node import KINDS, Tally
from tests.sim.simulation import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--store", choices=KINDS, help="`power` is SQLite on a disk that loses power; without it all")
    options = parser.parse_args()
    for kind in (options.store,) if options.store else KINDS:
        total = Tally()
        for seed in range(options.first, options.first + options.seeds):
            total.add(simulate(kind, seed))
        print(kind, report(total))
    return 0


def report(tally: Tally) -> str:
    points = ", ".join(f"{point} {hits}" for point, hits in sorted(tally.points.items()) if hits)
    return (
        f"{tally.seeds} seeds, {tally.commands} commands, {tally.released} released, {tally.missed} missed, "
        f"{tally.steps} clock steps, {tally.crashes} crashes ({points or 'none at points'}), {tally.zombies} zombies, "
        f"{tally.faults} failed operations of the disk"
    )


if __name__ == "__main__":
    sys.exit(main())

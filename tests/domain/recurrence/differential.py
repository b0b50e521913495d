"""`python -m tests.domain.recurrence.differential --rules 1000000`: compare random rules with other implementations.

It runs on all cores. Every difference is printed with its number; the same seed with `--only` and that number shows it
again.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable
from multiprocessing import Pool
from typing import NamedTuple

from tests.domain.recurrence.cases import Case, case
from tests.domain.recurrence.text_api import shown

PIECE = 500
PROGRESS_PIECES = 20  # pieces between two lines of progress


class Tally(NamedTuple):
    """By implementation: how many rules were compared, and how many had no occurrence; and the differences."""

    compared: Counter[str]
    empty: Counter[str]
    differences: list[str]


def tally(seed: int, numbers: Iterable[int]) -> Tally:
    """Compare the cases with these numbers."""
    found = Tally(Counter(), Counter(), [])
    for number in numbers:
        asked = case(seed, number)
        found.compared[asked.oracle] += 1
        found.empty[asked.oracle] += not asked.theirs
        if asked.ours != asked.theirs:
            found.differences.append(f"seed {seed} number {number}: {first_difference(asked)}")
    return found


def first_difference(asked: Case) -> str:
    """The first difference of a case, in a line."""
    first = next((pair for pair in zip(asked.ours, asked.theirs, strict=False) if pair[0] != pair[1]), None)
    sizes = f"ours {len(asked.ours)}, theirs {len(asked.theirs)}"
    return f"{asked.what} ({asked.oracle}): {sizes}, first {first}"


def tally_piece(asked: tuple[int, int, int]) -> Tally:
    """The cases of a seed from one number up to another."""
    seed, begin, end = asked
    return tally(seed, range(begin, end))


def on_all_cores(rules: int, seed: int, processes: int) -> Tally:
    """Compare this many rules, and print the progress."""
    whole = Tally(Counter(), Counter(), [])
    pieces = [(seed, begin, min(begin + PIECE, rules)) for begin in range(0, rules, PIECE)]
    with Pool(processes) as pool:
        for place, found in enumerate(pool.imap_unordered(tally_piece, pieces), start=1):
            whole.compared.update(found.compared)
            whole.empty.update(found.empty)
            whole.differences.extend(found.differences)
            if place % PROGRESS_PIECES == 0:
                done, differing = sum(whole.compared.values()), len(whole.differences)
                print(f"{done:,} rules, {differing} differences", file=sys.stderr, flush=True)
    return whole


def show(asked: Case) -> None:
    """Print the differences of one case."""
    print(first_difference(asked))
    for at in sorted(set(asked.ours) ^ set(asked.theirs)):
        print(f"  only {'ours' if at in asked.ours else 'theirs'}: {shown(at)}")


def main() -> int:
    """Print what was compared and every difference; the exit code is 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="show the case with this number, and no other")
    chosen = parser.parse_args()
    if chosen.only is not None:
        asked = case(chosen.seed, chosen.only)
        show(asked)
        return int(asked.ours != asked.theirs)
    found = on_all_cores(chosen.rules, chosen.seed, chosen.processes)
    for oracle, rules in sorted(found.compared.items()):
        name = f"compared with {oracle}" if oracle else "left out, as documented"
        print(f"{rules:>9,} {name}" + (f", {found.empty[oracle]:,} of them without an occurrence" if oracle else ""))
    print("\n".join(found.differences))
    print(f"{chosen.rules:,} rules from seed {chosen.seed}, {len(found.differences)} differences")
    return int(bool(found.differences))


if __name__ == "__main__":
    sys.exit(main())

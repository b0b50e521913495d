"""`python -m bench.cpu_against COMMIT [--pairs N] [--save]`: CPU a record of this tree beside that of another commit.

Both trees run the same work in turns, each in a new process, and the order changes with every pair. CPU time of the
whole process (all threads) is compared instead of rates: it is far less sensitive to other load on the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.report import RESULTS
from bench.screen import note

ROOT = Path(__file__).parent.parent
BAR = 1.05

# Runs in either tree: it uses only what the benchmarks of both have. Prints microseconds of CPU a record by figure.
WORK = """
import json, sys, time
from pathlib import Path
from bench import burst, intake
from bench.engines import engine_on, run, send, settle, workspace
from bench.options import Options

ROWS = int(sys.argv[1])


def cpu_us():
    return time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID) / 1_000


async def intake_us(path, with_ids):
    batches = intake._prepare(Options(scale=ROWS / intake.ROWS), with_ids=with_ids)
    async with engine_on(path) as engine:
        await send(engine, batches[: intake.WARM_UP])
        settle()
        before = cpu_us()
        took = await send(engine, batches[intake.WARM_UP :])
        return (cpu_us() - before) / took.rows


async def burst_us(path):
    spent = []
    plain = burst.read

    async def timed(engine, rows, topic):
        before = cpu_us()
        answer = await plain(engine, rows, topic)
        spent.append((cpu_us() - before) / rows)
        return answer

    burst.read = timed
    await burst.burst_on(path, ROWS, burst.Pace(), "burst")
    return spent[-1]


async def main(folder):
    figures = {}
    figures["intake_made_ids"] = await intake_us(folder / "made.db", False)
    figures["intake_callers_ids"] = await intake_us(folder / "ids.db", True)
    figures["burst"] = await burst_us(folder / "burst.db")
    return figures


with workspace() as folder:
    print(json.dumps(run(main(folder))))
"""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """CPU microseconds a record of both trees, pair by pair, and the median of their ratios."""

    command: str
    commit: str
    against: str
    rows: int
    here_us: dict[str, list[float]]
    there_us: dict[str, list[float]]
    ratio: dict[str, float]
    spread: dict[str, list[float]]
    bar: float = BAR


def main(arguments: list[str]) -> int:
    """Compare, print the ratios, and keep them if asked to."""
    parser = argparse.ArgumentParser("python -m bench.cpu_against", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--save", action="store_true", help="keep the result in bench/results")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidings-bench-") as folder:
        other = Path(folder, "tree")
        _git("worktree", "add", "--quiet", "--detach", str(other), chosen.commit)
        try:
            comparison = _compare(other, chosen, "python -m bench.cpu_against " + " ".join(arguments))
        finally:
            _git("worktree", "remove", "--force", str(other))
    for name, ratio in comparison.ratio.items():
        low, high = comparison.spread[name]
        print(f"{name:20} median ratio {ratio:.3f} (pairs {low:.2f} to {high:.2f}), to reach <= {BAR}")
    if chosen.save:
        path = RESULTS / "cpu_against.json"
        path.write_text(json.dumps(msgspec.to_builtins(comparison), indent=1) + "\n")
        note(f"saved as {path.relative_to(ROOT)}")
    return 0


def _compare(other: Path, chosen: argparse.Namespace, command: str) -> Comparison:
    here: dict[str, list[float]] = {}
    there: dict[str, list[float]] = {}
    for number in range(chosen.pairs):
        note(f"cpu_against: pair {number + 1} of {chosen.pairs}")
        sides = [(ROOT, here), (other, there)]
        for tree, figures in sides if number % 2 else reversed(sides):
            for name, spent_us in _run(tree, chosen.rows).items():
                figures.setdefault(name, []).append(round(spent_us, 3))
    ratios = {name: [mine / its for mine, its in zip(here[name], there[name], strict=True)] for name in here}
    return Comparison(
        command=command,
        commit=_git("rev-parse", "--short", "HEAD"),
        against=_git("rev-parse", "--short", chosen.commit),
        rows=chosen.rows,
        here_us=here,
        there_us=there,
        ratio={name: round(statistics.median(of), 3) for name, of in ratios.items()},
        spread={name: [round(min(of), 3), round(max(of), 3)] for name, of in ratios.items()},
    )


def _run(tree: Path, rows: int) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}"}
    printed = subprocess.run(
        [sys.executable, "-c", WORK, str(rows)],
        cwd=tree,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return msgspec.json.decode(printed.splitlines()[-1], type=dict[str, float])


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

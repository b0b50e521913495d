"""APScheduler, huey and Celery on the same work as Tidings: intake, burst and lateness."""

from importlib.util import find_spec
from pathlib import Path

import msgspec

from bench.engines import settle, workspace
from bench.options import Options
from bench.processes import answer_of, child
from bench.report import Bar, Report
from bench.rivals import redis_server
from bench.rounds import Rounds
from bench.screen import note

TITLE = "one-shots a second, lateness in ms; a ratio above 1: Tidings is ahead"
COUNT = 2_000
RATE = 50
SECONDS = 10.0

MODULES = {"apscheduler": "apscheduler3", "huey": "huey_sqlite", "celery": "celery_redis"}
NEEDS = {"apscheduler": ("apscheduler", "sqlalchemy"), "huey": ("huey",), "celery": ("celery", "redis")}
WORKS = ("intake", "burst", "late_p50", "late_p99")

BARS = tuple(Bar(f"{peer}_{work}", "ratio", ">", 1) for peer in MODULES for work in WORKS)


def run(options: Options) -> Report:
    """Measure Tidings and every installed peer, one after the other in every round."""
    rounds = Rounds("peers")
    there = [peer for peer in MODULES if _is_there(peer)]
    for number in range(1, options.rounds + 1):
        note(f"peers: round {number} of {options.rounds}")
        ours = _measure("ourselves", options)
        rounds.add({f"tidings_{work}": value for work, value in ours.items()})
        for peer in there:
            theirs = _measure(MODULES[peer], options)
            rounds.put(
                {f"{peer}_{work}": theirs[work] for work in WORKS},
                None,
                {f"{peer}_{work}": _ahead(work, ours[work], theirs[work]) for work in WORKS},
            )
    return rounds.report()


def _is_there(peer: str) -> bool:
    if any(find_spec(name) is None for name in NEEDS[peer]):
        note(f"peers: {peer} is not installed, left out (`make bench` installs it)")
        return False
    if peer == "celery" and redis_server.program() is None:
        note("peers: there is no redis-server on this machine, celery is left out")
        return False
    return True


def _measure(module: str, options: Options) -> dict[str, float]:
    """One scheduler, in a process and a folder of its own."""
    settle()
    with workspace() as folder:
        sizes = (str(options.rows(COUNT)), str(RATE), str(options.seconds(SECONDS)))
        with child("-m", "bench.rivals", module, str(Path(folder)), *sizes) as process:
            found = msgspec.convert(answer_of(process), _Found)
    figures = {"intake": found.intake, "burst": found.burst, "late_p50": found.late.p50_ms}
    figures["late_p99"] = found.late.p99_ms
    return figures if found.intake_many is None else figures | {"intake_many": found.intake_many}


class _Late(msgspec.Struct):
    p50_ms: float
    p99_ms: float


class _Found(msgspec.Struct):
    intake: float
    burst: float
    late: _Late
    intake_many: float | None = None


def _ahead(work: str, ours: float, theirs: float) -> float:
    """How many times as good we are: more a second, or fewer milliseconds."""
    return theirs / ours if work.startswith("late") else ours / theirs

"""200 and 500 webhooks a second for a minute, due at random moments: from the due time to the receiver's socket."""

import time
from concurrent.futures import Future

import msgspec

from bench.delivery.site import SECOND_US, Crowd, Site, Teller, now_us, opened
from bench.engines import settle
from bench.flows import Flow, Lateness, lateness
from bench.options import Options
from bench.processes import answer_of, child, cpu_s
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note

TITLE = "ms from the due time to the receiver's socket at 200/s and 500/s; the limit is a bare timer loop beside it"
RATES = (200, 500)
SECONDS = 60.0
PEOPLE = 20_000
WARM_UP = 500
BEGIN_US = 5_000_000  # until the first is due: the timer loop has started by then
EARLIER_US = 2_000_000  # than a flow is sent otherwise: each is a request of its own here, with two commits
TOGETHER = 16  # requests at once, which share commits

BARS = (
    *(Bar(f"p50_ms_{rate}", "median", "<=", 8) for rate in RATES),
    *(Bar(f"p99_ms_{rate}", "median", "<=", 40) for rate in RATES),
    *(Bar(f"early_{rate}", "median", "<=", 0) for rate in RATES),
    *(Bar(f"told_late_{rate}", "median", "<=", 0) for rate in RATES),
    Bar("core_percent_200", "median", "<=", 35),
)


def run(options: Options) -> Report:
    """Measure the flow, with a bare timer loop beside it."""
    rounds, people = Rounds("deliver_latency"), options.rows(PEOPLE)
    with opened() as site:
        site.fill(site.folder / "people.db", people)
        with site.node(site.folder / "people.db") as teller:
            site.deliver(teller, "webhook", range(people)[:WARM_UP])
            for number in range(1, options.rounds + 1):
                note(f"deliver_latency: round {number} of {options.rounds}")
                figures: dict[str, float] = {}
                limits: dict[str, float] = {}
                for rate in RATES:
                    settle()
                    spent_s = cpu_s(teller.process)
                    ours, late, timer = flow(site, teller, people, rate, options.seconds(SECONDS))
                    core = 100 * (cpu_s(teller.process) - spent_s) / options.seconds(SECONDS)
                    found = msgspec.structs.asdict(ours) | {"told_late": late, "core_percent": core}
                    figures |= {f"{name}_{rate}": value for name, value in found.items()}
                    limits |= {f"{name}_{rate}": getattr(timer, name) for name in ("p50_ms", "p99_ms", "p999_ms")}
                rounds.add(figures, limits)
    return rounds.report()


def flow(site: Site, teller: Teller, people: int, rate: int, seconds: float) -> tuple[Lateness, int, Lateness]:
    """Our lateness, how many requests were accepted only after their due time, and the lateness of the timer loop."""
    steady = Flow(rate, now_us() + BEGIN_US, seconds, "")
    told_at: list[Future[int]] = []
    dues: list[int] = []
    with (
        child("-m", "bench.timer", str(rate), str(steady.start), str(seconds)) as timer,
        Crowd(teller.port, TOGETHER) as crowd,
    ):
        for at, moments in steady.steps():
            time.sleep(max(0, at - EARLIER_US - now_us()) / SECOND_US)
            for due in moments:
                told_at.append(crowd.tell_one("webhook", len(dues) % people, due))
                dues.append(due)
        late = sum(told.result() >= due for told, due in zip(told_at, dues, strict=True))
        bare = msgspec.convert(answer_of(timer), Lateness)
    site.receiver.wait(len(dues))
    arrivals = site.receiver.arrivals()
    if len({(mark.number, mark.due) for mark in arrivals}) != len(dues) or len(arrivals) != len(dues):
        raise RuntimeError(f"{len(arrivals):,} arrived, {len(dues):,} were requested")
    return lateness([mark.at - mark.due for mark in arrivals]), late, bare

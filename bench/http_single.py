"""Single POSTs over 64 connections, each answer durable, beside the same server with nothing behind it."""

from bench.engines import settle, workspace
from bench.options import Options
from bench.processes import Server, answer_of, answering, child, node
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note

TITLE = "single POSTs over 64 connections; the limit is the same server answering without the engine"
CONNECTIONS = 64
SECONDS = 4.0

BARS = (Bar("per_s", "ratio", ">=", 0.5),)


def run(options: Options) -> Report:
    """Both servers in every round, one after the other."""
    rounds = Rounds("http_single")
    seconds = options.seconds(SECONDS)
    with workspace() as folder, node(folder / "single.db") as whole, answering(folder) as bare:
        for number in range(1, options.rounds + 1):
            note(f"http_single: round {number} of {options.rounds}")
            settle()
            limit = _load(bare, seconds)
            ours = _load(whole, seconds)
            rounds.add(ours, limit, {name: ours[name] / limit[name] for name in limit})
    return rounds.report()


def _load(server: Server, seconds: float) -> dict[str, float]:
    """What a client in a process of its own measures."""
    with child("-m", "bench.http_client", str(server.port), str(CONNECTIONS), str(seconds)) as client:
        figures: dict[str, float] = answer_of(client)
        return figures

"""HTTP clients side by side: 20,000 small POSTs over 64 connections to a receiver on loopback, without and with TLS.

Those that are not installed are left out: `bench/delivery/http_posts.py` says how to add them.
"""

from pathlib import Path

from bench.delivery.content import Took
from bench.delivery.http_posts import CLIENTS
from bench.engines import workspace
from bench.options import Options
from bench.processes import HOST, answer_of, child, free_port
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tests.providers.servers.authority import Authority

TITLE = "20,000 POSTs over 64 connections by each HTTP client that is installed; the limit is bare aiohttp"
COUNT = 20_000
CONNECTIONS = 64
PLAIN, TLS = "", "_tls"
YARDSTICK = "aiohttp"

BARS = (Bar("tidings", "ratio", ">=", 3.0), Bar("tidings_tls", "ratio", ">=", 1.5))


def run(options: Options) -> Report:
    """Each client in every round, in a process of its own."""
    rounds, count = Rounds("http_clients"), options.rows(COUNT)
    with workspace() as folder:
        authority = Authority.make(folder)
        for number in range(1, options.rounds + 1):
            note(f"http_clients: round {number} of {options.rounds}")
            took = {
                name + kind: found
                for kind in (PLAIN, TLS)
                for name in CLIENTS
                if (found := _measure(name, kind, count, authority)) is not None
            }
            figures = {name: each.per_s for name, each in took.items()}
            figures |= {f"{name}_cpu_us": each.cpu_us for name, each in took.items()}
            bare = {name: took[YARDSTICK + (TLS if name.endswith(TLS) else PLAIN)].per_s for name in took}
            rounds.add(figures, bare, {name: took[name].per_s / bare[name] for name in took})
    return rounds.report()


def _measure(name: str, kind: str, count: int, authority: Authority) -> Took | None:
    port, other = free_port(), free_port()
    secret = [str(authority.server)] if kind else []
    with child("-m", "bench.delivery.receiver", str(port), str(other), *secret) as receiver:
        answer_of(receiver)
        url = f"{'https' if kind else 'http'}://{HOST}:{port}/hooks/in"
        arguments = [name, url, str(count), str(CONNECTIONS), str(Path(authority.ca))]
        with child("-m", "bench.delivery.http_posts", *arguments) as client:
            try:
                answer = answer_of(client)
            except RuntimeError:
                note(f"http_clients: {name}{kind} failed, as its own lines above say")
                return None
            return None if answer is None else Took(*answer)

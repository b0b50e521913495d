"""20,000 notifications due at one instant, each a signed webhook from a template, to a server on loopback."""

from bench.delivery.site import opened
from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.domain.notifications.message import ChannelName

TITLE = "20,000 due webhooks, rendered, looked up and written down, a second; the limit is bare aiohttp"
COUNT = 20_000
WARM_UP = 500
SHOWN_US = 1.0  # of a thread, for each message

BARS = (Bar("deliver_webhook", "ratio", ">=", 0.8),)


def run(options: Options) -> Report:
    """Measure the node and the bare client in every round."""
    return measure("deliver_webhook", "webhook", options)


def measure(name: str, channel: ChannelName, options: Options) -> Report:
    """The same for any channel of the receiver."""
    rounds, people = Rounds(name), range(options.rows(COUNT))
    with opened() as site:
        site.fill(site.folder / "people.db", len(people))
        with site.node(site.folder / "people.db") as teller:
            site.deliver(teller, channel, people[:WARM_UP])
            for number in range(1, options.rounds + 1):
                note(f"{name}: round {number} of {options.rounds}")
                ours, bare = site.deliver(teller, channel, people), site.bare(channel, len(people))
                figures = {name: ours.per_s, "cpu_us": ours.cpu_us}
                limits = {name: bare.per_s, "cpu_us": bare.cpu_us}
                rounds.add(figures, limits, divided(figures, limits))
                rounds.put(
                    {f"cpu_us_{thread}": spent for thread, spent in ours.by_thread_us.items() if spent >= SHOWN_US}
                )
    return rounds.report()

"""A worker of a peer on PostgreSQL, in a process of its own: `python -m bench.rivals.worker MODULE DSN`.

Says `ready`, and at its end, which comes with SIGTERM, how many it ran and when the last one.
"""

import asyncio
import importlib
import logging
import signal
import sys

from bench.engines import run
from bench.processes import say


async def main(module: str, dsn: str) -> None:
    """Work until stopped."""
    logging.disable(logging.WARNING)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    ran: list[int] = []
    async with importlib.import_module(f"bench.rivals.{module}").Peer(dsn) as peer:
        working = asyncio.create_task(peer.work(ran, stop))
        say("ready")
        await working
    say({"rows": len(ran), "last": max(ran, default=0)})


if __name__ == "__main__":
    run(main(sys.argv[1], sys.argv[2]))

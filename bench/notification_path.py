"""The source files that one notification passes through on a live node, from its POST to its webhook and receipt."""

import asyncio
import sqlite3
import time
from functools import partial
from pathlib import Path

import msgspec

from bench.code_path import Tracer, post, traced
from bench.delivery.content import user_id
from bench.delivery.site import SECRET, Site, Teller, ask_for, now_us, opened
from bench.options import Options
from bench.processes import HOST
from bench.report import Bar, Report
from bench.rounds import Rounds
from bench.screen import note
from tidings.config.load import load
from tidings.domain.secret import Secret, read_key, sign
from tidings.node.serve import serve_node

TITLE = "source files that one notification passes through, from POST /v1/notifications to its webhook and its receipt"
BARS = (Bar("files", "median", "<=", 45), Bar("changes", "median", "<=", 110))
POLL_S = 0.005
WAIT_S = 30.0


def run(options: Options) -> Report:
    """Each round is a new node that has already sent one notification, and got its receipt."""
    rounds = Rounds("notification_path")
    for number in range(1, options.rounds + 1):
        note(f"notification_path: round {number} of {options.rounds}")
        with opened() as site:
            site.fill(site.folder / "path.db", 1)
            rounds.add(traced(partial(_serve, site)))
    return rounds.report()


async def _serve(site: Site, tracer: Tracer) -> None:
    """Run a node in this process until one notification was traced."""
    path, stop = site.folder / "path.db", asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    flags = {"store.path": ("--store", str(path)), "server.port": ("--port", "0")}
    config = load(str(site.settings()), {}, flags).config
    node = asyncio.create_task(serve_node(config, stop, ready.set_result))
    try:
        port = int((await ready).rpartition(":")[2])
        await asyncio.to_thread(_put_template, port)
        await _notify(path, port, "first")
        tracer.visited.clear()
        tracer.is_on = True
        await _notify(path, port, "traced")
        tracer.is_on = False
    finally:
        stop.set()
        await node


def _put_template(port: int) -> None:
    teller = Teller(port, 0)
    teller.put_template()
    teller.close()


async def _notify(path: Path, port: int, name: str) -> None:
    """Send a notification, wait until it is stored as sent, then deliver the receipt of its recipient."""
    body = ask_for("webhook", now_us(), "normal") | {"id": name, "user": user_id(0)}
    await post(HOST, port, "/v1/notifications", msgspec.json.encode(body))
    await asyncio.to_thread(_wait, path, name, "sent")
    receipt = msgspec.json.encode({"state": "delivered", "message": f"{name}/1"})
    signed = sign([read_key(Secret(SECRET), "secret")], f"receipt-{name}", int(time.time()), receipt)
    await post(HOST, port, "/receipts/webhook/default", receipt, **signed)
    await asyncio.to_thread(_wait, path, name, "delivered")


def _wait(path: Path, name: str, state: str) -> None:
    """Wait for a state, asked for with plain SQL, so that nothing of ours is traced meanwhile."""
    give_up_at = time.monotonic() + WAIT_S
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        while time.monotonic() < give_up_at:
            found = connection.execute("SELECT state FROM delivery WHERE name = ?", (f"{name}/1",)).fetchall()
            if found == [(state,)]:
                return
            time.sleep(POLL_S)
    raise TimeoutError(f"{name}/1 was not {state} after {WAIT_S:g} s")

"""Suspends a process at a time when it holds no lock."""

import asyncio
import contextlib
import signal
from typing import Protocol

import apsw


class Stoppable(Protocol):
    """A process that takes signals."""

    def send(self, number: signal.Signals) -> None: ...


async def stop_between_transactions(node: Stoppable, store: str) -> None:
    """SIGSTOP at a moment when it holds no lock: one that sleeps inside of a transaction keeps everyone out."""
    with contextlib.closing(apsw.Connection(store)) as connection:
        for _ in range(1000):
            node.send(signal.SIGSTOP)
            await asyncio.sleep(0.005)
            try:
                connection.execute("BEGIN IMMEDIATE")
            except apsw.BusyError:
                node.send(signal.SIGCONT)
                await asyncio.sleep(0.01)
            else:
                connection.execute("ROLLBACK")
                return
    raise AssertionError("never between two transactions")

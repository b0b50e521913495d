"""The interface of every compared scheduler: accept one-shots, run them, report when each ran."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bench.flows import AHEAD_US, PATIENCE_S, Flow, Lateness, lateness
from bench.requests import SPAN_US

POLL_S = 0.02
RUN_S_MAX = 300.0

_SECOND_US = 1_000_000

Ran = list[tuple[int, int]]  # when it was due, when it ran: microseconds since the epoch


class Rival(Protocol):
    """A scheduler at work in this process, or with workers of its own."""

    def __init__(self, folder: Path) -> None: ...

    def start(self) -> None: ...

    def schedule(self, due: int) -> None:
        """Take a one-shot with a body of 200 bytes and two headers, durably."""
        ...

    def ran(self) -> Ran:
        """What has run so far."""
        ...

    def stop(self) -> None: ...


def now() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1_000


def intake(rival: Rival, count: int) -> float:
    """One-shots a second, due at random over 30 days, one after the other."""
    moments = [now() + AHEAD_US + random.randrange(SPAN_US) for _ in range(count)]
    started = time.perf_counter()
    for due in moments:
        rival.schedule(due)
    return count / (time.perf_counter() - started)


def burst(rival: Rival, count: int, intake_per_s: float) -> float:
    """One-shots a second, from the instant at which all are due until the last has run."""
    due = now() + round((2 + 2 * count / intake_per_s) * _SECOND_US)
    for _ in range(count):
        rival.schedule(due)
    if now() > due:
        raise RuntimeError("it was too slow to schedule the burst before it was due")
    until(lambda: _ran(rival, due, due) >= count, (due - now()) / _SECOND_US + RUN_S_MAX)
    return count / ((max(ran for at, ran in rival.ran() if at == due) - due) / _SECOND_US)


def flow(rival: Rival, rate: int, seconds: float) -> Lateness:
    """How late a steady flow runs that is scheduled ahead while it goes on."""
    steady = Flow(rate, now() + 2 * _SECOND_US, seconds, "flow")
    sent: set[int] = set()
    for at, moments in steady.steps():
        time.sleep(max(0, at - now()) / _SECOND_US)
        for due in moments:
            rival.schedule(due)
            sent.add(due)
    patience = (steady.end - now()) / _SECOND_US + PATIENCE_S
    until(lambda: len({at for at, _ in rival.ran()} & sent) >= len(sent), patience)
    return lateness([ran - at for at, ran in rival.ran() if at in sent])


def until(condition: Callable[[], bool], patience_s: float) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("not everything has run in time")
        time.sleep(POLL_S)


def _ran(rival: Rival, first: int, last: int) -> int:
    return sum(first <= due <= last for due, _ in rival.ran())

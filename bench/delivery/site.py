"""A receiver in a process of its own, and nodes that send notifications, as `tidings serve` does."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from bench.delivery.content import CATEGORY, NAME, PARTS, SENDER, Mark, Took, person, user_id, variables
from bench.engines import run as run_loop
from bench.engines import settle, workspace
from bench.processes import HOST, answer_of, child, cpu_by_thread_s, cpu_s, free_port, node
from bench.requests import TENANT
from bench.screen import note
from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.settings import Store
from tidings.delivery.rows import change, user_put
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Priority
from tidings.domain.schedules.iso8601 import format_instant
from tidings.node import open_store

BATCH = 1_000
SHOWN = 100_000
LEASE_US = 3_600_000_000
SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
POLL_S = 0.01
KEPT_S = 2.0
STILL_S = 60.0  # without a single arrival in this time, something is wrong
ATTEMPTS = 4
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

_SENT = re.compile(r'^tidings_deliveries_total\{.*state="sent".*\} (\d+)', re.MULTILINE)


class Wire:
    """One connection that is kept, but not for longer than a server keeps it; JSON in and out."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=120)
        self._used_at = time.monotonic()

    def ask(self, method: str, path: str, document: object = None) -> bytes:
        """The body of a successful answer."""
        body = None if document is None else msgspec.json.encode(document)
        return self.send(method, path, body, "application/json")

    def send(self, method: str, path: str, body: bytes | None, kind: str) -> bytes:
        """The body of the answer to a body of this kind."""
        if time.monotonic() - self._used_at > KEPT_S:
            self._connection.close()  # the request opens it anew
        self._connection.request(method, path, body, {"Content-Type": kind})
        answer = self._connection.getresponse()
        body_read = answer.read()
        self._used_at = time.monotonic()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered {answer.status}: {body_read[:1_000]!r}")
        return body_read

    def close(self) -> None:
        self._connection.close()


class Receiver:
    """The receiver process, which knows what arrived and when."""

    def __init__(self, http_port: int, smtp_port: int) -> None:
        self.http_port = http_port
        self.smtp_port = smtp_port
        self._wire = Wire(http_port)

    def port(self, channel: ChannelName) -> int:
        return self.http_port if channel == "webhook" else self.smtp_port

    def count(self) -> int:
        """How many have arrived."""
        return int(self._wire.ask("GET", "/count"))

    def arrivals(self) -> list[Mark]:
        """All that arrived since the last time."""
        return msgspec.json.decode(self._wire.ask("GET", "/arrivals"), type=list[Mark])

    def wait(self, count: int) -> None:
        """Wait until so many have arrived."""
        seen, still_at = 0, time.monotonic()
        while (now := self.count()) < count:
            if now > seen:
                seen, still_at = now, time.monotonic()
            if time.monotonic() - still_at > STILL_S:
                raise TimeoutError(f"{now:,} of {count:,} arrived, and no other one for {STILL_S:g} s")
            time.sleep(POLL_S)

    def close(self) -> None:
        self._wire.close()


class Teller:
    """A client of a node."""

    def __init__(self, port: int, process: int) -> None:
        self.port = port
        self.process = process
        self._wire = Wire(port)

    def put_template(self) -> None:
        self._wire.ask("PUT", f"/v1/templates/{NAME}", {"parts": msgspec.to_builtins(PARTS)})

    def tell(self, channel: ChannelName, people: Sequence[int], due: int, urgency: Priority = "normal") -> None:
        """Request notifications for these users at a moment, a batch a request."""
        for start in range(0, len(people), BATCH):
            some = [user_id(number) for number in people[start : start + BATCH]]
            ask = ask_for(channel, due, urgency)
            answer = self._wire.ask("POST", "/v1/notifications", ask | {"users": some})
            count = answer.count(b'"outcome":"scheduled"')
            if count != len(some):
                raise RuntimeError(f"{count} of {len(some)} were scheduled: {answer[:1_000]!r}")

    def tell_one(self, channel: ChannelName, number: int, due: int, urgency: Priority = "normal") -> None:
        """Request a notification for one user."""
        self._wire.ask("POST", "/v1/notifications", ask_for(channel, due, urgency) | {"user": user_id(number)})

    def post_lines(self, path: str, body: bytes) -> bytes:
        """The answer to a request as NDJSON."""
        return self._wire.send("POST", path, body, "application/x-ndjson")

    def settled(self) -> int:
        """The number of deliveries in the state `sent`."""
        return sum(int(found) for found in _SENT.findall(self._wire.ask("GET", "/metrics").decode()))

    def close(self) -> None:
        self._wire.close()


class Crowd:
    """Several clients of a node that send requests concurrently."""

    def __init__(self, port: int, size: int) -> None:
        self._pool = ThreadPoolExecutor(size)
        self._idle: SimpleQueue[Teller] = SimpleQueue()
        for _ in range(size):
            self._idle.put(Teller(port, 0))

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        while not self._idle.empty():
            self._idle.get().close()

    def tell_one(self, channel: ChannelName, number: int, due: int, urgency: Priority = "normal") -> "Future[int]":
        """Request a notification for one user; returns when it was accepted."""
        return self._pool.submit(self._tell, channel, number, due, urgency)

    def _tell(self, channel: ChannelName, number: int, due: int, urgency: Priority) -> int:
        teller = self._idle.get()
        try:
            teller.tell_one(channel, number, due, urgency)
            return now_us()
        finally:
            self._idle.put(teller)


class Site:
    """A folder and a receiver for a whole benchmark."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        self.folder = folder
        self.receiver = receiver
        self._rows_per_s = 1_000.0

    @contextlib.contextmanager
    def node(self, store: Path) -> Iterator[Teller]:
        """`tidings serve` on a store, with the template in it."""
        with node(store, "--config", str(self.settings())) as server:
            teller = Teller(server.port, server.process)
            try:
                teller.put_template()
                yield teller
            finally:
                teller.close()

    def settings(self) -> Path:
        """The settings of a node: only the receiver may be called; everything else has its default."""
        (self.folder / "secret").write_text(SECRET)
        path = self.folder / "tidings.toml"
        path.write_text(
            f"""
[channels.webhook]
secret = {{file = "{self.folder / "secret"}"}}
receipts = {{secret = {{file = "{self.folder / "secret"}"}}}}
ports = [{self.receiver.http_port}]
plain_http = true
allowed_networks = ["{HOST}/32"]

[channels.smtp]
host = "{HOST}"
port = {self.receiver.smtp_port}
security = "none"
sender = "{SENDER}"
"""
        )
        return path

    def deliver(self, teller: Teller, channel: ChannelName, people: Sequence[int]) -> Took:
        """The time from the due time of all until all are stored as sent."""
        for _ in range(ATTEMPTS):
            before = teller.settled()
            due = self.queue(teller, channel, people, "normal")
            cpu_before, threads_before = cpu_s(teller.process), cpu_by_thread_s(teller.process)
            self.receiver.wait(len(people))
            while teller.settled() - before < len(people):
                time.sleep(POLL_S / 2)
            settled, spent_s = now_us(), cpu_s(teller.process) - cpu_before
            threads = cpu_by_thread_s(teller.process)
            check(self.receiver.arrivals(), people)
            if due is not None:
                per_message = SECOND_US / len(people)
                return Took(
                    len(people) / ((settled - due) / SECOND_US),
                    spent_s * per_message,
                    {name: (each - threads_before.get(name, 0.0)) * per_message for name, each in threads.items()},
                )
            note("deliver: the machine was too slow to schedule all in time, once more")
        raise RuntimeError(f"{len(people):,} could not be scheduled before they were due, {ATTEMPTS} times")

    def queue(
        self, teller: Teller, channel: ChannelName, people: Sequence[int], urgency: Priority, ahead_us: int = SECOND_US
    ) -> int | None:
        """Schedule all for one moment, at least so far ahead when done; returns it, None if it passed meanwhile."""
        started = now_us()
        due = started + ahead_us + round(1.5 * len(people) / self._rows_per_s * SECOND_US)
        teller.tell(channel, people, due, urgency)
        self._rows_per_s = len(people) / ((now_us() - started) / SECOND_US)
        settle()
        return due if now_us() < due - SECOND_US // 10 else None

    def bare(self, channel: ChannelName, count: int) -> Took:
        """The same messages by the bare client."""
        with child("-m", "bench.delivery.bare_client", channel, str(self.receiver.port(channel)), str(count)) as client:
            took = msgspec.convert(answer_of(client), Took)
        check(self.receiver.arrivals(), range(count))
        return took

    def fill(self, store: Path, count: int) -> None:
        """Create a store with so many users."""
        run_loop(fill(str(store), count, self.receiver.http_port))


@contextlib.contextmanager
def opened() -> Iterator[Site]:
    """A site until the end of the block."""
    ports = free_port(), free_port()
    with workspace() as folder, child("-m", "bench.delivery.receiver", *map(str, ports)) as process:
        answer_of(process)
        receiver = Receiver(*ports)
        try:
            yield Site(folder, receiver)
        finally:
            receiver.close()


def check(arrivals: Sequence[Mark], people: Sequence[int]) -> None:
    """Check that every user received one message."""
    numbers = {mark.number for mark in arrivals}
    if len(arrivals) != len(people) or numbers != set(people):
        raise RuntimeError(f"{len(arrivals):,} messages for {len(numbers):,} arrived, {len(people):,} were requested")


def now_us() -> int:
    return time.time_ns() // 1_000


def ask_for(channel: ChannelName, due: int, urgency: Priority) -> dict[str, Any]:
    return {
        "channel": channel,
        "template": NAME,
        "variables": variables(due, urgency),
        "category": CATEGORY,
        "priority": urgency,
        "at": format_instant(due),
    }


async def fill(path: str, count: int, port: int) -> None:
    """Create a store with so many users."""
    clock = SystemClock()
    store = await open_store(path, Config(store=Store(path=path)), clock)
    try:
        await store.acquire(clock.elapsed(), LEASE_US)
        for start in range(0, count, BATCH):
            people = [person(number, port, clock) for number in range(start, min(start + BATCH, count))]
            await change(store.tables, [[user_put(TENANT, each, 0)] for each in people], clock.now())
            if start and start % SHOWN == 0:
                note(f"  {start:,} people")
    finally:
        await store.close()

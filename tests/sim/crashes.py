"""Crashes of a store within one process: at a crash point its files are copied as SIGKILL would leave them."""

import asyncio
import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import apsw

from tidings import crash
from tidings.domain.errors import StoreError

Answer = TypeVar("Answer")

POINTS = tuple(point for point in crash.POINTS if point != "checkpoint.done")  # that one is on another thread
CHECKPOINTS = "tidings-checkpoint"
DISK = "disk"
SUFFIXES = ("", "-wal")


class Crashed(Exception):
    """The process would have ended here."""


class Trap:
    """Set for a point, or for some operation of the disk: there the files are copied, and nothing after that counts."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self._place: str | None = None
        self._visits = 0
        self._copy: Callable[[], None] = lambda: None
        self._fallen = False
        self._lock = threading.Lock()

    def set(self, place: str, visits: int, copy: Callable[[], None]) -> None:
        """Crash at the given visit of a point, or operation of the disk (`DISK`)."""
        with self._lock:
            self._place, self._visits, self._copy, self._fallen = place, visits, copy, False

    def clear(self) -> bool:
        """Remove it; True if the crash has happened."""
        with self._lock:
            self._place, fallen, self._fallen = None, self._fallen, False
            return fallen

    def check(self) -> None:
        """Whether what was just answered still counts."""
        if self._fallen:
            raise Crashed

    def pass_by(self, point: str) -> None:
        """Replaces `tidings.crash.point` while the trap is installed."""
        if threading.current_thread().name != CHECKPOINTS:
            self._visit(point)
            self.check()

    def watch(self, _operation: str, _name: str) -> None:
        """Called by a disk before each operation."""
        self._visit(DISK)

    def _visit(self, place: str) -> None:
        with self._lock:
            if place != self._place:
                return
            self._visits -= 1
            if self._visits == 0:
                self._place, self._fallen = None, True
                self.hits[place] += 1
                self._copy()

    @contextlib.contextmanager
    def laid(self) -> Iterator[None]:
        with patch.object(crash, "point", self.pass_by), patch.object(crash, "IS_ARMED", new=True):
            yield


def copy_store(source: Path, copy: Path) -> None:
    """The files as they are at this moment, without the index of the log, which a crash does not outlive."""
    for suffix in SUFFIXES:
        file = Path(f"{source}{suffix}")
        if file.exists():
            shutil.copyfile(file, f"{copy}{suffix}")


def remove_store(path: Path) -> None:
    for suffix in (*SUFFIXES, "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


class InlineWorker:
    """Runs at once what the real worker hands to a thread: faster and deterministic."""

    def __init__(self, _name: str) -> None:
        self._loop = asyncio.get_running_loop()

    def start(self, call: Callable[..., Answer], *arguments: object) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self._loop.create_future()
        try:
            future.set_result(call(*arguments))
        except apsw.Error as error:
            future.set_exception(StoreError(str(error)))
        except Exception as error:  # noqa: BLE001 - whoever awaits the answer gets it
            future.set_exception(error)
        return future

    start_next = start

    async def run(self, call: Callable[..., Answer], *arguments: object) -> Answer:
        return await self.start(call, *arguments)

    def post(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)

    async def close(self) -> None:
        """There is no thread to end."""

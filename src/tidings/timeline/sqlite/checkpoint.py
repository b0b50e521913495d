"""Checkpoints on a thread of their own: inside a commit they would hold it up for up to 200 ms."""

import threading
from collections.abc import Callable

import apsw

from tidings import crash
from tidings.timeline.sqlite.database import connect

WAL_PAGES_MAX = 4_000
REST_PAGES_MAX = 1_000
PASSES_MAX = 20


class Checkpointer:
    """Copies the write-ahead log into the file whenever it has grown, and lets it begin anew."""

    def __init__(self, path: str, finish: Callable[[], None]) -> None:
        self._path = path
        self._finish = finish
        self._grown = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tidings-checkpoint", daemon=True)
        self._thread.start()

    def committed(self, pages: int) -> None:
        """A commit has made the write-ahead log that long."""
        if pages >= WAL_PAGES_MAX:
            self._grown.set()

    def close(self) -> None:
        """End the thread after the pass in hand."""
        self._closing = True
        self._grown.set()
        self._thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while self._grown.wait() and not self._closing:
            self._grown.clear()
            try:
                if connection is None:
                    connection = connect(self._path)
                    connection.wal_autocheckpoint(0)
                self._copy(connection)
            except apsw.Error:
                continue  # the next commit asks again
            crash.point("checkpoint.done")
            self._finish()
        if connection is not None:
            connection.close()

    def _copy(self, connection: apsw.Connection) -> None:
        """Passes until little is left; the writer then does the rest between two transactions."""
        for _ in range(PASSES_MAX):
            total, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if total - copied <= REST_PAGES_MAX or self._closing:
                return

"""Waiting out a server that is away: longer from time to time, and told once."""

import threading

from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.screen import Screen

BACKOFF_S = (0.1, 0.25, 0.5, 1.0, 2.0)
PASSING = {429, 500, 502, 503, 504}


class Patience:
    """How long to wait before trying again, and for which failures that makes sense."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._failures = 0

    def renew(self) -> None:
        """Something came: the next failure is a first one."""
        self._failures = 0

    def check(self, failure: Failure) -> None:
        """Raise the failure again unless it can pass."""
        status = failure.document.get("status") if isinstance(failure.document, dict) else None
        if failure.code != Exit.UNREACHABLE and status not in PASSING:
            raise failure

    def wait(self) -> None:
        """Let some time pass."""
        if self._failures == 0:
            self._screen.note("tidings: the connection ended, trying again")
        threading.Event().wait(BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)])
        self._failures += 1

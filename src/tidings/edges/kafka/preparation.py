"""Creation of topics: request topics of known tenants at the start, response topics when a tenant appears.

It runs in the background; reading does not wait for it.
"""

import logging
from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor

from tidings.bus.kafka.client import Cluster
from tidings.bus.kafka.topics import Topics, TopicUnavailable
from tidings.clock import Clock

AT_ONCE_MAX = 100  # topics in one request, so that it does not time out
AGAIN_US = 30_000_000

Failed = dict[str, str]  # reason by topic
logger = logging.getLogger("tidings.kafka")


class Preparation:
    """Creates all requested topics together, on a thread of its own; failures are retried later."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._topics = Topics(cluster)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-topics")
        self._work: Future[Failed] | None = None
        self._waiting: set[str] = set()
        self._requested: set[str] = set()
        self._failed: set[str] = set()
        self._again_at = 0
        self._logged: set[str] = set()

    def request(self, names: Set[str]) -> None:
        """Create topics if they are missing. Call it regularly, also without names: failures are retried then."""
        self._waiting |= names
        if self._work is not None:
            if not self._work.done():
                return
            self._finish(self._work.result())
        if self._failed and self._clock.elapsed() >= self._again_at:
            self._waiting |= self._failed
            self._failed = set()
        if self._waiting:
            self._requested, self._waiting = self._waiting, set()
            self._work = self._thread.submit(self._create, sorted(self._requested))

    def close(self) -> None:
        """Start no further requests."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _finish(self, failed: Failed) -> None:
        """Log the failure of a topic once, not at every retry."""
        self._work = None
        self._logged -= self._requested - failed.keys()
        if new := {name: reason for name, reason in failed.items() if name not in self._logged}:
            reasons = sorted(set(new.values()))
            logger.warning("cannot create the topics %s: %s", ", ".join(sorted(new)), "; ".join(reasons))
        self._logged |= failed.keys()
        self._failed |= failed.keys()
        self._again_at = self._clock.elapsed() + AGAIN_US

    def _create(self, names: list[str]) -> Failed:
        failed: Failed = {}
        for first in range(0, len(names), AT_ONCE_MAX):
            failed |= self._ensure(set(names[first : first + AT_ONCE_MAX]))
        return failed

    def _ensure(self, names: set[str]) -> Failed:
        """Create topics; one that fails does not affect the others."""
        failed: Failed = {}
        while names:
            try:
                self._topics.ensure(names)
                break
            except TopicUnavailable as error:
                failed |= error.topics or dict.fromkeys(names, str(error))
            except Exception as error:  # noqa: BLE001 - no error here may stop the intake
                failed |= dict.fromkeys(names, str(error))
            names -= failed.keys()
        return failed

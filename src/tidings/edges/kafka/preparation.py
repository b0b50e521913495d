"""Creates the request topics of known tenants at the start, and the topics that tenants are answered on as they appear.

Nothing waits for it: reading goes on meanwhile.
"""

import logging
from collections.abc import Set
from concurrent.futures import Future, ThreadPoolExecutor

from tidings.bus.kafka.client import Cluster
from tidings.bus.kafka.topics import NoTopic, Topics
from tidings.clock import Clock

AT_ONCE_MAX = 100  # topics in one request, so that it ends in time
AGAIN_US = 30_000_000

Failed = dict[str, str]  # by topic, the reason
logger = logging.getLogger("tidings.kafka")


class Preparation:
    """Makes all that waits in one go, on a thread of its own; what fails is tried again later."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._topics = Topics(cluster)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "tidings-kafka-topics")
        self._work: Future[Failed] | None = None
        self._waiting: set[str] = set()
        self._asked: set[str] = set()
        self._failed: set[str] = set()
        self._again_at = 0
        self._told: set[str] = set()

    def want(self, names: Set[str]) -> None:
        """These have to be there; also to be called without any, from time to time."""
        self._waiting |= names
        if self._work is not None:
            if not self._work.done():
                return
            self._settle(self._work.result())
        if self._failed and self._clock.elapsed() >= self._again_at:
            self._waiting |= self._failed
            self._failed = set()
        if self._waiting:
            self._asked, self._waiting = self._waiting, set()
            self._work = self._thread.submit(self._make, sorted(self._asked))

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _settle(self, failed: Failed) -> None:
        """Said once of each topic: it is tried again and again."""
        self._work = None
        self._told -= self._asked - failed.keys()
        if new := {name: reason for name, reason in failed.items() if name not in self._told}:
            reasons = sorted(set(new.values()))
            logger.warning("topics that could not be created: %s: %s", ", ".join(sorted(new)), "; ".join(reasons))
        self._told |= failed.keys()
        self._failed |= failed.keys()
        self._again_at = self._clock.elapsed() + AGAIN_US

    def _make(self, names: list[str]) -> Failed:
        failed: Failed = {}
        for first in range(0, len(names), AT_ONCE_MAX):
            failed |= self._ensure(set(names[first : first + AT_ONCE_MAX]))
        return failed

    def _ensure(self, names: set[str]) -> Failed:
        """One topic that cannot be made does not keep the others from being made."""
        failed: Failed = {}
        while names:
            try:
                self._topics.ensure(names)
                break
            except NoTopic as error:
                failed |= error.topics or dict.fromkeys(names, str(error))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason not to read
                failed |= dict.fromkeys(names, str(error))
            names -= failed.keys()
        return failed

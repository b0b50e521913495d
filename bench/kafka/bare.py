"""The least that a client can do in transactions (begin, produce, commit), as the limit to compare with."""

import time
import uuid
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Producer

from bench.kafka.records import Record
from bench.limits import Took

INIT_S = 30.0
COMMIT_S = 30.0
QUEUE_RECORDS_MAX = 200_000
LINGER_MS = 50

_SECOND_US = 1_000_000


class Bare:
    """A transactional producer that gathers while a transaction is filled; a commit waits for nothing more."""

    def __init__(self, client: Mapping[str, Any], linger_ms: int = LINGER_MS) -> None:
        own = {"transactional.id": f"bare-{uuid.uuid4()}", "partitioner": "murmur2_random", "linger.ms": linger_ms}
        room = {"queue.buffering.max.messages": QUEUE_RECORDS_MAX, "queue.buffering.max.kbytes": 1_048_576}
        self._producer = Producer({**client, **own, **room, "log_level": 0})
        self._producer.init_transactions(INIT_S)

    def transact(self, records: Sequence[Record], topic: str, records_a_transaction: int) -> Took:
        """All of the records, one full transaction after the other."""
        longest = 0.0
        started = last = time.perf_counter()
        for start in range(0, len(records), records_a_transaction):
            self._publish(records[start : start + records_a_transaction], topic)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return Took(len(records), last - started, longest * 1_000)

    def on_time(self, records: Sequence[Record], topic: str, moments: Sequence[int]) -> int:
        """Each record after its moment (they are in order): a transaction of what has fallen due, then the next.

        Answers how many transactions that were.
        """
        done = transactions = 0
        while done < len(records):
            time.sleep(max(0, moments[done] - _now()) / _SECOND_US)
            due = bisect_right(moments, _now())
            if due > done:
                self._publish(records[done:due], topic)
                done, transactions = due, transactions + 1
        return transactions

    def _publish(self, records: Sequence[Record], topic: str) -> None:
        producer = self._producer
        producer.begin_transaction()
        for key, value, headers in records:
            producer.produce(topic, value, key, headers=headers)
        producer.commit_transaction(COMMIT_S)


def _now() -> int:
    return time.time_ns() // 1_000

"""A reader of what is committed: `python -m bench.kafka.reader SERVERS TOPIC COUNT PATIENCE_S`.

Says `reading` once it is at the end of the topic, and at last when each record was here. It ends when so many have
come and a second passes without another, or when nothing comes for as long as its patience lasts.
"""

import gc
import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from bench.kafka.arrivals import Arrivals
from bench.processes import say
from tidings.bus.kafka.producers import DUE_AT, OCCURRENCE
from tidings.domain.schedules.iso8601 import parse_instant

BATCH_RECORDS = 5_000
POLL_S = 0.1
AFTER_S = 1.0  # what comes twice comes late
BEGIN_S_MAX = 30.0

_PASSING = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._PARTITION_EOF}

Batches = list[tuple[int, list[Message]]]


def main(servers: str, topic: str, count: int, patience_s: float) -> None:
    """Read, and only afterwards look at what was read."""
    consumer = _consumer(servers)
    consumer.assign([TopicPartition(topic, 0, 0)])
    _until_the_end(consumer)
    say("reading")
    gc.disable()
    batches = _read(consumer, count, patience_s)
    consumer.close()
    say(_arrivals(batches))


def _consumer(servers: str) -> Consumer:
    """It never holds back, and is there again soon after its broker is."""
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 1,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1_048_576,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )


def _until_the_end(consumer: Consumer) -> None:
    deadline = time.monotonic() + BEGIN_S_MAX
    while time.monotonic() < deadline:
        message = consumer.poll(POLL_S)
        error = message.error() if message is not None else None
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return
    raise TimeoutError(f"the topic cannot be read within {BEGIN_S_MAX} s")


def _read(consumer: Consumer, count: int, patience_s: float) -> Batches:
    """Batches of records, each with the moment at which all of it was here."""
    batches: Batches = []
    received = 0
    heard = time.monotonic()
    while time.monotonic() - heard < (AFTER_S if received >= count else patience_s):
        first = consumer.poll(POLL_S)
        if first is None:
            continue
        messages = [first, *consumer.consume(BATCH_RECORDS, 0.0)]
        now = time.time_ns() // 1_000
        records = [message for message in messages if _is_record(message)]
        if records:
            batches.append((now, records))
            received += len(records)
            heard = time.monotonic()
    return batches


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is not None and error.code() not in _PASSING:
        raise KafkaException(error)
    return error is None


def _arrivals(batches: Batches) -> Arrivals:
    arrivals = Arrivals([], [], 0)
    seen: set[bytes] = set()
    twice = 0
    for at, messages in batches:
        for message in messages:
            headers: dict[str, bytes] = dict(message.headers() or ())  # type: ignore[arg-type]  # ours are bytes
            if headers[OCCURRENCE] in seen:
                twice += 1
                continue
            seen.add(headers[OCCURRENCE])
            arrivals.due.append(parse_instant(headers[DUE_AT].decode()))
            arrivals.at.append(at)
    return Arrivals(arrivals.due, arrivals.at, twice)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))

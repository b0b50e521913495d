"""Three clients that share no code write requests and read released records: byte for byte, and only committed ones.

Each client writes what it can express. Only kcat can send a null header, but gets its keys and headers as arguments,
where no NUL can be. kafkajs keeps headers by name, so that the repeats of one name stand together.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.kafka.samples.programs import output, there
from tests.kafka.site import READ_S_MAX, Site, headers_of
from tests.servers.foreign import kafkajs, kcat, node
from tests.servers.kafka import Broker
from tests.servers.transactions import commit, transactional, write
from tidings.testing import eventually

pytestmark = pytest.mark.slow

Headers = tuple[tuple[str, bytes | None], ...]

EVERY_BYTE = bytes(range(256))
SCHEDULE = ("intervals-schedule", b"PT0.2S")
OWN = ("tidings-id", "tidings-occurrence", "tidings-due-at", "tidings-attempt")

KAFKAJS_WRITER = """
const { Kafka, logLevel } = require("kafkajs");
const [broker, topic, text] = process.argv.slice(1);
const bytes = (part) => (part === null ? null : Buffer.from(part, "base64"));
const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR });
const producer = kafka.producer();

async function main() {
  const messages = JSON.parse(text).map(({ key, value, headers }) => {
    const named = {};
    for (const [name, part] of headers) (named[name] ??= []).push(bytes(part));
    return { key: bytes(key), value: bytes(value), headers: named };
  });
  await producer.connect();
  await producer.send({ topic, messages });
  await producer.disconnect();
}

main();
"""

KAFKAJS_READER = """
const { Kafka, logLevel } = require("kafkajs");
const [broker, topic, count] = process.argv.slice(1);
const text = (part) => (part === null || part === undefined ? null : part.toString("base64"));
const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR });
const consumer = kafka.consumer({ groupId: "js-" + topic, readUncommitted: false });
const found = [];

async function main() {
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => {
      const headers = Object.entries(message.headers).flatMap(([name, parts]) =>
        (Array.isArray(parts) ? parts : [parts]).map((part) => [name, text(part)]));
      found.push({ key: text(message.key), value: text(message.value), headers });
      if (found.length == Number(count)) {
        console.log(JSON.stringify(found));
        process.exit(0);
      }
    },
  });
}

main();
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record, to be compared."""

    key: bytes | None
    value: bytes | None
    headers: Headers


# Writers


async def write_by_kcat(site: Site, topic: str, record: Sent) -> None:
    command = [there(kcat), "-P", "-b", site.broker.bootstrap, "-t", topic, "-Z"]
    headers: list[str | bytes] = []
    for name, value in record.headers:
        headers += ["-H", name if value is None else name.encode() + b"=" + value]
    file = site.broker.folder / f"{topic}.value"
    if record.value is None:
        await output(*command, "-K", "=", *headers, stdin=(record.key or b"") + b"=\n")
        return
    file.write_bytes(record.value)
    key = [] if record.key is None else [b"-k", record.key]
    await output(*command, *headers, *key, str(file))


async def write_by_kafka_python(site: Site, topic: str, record: Sent) -> None:
    def work() -> None:
        producer = KafkaProducer(bootstrap_servers=site.broker.bootstrap)
        try:
            producer.send(topic, record.value, record.key, headers=list(record.headers)).get(READ_S_MAX)
        finally:
            producer.close()

    await asyncio.to_thread(work)


async def write_by_kafkajs(site: Site, topic: str, record: Sent) -> None:
    document = {
        "key": shown(record.key),
        "value": shown(record.value),
        "headers": [(name, shown(value)) for name, value in record.headers],
    }
    await run_kafkajs(site.broker, KAFKAJS_WRITER, topic, json.dumps([document]))


# Readers


async def read_by_kcat(broker: Broker, topic: str, count: int) -> list[Sent]:
    command = [there(kcat), "-C", "-b", broker.bootstrap, "-t", topic, "-o", "beginning", "-c", str(count), "-q"]
    output_left = await output(*command, "-X", "isolation.level=read_committed", "-f", r"%K %S\n%k%s%h\n")
    found = []
    while output_left:
        sizes, _, output_left = output_left.partition(b"\n")
        key_size, value_size = (int(size) for size in sizes.split())
        key, output_left = cut(output_left, key_size)
        value, output_left = cut(output_left, value_size)
        headers, _, output_left = output_left.partition(b"\n")
        found.append(Sent(key, value, tuple(kcat_header(header) for header in headers.split(b","))))
    return found


def cut(content: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, content) if size < 0 else (content[:size], content[size:])


def kcat_header(text: bytes) -> tuple[str, bytes | None]:
    name, _, value = text.partition(b"=")
    return name.decode(), None if value == b"NULL" else value


async def read_by_kafka_python(broker: Broker, topic: str, count: int) -> list[Sent]:
    def work() -> list[Sent]:
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            consumer_timeout_ms=int(READ_S_MAX * 1_000),
        )
        try:
            consumer.assign([TopicPartition(topic, 0)])
            records = [next(consumer) for _ in range(count)]
        finally:
            consumer.close()
        return [Sent(record.key, record.value, tuple(record.headers)) for record in records]

    return await asyncio.to_thread(work)


async def read_by_kafkajs(broker: Broker, topic: str, count: int) -> list[Sent]:
    output_left = json.loads(await run_kafkajs(broker, KAFKAJS_READER, topic, str(count)))
    return [
        Sent(
            hidden(record["key"]),
            hidden(record["value"]),
            tuple((name, hidden(value)) for name, value in record["headers"]),
        )
        for record in output_left
    ]


async def run_kafkajs(broker: Broker, script: str, *arguments: str) -> bytes:
    modules = there(kafkajs) / "node_modules"
    command = [node(), "-e", script, "--", broker.bootstrap, *arguments]
    return await output(*command, NODE_PATH=str(modules), KAFKAJS_NO_PARTITIONER_WARNING="1")


def shown(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def hidden(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


# What is sent

Writer = Callable[[Site, str, Sent], Awaitable[None]]
Reader = Callable[[Broker, str, int], Awaitable[list[Sent]]]

READERS: tuple[Reader, ...] = (read_by_kcat, read_by_kafka_python, read_by_kafkajs)
REPEATED: Headers = (("a", b"1"), ("a", b"\xff\x80"), ("a", b"1"), ("b", b""))
WITH_NULLS: Headers = (("a", b"1"), ("a", None), ("a", b"\xff\x80"), ("n", None), ("b", b""))

CASES: dict[str, tuple[Writer, Headers, bytes]] = {
    "kcat": (write_by_kcat, WITH_NULLS, b"\xff k"),
    "kafka-python": (write_by_kafka_python, REPEATED, b"\x00\xff k"),
    "kafkajs": (write_by_kafkajs, REPEATED, b"\x00\xff k"),
}


@pytest.mark.parametrize("client", CASES)
async def test_every_client_reads_what_another_wrote(site: Site, client: str) -> None:
    write_by, more, key = CASES[client]
    requests, out = f"assignments.{site.name}", f"executions.{site.name}"
    site.broker.create_topic(requests)
    await eventually(lambda: out in site.broker.topics(), READ_S_MAX, poll_s=0.1)
    given_up = transactional(site.broker)
    write(given_up, out, b"given up")
    given_up.abort_transaction(READ_S_MAX)
    sent = [
        Sent(None, EVERY_BYTE, (SCHEDULE, *more)),
        Sent(key, EVERY_BYTE, (SCHEDULE, *more)),
        Sent(key, None, (SCHEDULE, *more)),
    ]
    for count, record in enumerate(sent, start=1):
        await write_by(site, requests, record)
        await site.read(out, count)
    for read_by in READERS:
        found = await read_by(site.broker, out, len(sent))
        assert [stripped(record) for record in found] == sent, read_by.__name__


def stripped(record: Sent) -> Sent:
    """The record without our own headers, which follow all others."""
    assert tuple(name for name, _ in record.headers[-4:]) == OWN
    return Sent(record.key, record.value, record.headers[:-4])


async def test_an_aborted_request_is_not_accepted(site: Site) -> None:
    requests, out = f"assignments.{site.name}", f"executions.{site.name}"
    site.broker.create_topic(requests)
    given_up = transactional(site.broker)
    write(given_up, requests, b"given up", headers=[SCHEDULE])
    given_up.abort_transaction(READ_S_MAX)
    commit(transactional(site.broker), requests, b"committed", headers=[SCHEDULE])
    (record,) = await site.read(out, 1)
    assert record.value() == b"committed"
    assert dict(headers_of(record))["tidings-id"] == f"{requests}/0/2".encode()


async def test_a_request_is_not_accepted_before_its_transaction_commits(site: Site) -> None:
    requests, out = f"assignments.{site.name}", f"executions.{site.name}"
    site.broker.create_topic(requests)
    await eventually(lambda: out in site.broker.topics(), READ_S_MAX, poll_s=0.1)
    producer = transactional(site.broker)
    write(producer, requests, b"open", headers=[SCHEDULE])
    site.send(f"{site.name}-schedule-requests", b"other", None, kaspr_now(f"{site.name}-out"))
    await site.read(f"{site.name}-out", 1)
    assert await site.engine.find(site.name, f"{requests}/0/0") is None
    producer.commit_transaction(READ_S_MAX)
    (record,) = await site.read(out, 1)
    assert record.value() == b"open"


def kaspr_now(topic: str) -> list[tuple[str, str | bytes | None]]:
    return [("x-scheduler-deliver-at", "2026-05-24T12:30:00Z"), ("x-scheduler-deliver-to", topic)]

"""The samples of the pages of Intervals and Kaspr, as programs of their own: only addresses and times are replaced.

What is replaced: the broker's address, the tenant (`<your-tenant>`, `your-tenant`, `t30600`; `orders-app` of Kaspr is
nowhere in its samples), the times, which have passed, and Kaspr's `reminders-topic`, so that tests do not meet. The
Node sample needs an async function around it. The JVM sample is Kotlin, and does not compile as it stands: a header's
value is bytes and a subscription a list. It is run as Java, rewritten by `JAVA` line by line.
"""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.kafka.samples.programs import output, running, sample, soon, there, written
from tests.kafka.site import Site, headers_of, read_all
from tests.servers.downloads import Missing
from tests.servers.foreign import kafkajs, kcat, node
from tests.servers.java import jars, java
from tidings.domain.schedules.iso8601 import format_instant
from tidings.testing import eventually

pytestmark = pytest.mark.slow

SECOND_US = 1_000_000
PAGE_TIME = "2026-07-21T19:20:30.45Z"
HELLO_PYTHON = b'{"message": "Hello"}'
HELLO_NODE = b'{"message":"Hello"}'

JAVA = {
    "val producer = KafkaProducer<String, ByteArray>": "var producer = new KafkaProducer<String, byte[]>",
    "val record = ProducerRecord<String, ByteArray>": "var record = new ProducerRecord<String, byte[]>",
}
JAVA_PROGRAM = """
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;

public class Sample {
  public static void main(String[] arguments) throws Exception {
    var properties = new Properties();
    properties.put("bootstrap.servers", "localhost:9092");
    properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
    properties.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
    properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
    properties.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
    properties.put("group.id", "t30600");
    properties.put("auto.offset.reset", "earliest");
    byte[] payload = "{\\"message\\": \\"Hello\\"}".getBytes();
    %s
    producer.flush();
    var consumer = new KafkaConsumer<String, byte[]>(properties);
    %s
    while (true)
      for (var found : consumer.poll(Duration.ofMillis(100)))
        System.out.println(new String(found.value()));
  }
}
"""


def replacements(site: Site, at: str) -> dict[str, str]:
    """The values that a reader of the Intervals page fills in."""
    return {
        "localhost:9092": site.broker.bootstrap,
        "<your-tenant>": site.name,
        "your-tenant": site.name,
        "t30600": site.name,
        PAGE_TIME: at,
    }


async def prepare(site: Site) -> None:
    """The topic of a tenant; Tidings creates the related ones."""
    site.broker.create_topic(f"assignments.{site.name}")
    await eventually(lambda: f"executions.{site.name}" in site.broker.topics(), 30, poll_s=0.1)


def check(record: Message, due: int, value: bytes, headers: dict[str, str], occurrence: tuple[str, int]) -> None:
    """All of a record of Intervals: the key, the value, every header in order, and not before its time."""
    name, number = occurrence
    own = {
        "tidings-id": name,
        "tidings-occurrence": f"{name}/1/{number}",
        "tidings-due-at": format_instant(due),
        "tidings-attempt": "1",
    }
    assert (record.key(), record.value()) == (None, value)
    assert record.headers() == [(key, text.encode()) for key, text in (headers | own).items()]
    assert record.timestamp()[1] * 1_000 >= due


async def test_intervals_in_python(site: Site, tmp_path: Path) -> None:
    await prepare(site)
    due, at = soon(5)
    replaced = replacements(site, at)
    sender, receiver = tmp_path / "send.py", tmp_path / "receive.py"
    sender.write_text(sample("intervals-send.py.txt", replaced))
    receiver.write_text(sample("intervals-receive.py.txt", replaced))
    async with running(sys.executable, "-u", str(receiver)) as program:
        await output(sys.executable, str(sender))
        said, heard = await program.line("Hello")
    assert said == repr(HELLO_PYTHON)
    assert heard >= due
    (record,) = await site.read(f"executions.{site.name}", 1)
    headers = {"intervals-schedule": at, "intervals-tenant-id": site.name}
    check(record, due, HELLO_PYTHON, headers, (f"assignments.{site.name}/0/0", 1))


async def test_intervals_in_node(site: Site, tmp_path: Path) -> None:
    modules = there(kafkajs) / "node_modules"
    await prepare(site)
    due, at = soon(6)
    replaced = replacements(site, at) | {"'test-group'": f"'test-{site.name}'"}
    both = sample("intervals-send.js.txt", replaced) + sample("intervals-receive.js.txt", replaced)
    script = tmp_path / "sample.js"
    script.write_text(f"(async () => {{\n{both}\n}})();\n")
    async with running(node(), str(script), NODE_PATH=str(modules), KAFKAJS_NO_PARTITIONER_WARNING="1") as program:
        await program.line("Consumer has joined the group")
        said, heard = await program.line("Hello")
    assert said.encode() == HELLO_NODE
    assert heard >= due
    (record,) = await site.read(f"executions.{site.name}", 1)
    check(record, due, HELLO_NODE, {"intervals-schedule": at}, (f"assignments.{site.name}/0/0", 1))


async def test_intervals_on_the_jvm(site: Site, tmp_path: Path) -> None:
    path = there(java_compiler)
    await prepare(site)
    due, at = soon(12)
    replaced = replacements(site, at)
    send, receive = (in_java(sample(f"intervals-{step}.kt.txt", replaced | JAVA)) for step in ("send", "receive"))
    program_text = JAVA_PROGRAM.replace("localhost:9092", site.broker.bootstrap).replace("t30600", site.name)
    source = tmp_path / "Sample.java"
    source.write_text(program_text % (send, receive))
    async with running(path, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*", str(source)) as program:
        said, heard = await program.line('{"message"')
    assert said.encode() == HELLO_PYTHON
    assert heard >= due
    (record,) = await site.read(f"executions.{site.name}", 1)
    check(record, due, HELLO_PYTHON, {"intervals-schedule": at}, (f"assignments.{site.name}/0/0", 1))


@cache
def java_compiler() -> str:
    """A Java that runs a source file."""
    path = java()
    if (
        "jdk.compiler"
        not in subprocess.run([path, "--list-modules"], capture_output=True, text=True, check=True).stdout
    ):
        raise Missing(f"{path} runs no source files: install a JDK (Debian, Ubuntu: openjdk-17-jdk-headless)")
    return path


def in_java(text: str) -> str:
    """Statements end, a header's value is bytes, a subscription is a list."""
    text = re.sub(r'Z"\)$', 'Z".getBytes())', text, flags=re.MULTILINE)
    text = re.sub(r"subscribe\((.+)\)$", r"subscribe(List.of(\1))", text, flags=re.MULTILINE)
    return re.sub(r"\)$", ");", text, flags=re.MULTILINE)


async def test_the_periodic_sample_of_intervals(site: Site, tmp_path: Path) -> None:
    """In the Python sample; hours have become seconds."""
    await prepare(site)
    start, at = soon(5)
    end = written(start + 2 * SECOND_US + SECOND_US // 2)
    periodic = sample(
        "intervals-periodic.txt",
        {"2026-07-16T19:20:30.45Z": at, "PT7H": "PT1S", "2026-07-17T20:20:30.45Z": end},
    ).strip()
    assert periodic == f"R/{at}/PT1S/{end}"
    sender = tmp_path / "send.py"
    sender.write_text(sample("intervals-send.py.txt", replacements(site, periodic)))
    await output(sys.executable, str(sender))
    records = await site.read(f"executions.{site.name}", 3)
    assert len(records) == 3
    headers = {"intervals-schedule": periodic, "intervals-tenant-id": site.name}
    for index, record in enumerate(records):
        due = start + index * SECOND_US
        assert record.timestamp()[1] * 1_000 >= due
        assert (record.key(), record.value()) == (None, HELLO_PYTHON)
        found = headers_of(record)
        assert found[:2] == [(name, text.encode()) for name, text in headers.items()]
        replaced = dict(found)
        assert replaced["tidings-due-at"] == format_instant(due).encode()
        assert replaced["tidings-occurrence"] == f"assignments.{site.name}/0/0/1/{index + 1}".encode()
        assert ("tidings-final" in replaced) is (index == 2)


# Kaspr


class Guide:
    """The examples of Kaspr's guide, sent by kcat: its `-H` takes a header as the guide writes it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._kcat = there(kcat)
        self.requests = f"{site.name}-schedule-requests"
        self.rejections = f"{site.name}-schedule-rejections"
        self.out = f"{site.name}-reminders"

    async def prepare(self) -> None:
        self._site.broker.create_topic(self.requests)
        self._site.broker.create_topic(self.out)  # the guide: ensure that destination topics exist
        await eventually(lambda: self.rejections in self._site.broker.topics(), 30, poll_s=0.1)

    async def send(self, key: str, value: bytes, *headers: str) -> None:
        command = [self._kcat, "-P", "-b", self._site.broker.bootstrap, "-t", self.requests, "-k", key]
        await output(*command, *(part for header in headers for part in ("-H", header)), stdin=value)

    async def add(self, at: str, *more: str) -> None:
        """The example payload."""
        replaced = {"2026-05-24T12:30:00Z": at, "reminders-topic": self.out}
        document = json.loads(sample("kaspr-add.json", replaced))
        headers = [f"{name}={text}" for name, text in document["headers"].items()]
        await self.send(document["key"], json.dumps(document["value"]).encode(), *headers, *more)

    def headers(self, name: str, at: str = "") -> list[str]:
        """The example headers."""
        return sample(name, {"2026-05-24T13:00:00Z": at, "reminders-topic": self.out}).split()


REMINDER = b'{"type": "send-reminder"}'


async def test_kaspr_adds(site: Site) -> None:
    guide = Guide(site)
    await guide.prepare()
    due, at = soon(4)
    await guide.add(at, "trace=1")
    (record,) = await site.read(guide.out, 1)
    assert (record.key(), record.value()) == (b"order-123", REMINDER)
    assert record.headers() == [
        ("trace", b"1"),
        ("tidings-id", b"reminder-order-123"),
        ("tidings-occurrence", b"reminder-order-123/1/1"),
        ("tidings-due-at", format_instant(due).encode()),
        ("tidings-attempt", b"1"),
    ]
    assert record.timestamp()[1] * 1_000 >= due


async def test_kaspr_delivers_past_times_at_once(site: Site) -> None:
    guide = Guide(site)
    await guide.prepare()
    await guide.add("2026-05-24T12:30:00Z")
    (record,) = await site.read(guide.out, 1)
    assert (record.key(), record.value()) == (b"order-123", REMINDER)


async def test_kaspr_replaces(site: Site) -> None:
    guide = Guide(site)
    await guide.prepare()
    first, at = soon(4)
    await guide.add(at)
    due = first + 2 * SECOND_US
    await guide.send("order-123", b"instead", *guide.headers("kaspr-replace.txt", written(due)))
    (record,) = await site.read(guide.out, 1)
    assert (record.key(), record.value()) == (b"order-123", b"instead")
    assert record.timestamp()[1] * 1_000 >= due
    assert dict(headers_of(record))["tidings-due-at"] == format_instant(due).encode()


async def test_kaspr_replaces_an_unknown_schedule(site: Site) -> None:
    guide = Guide(site)
    await guide.prepare()
    due, at = soon(3)
    await guide.send("order-123", b"new", *guide.headers("kaspr-replace.txt", at))
    (record,) = await site.read(guide.out, 1)
    assert (record.key(), record.value()) == (b"order-123", b"new")
    assert record.timestamp()[1] * 1_000 >= due


async def test_kaspr_cancels(site: Site) -> None:
    guide = Guide(site)
    await guide.prepare()
    due, at = soon(4)
    await guide.add(at)
    await guide.send("order-123", b"cancel", *guide.headers("kaspr-cancel.txt"))
    later = [f"x-scheduler-deliver-to={guide.out}", f"x-scheduler-deliver-at={written(due + SECOND_US)}"]
    await guide.send("order-124", b"later", *later)
    (record,) = await site.read(guide.out, 1)
    assert record.value() == b"later"
    assert read_all(site.broker, guide.rejections) == []


async def test_kaspr_rejects(site: Site) -> None:
    """The guide's reasons, each by the name of the header that it is about."""
    guide = Guide(site)
    await guide.prepare()
    at, to = "x-scheduler-deliver-at=2026-05-24T12:30:00Z", f"x-scheduler-deliver-to={guide.out}"
    name, replace = "x-scheduler-request-id=one", "x-scheduler-action=REPLACE"
    asked = {
        "Missing x-scheduler-deliver-at for ADD.": [to],
        "Missing x-scheduler-deliver-to for ADD.": [at],
        "Missing x-scheduler-deliver-at for REPLACE.": [replace, name, to],
        "Missing x-scheduler-deliver-to for REPLACE.": [replace, name, at],
        "Invalid timestamp format for x-scheduler-deliver-at.": [to, "x-scheduler-deliver-at=tomorrow"],
        "Missing x-scheduler-request-id for CANCEL.": ["x-scheduler-action=CANCEL"],
        "Missing x-scheduler-request-id for REPLACE.": [replace, at, to],
    }
    assert list(asked) == sample("kaspr-rejections.txt", {}).splitlines()
    for reason, headers in asked.items():
        await guide.send("order-123", REMINDER, *headers, f"expected={reason}")
    rejections = await site.read(guide.rejections, len(asked))
    assert len(rejections) == len(asked)
    for rejection in rejections:
        document = json.loads(rejection.value() or b"")
        assert rejection.key() == b"order-123"
        assert (document["key"], document["value"]) == ("order-123", {"type": "send-reminder"})
        reason = document["headers"].pop("expected")
        assert document["headers"] == dict(header.split("=") for header in asked[reason])
        (error,) = document["errors"]
        kind, header = re.match(r"(Missing|Invalid).* (x-\S+?)(?: for \w+)?\.$", reason).groups()  # type: ignore[union-attr]
        assert error.startswith(kind)
        assert f"`{header}`" in error
    assert read_all(site.broker, guide.out) == []

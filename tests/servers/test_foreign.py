"""Clients in other languages read our records."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out
from tests.servers.foreign import kafkajs, kcat, node
from tests.servers.kafka import Broker
from tests.servers.transactions import commit, transactional

pytestmark = pytest.mark.slow

RUN_S_MAX = 60.0
READER = """
const { Kafka, logLevel } = require("kafkajs");
const [broker, topic] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR });
const consumer = kafka.consumer({ groupId: "js-" + topic });

async function main() {
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => {
      console.log(`${message.key} ${message.value} ${message.headers.trace}`);
      process.exit(0);
    },
  });
}

main();
"""
T = TypeVar("T")


def there(get: Callable[[], T]) -> T:
    try:
        return get()
    except Missing as missing:
        leave_out(missing)


def output(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=RUN_S_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def record(broker: Broker, topic: str) -> None:
    commit(transactional(broker), topic, b"hello", headers=[("trace", b"1")])


def test_kcat_reads_our_records(broker: Broker, topic: str) -> None:
    path = there(kcat)
    command = [path, "-b", broker.bootstrap, "-C", "-t", topic, "-o", "beginning", "-c", "1", "-q"]
    assert output([*command, "-f", "%k %s %h"]) == "key hello trace=1"


def test_kafkajs_reads_our_records(broker: Broker, topic: str, tmp_path: Path) -> None:
    modules = there(kafkajs) / "node_modules"
    script = tmp_path / "reader.js"
    script.write_text(READER)
    assert output([node(), str(script), broker.bootstrap, topic], NODE_PATH=str(modules)) == "key hello 1"

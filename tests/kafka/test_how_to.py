"""The how-to about Kafka: its commands run against a real broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks
from tests.kafka.served import Served
from tests.servers import foreign
from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out

pytestmark = pytest.mark.slow

REQUESTS = ("assignments.acme", "shop-schedule-requests", "schedules", "tidings.requests.acme")
BLOCK_S_MAX = 60.0


def test_the_commands_of_the_how_to_work(served: Served, tmp_path: Path) -> None:
    try:
        kcat = foreign.kcat()
    except Missing as missing:
        leave_out(missing)
    for topic in set(REQUESTS) - set(served.broker.topics()):  # `make kafka` makes them when they are first used
        served.broker.create_topic(topic)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    names = {"localhost:9092": served.broker.bootstrap, "kcat ": f"{kcat} "}
    starting, *others = (block for block in blocks(DOCS / "how-to/use-kafka.md") if block.language == "sh")
    assert starting.text == ".venv/bin/tidings serve --kafka localhost:9092\n"
    printed = []
    for block in others:
        script = block.text.replace(".venv/bin/tidings", f"{sys.executable} -m tidings")
        for name, ours in names.items():
            script = script.replace(name, ours)
        environment = os.environ | {"TIDINGS_URL": served.url, "NO_COLOR": "1"}
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BLOCK_S_MAX, check=False
        )
        assert done.returncode == 0, f"{block.name}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout)
    assert len(printed) == 7
    assert all("hello" in text for text in printed[:4]), printed
    assert ["[order-42]" in printed[1], "[43]" in printed[2], "[order-44]" in printed[3]] == [True] * 3
    assert printed[4].count("[heart]  beat") == 3
    assert "30 2 * * *" in printed[4]
    assert "order-44" in printed[5].split("order-44 released", 1)[0]
    assert "order-44 released" in printed[5]
    assert "assignments.acme/0/2  [order-45]  " in printed[6]
    assert "next tuesday" in printed[6]

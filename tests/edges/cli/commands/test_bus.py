"""`--bus`: the bus of a schedule, on a server that has both."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.edges.cli.conftest import Cli
from tests.edges.http.site import Site, serving
from tidings.__main__ import NodeHooks
from tidings.edges.cli.main import main
from tidings.engine import Settings
from tidings.timeline.memory import MemoryStore


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving(MemoryStore(), settings=Settings(bus="kafka")) as served:
        yield served


COMMANDS = [
    ("schedule", "--to", "orders", "--at", "+1h", "v"),
    ("publish", "orders", "v"),
    ("replace", "one", "--create", "--to", "orders", "--at", "+1h", "v"),
]


@pytest.mark.parametrize("said", [(), ("--bus", "kafka"), ("--bus", "log")], ids=["default", "kafka", "log"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
async def test_each_command_releases_to_the_chosen_bus(
    site: Site, command: tuple[str, ...], said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code = await asyncio.to_thread(main, [*command, *said, "--json", "--url", site.url], NodeHooks())
    out, err = capsys.readouterr()
    assert code == 0, err
    made: dict[str, Any] = json.loads(out)
    shown = (await site.call("GET", f"/v1/schedules/{made['id']}")).document
    assert shown["bus"] == ("log" if "log" in said else "kafka")


def test_kafka_is_refused_by_a_server_without_it(cli: Cli) -> None:
    done = cli("publish", cli.topic, "v", "--bus", "kafka")
    assert done.code == 2
    assert "bus: this node has the built-in log only" in done.err


def test_bus_is_refused_together_with_a_file(cli: Cli) -> None:
    done = cli("schedule", "--from", "-", "--bus", "log")
    assert done.code == 2
    assert "leave out --bus" in done.err

"""A real server in a thread, and the command line called in this process."""

import argparse
import asyncio
import io
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidings.__main__ import NodeHooks
from tidings.config import Config
from tidings.config.checks import ProviderTable
from tidings.config.settings import Logs, Server, Store
from tidings.edges.cli.main import main, parse
from tidings.node import serve_node

PATIENCE_S = 10.0
POLL_S = 0.02
POLLS_MAX = 500


class Done(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


class RunningNode:
    """A node on a free port and in memory, in a thread of its own. Notifications are written to a folder."""

    def __init__(self, files: Path, *channels: ProviderTable) -> None:
        self.url = ""
        self._channels = channels
        self.files = files
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        files = ProviderTable(name="files", provider="files", settings={"folder": str(self.files), "terminal": False})
        channels = (*self._channels, files)
        config = Config(server=Server(port=0), store=Store(":memory:"), logs=Logs(level="error"), channels=channels)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serve_node(config, self._stop, self._listening))

    def _listening(self, url: str) -> None:
        self.url = url
        self._ready.set()


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("files"))
    running.start()
    yield running
    running.stop()


class Cli:
    """Calls commands against the running server. `topic` is a name that no other test uses."""

    def __init__(self, url: str, topic: str, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.topic = topic
        self._capsys = capsys
        self._patch = patch

    def __call__(self, *argv: str, server: bool = True) -> Done:
        if server and argv and argv[0] in {"version", "serve", "bench"}:
            server = False
        self._patch.setenv("TIDINGS_URL", self.url if server else "http://127.0.0.1:1")
        self._capsys.readouterr()
        code = main(argv, NodeHooks())
        out, err = self._capsys.readouterr()
        return Done(code, out, err)

    def json(self, *argv: str) -> Any:
        """The document that a successful command prints."""
        done = self(*argv, "--json")
        assert done.code == 0, done
        return json.loads(done.out)

    def tail(self, topic: str, count: int, *argv: str) -> list[dict[str, Any]]:
        """Wait for this many records of a topic."""
        done = self("tail", topic, "--count", str(count), "--from", "beginning", "--json", *argv)
        assert done.code == 0, done
        return [json.loads(line) for line in done.out.splitlines()]

    def wait_released(self, schedule_id: str) -> None:
        """Wait until a fired schedule is released and its record is on its topic."""
        topic = self.json("show", schedule_id)["topic"]
        assert any(record["id"] == schedule_id for record in self.tail(topic, 1))

    def settled(self, notification: str, state: str = "sent") -> dict[str, Any]:
        """A notification, once it is in this state."""
        found: dict[str, Any] = {}
        pause = threading.Event()
        for _ in range(POLLS_MAX):
            found = self.json("notifications", "show", notification)
            if found["state"] == state:
                return found
            pause.wait(POLL_S)
        raise AssertionError(f"still {found}")

    def stdin(self, content: bytes) -> None:
        """What the next command reads from standard input."""
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    @staticmethod
    def parse(argv: list[str]) -> argparse.Namespace:
        return parse(argv)


@pytest.fixture
def cli(
    node: RunningNode,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.delenv("TIDINGS_KEY", raising=False)
    monkeypatch.delenv("TIDINGS_TENANT", raising=False)
    topic = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:100]
    return Cli(node.url, topic, capsys, monkeypatch)

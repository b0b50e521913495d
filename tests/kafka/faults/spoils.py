"""Tidings with one guard left out, to show what that guard is for."""

import importlib
from typing import Any

MARKER = "marker"
WATCH = "watch"


def apply(name: str) -> None:
    """Leave a guard out of this process: its nodes are not to be trusted from here on."""
    if name == MARKER:
        _without_marker()
    elif name == WATCH:
        _without_watch()
    else:
        assert not name, name


def _without_marker() -> None:
    """The usual outbox: publish in a transaction, then note in the store what is done, and go on from there."""
    lane: Any = importlib.import_module("tidings.bus.kafka.producers")
    forwarder: Any = importlib.import_module("tidings.bus.kafka.forwarder")
    lane.Lane._mark = lambda *_: None
    lane.read_marker = lambda *_, **__: None
    forwarder.SETTLE_S = 0.0


def _without_watch() -> None:
    """A connection that was lost goes unnoticed, as with the plain recipe."""
    client: Any = importlib.import_module("tidings.bus.kafka.client")
    client.Watch.emit = lambda *_: None
    client.Watch.error = lambda *_: None

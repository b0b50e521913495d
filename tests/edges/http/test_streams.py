"""Calls that wait: they end when the server stops, even if a cancellation is lost."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import cast

import pytest

from tidings import tasks
from tidings.edges.http.routes import Call, Edge
from tidings.edges.http.streams import unless_interrupted


async def never() -> None:
    await asyncio.Event().wait()


async def test_work_that_loses_its_first_cancellation_ends_when_the_server_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.01)
    edge = cast(Edge, SimpleNamespace(stopping=asyncio.Event()))
    call = cast(Call, SimpleNamespace(receive=never))

    async def ignores_the_first_cancel() -> str:
        edge.stopping.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()
        return "done"

    assert await asyncio.wait_for(unless_interrupted(edge, call, ignores_the_first_cancel()), 10) is None

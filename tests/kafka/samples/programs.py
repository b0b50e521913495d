"""Programs of other projects, as processes."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out

FOLDER = Path(__file__).parent
RUN_S_MAX = 60.0
HUNDREDTH_US = 10_000

T = TypeVar("T")


def there(get: Callable[[], T]) -> T:
    """A program that a test needs; without it the test is skipped with what to install."""
    try:
        return get()
    except Missing as missing:
        leave_out(missing)


def sample(name: str, replacements: dict[str, str]) -> str:
    """A sample as its page has it, but for these replacements; all that it holds of them."""
    text = (FOLDER / name).read_text("utf-8")
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def soon(seconds: float) -> tuple[int, str]:
    """A moment ahead in microseconds, and as the pages write it: with hundredths of a second."""
    due = (int((time.time() + seconds) * 1_000_000) // HUNDREDTH_US + 1) * HUNDREDTH_US
    return due, written(due)


def written(due: int) -> str:
    """A moment in whole hundredths as 2026-07-21T19:20:30.45Z."""
    moment = datetime.fromtimestamp(due // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{due % 1_000_000 // HUNDREDTH_US:02}Z"


class Program:
    """A running program and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said = ""

    async def line(self, wanted: str) -> tuple[str, int]:
        """The next line that holds this text, and when it came."""
        assert self._process.stdout is not None
        async with asyncio.timeout(RUN_S_MAX):
            async for line in self._process.stdout:
                self.said += line.decode(errors="replace")
                if wanted.encode() in line:
                    return line.decode().rstrip(), time.time_ns() // 1_000
        raise AssertionError(f"ended without saying {wanted}:\n{self.said}")


@contextlib.asynccontextmanager
async def running(*command: str, **environment: str) -> AsyncIterator[Program]:
    """A program that ends with the block at the latest."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.communicate()


async def output(*command: str | bytes, stdin: bytes = b"", **environment: str) -> bytes:
    """The output of a program that ends successfully."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(RUN_S_MAX):
            printed, wrong = await process.communicate(stdin)
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    assert process.returncode == 0, (printed + wrong).decode(errors="replace")
    return printed

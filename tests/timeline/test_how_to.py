"""The commands of the how-to about moving to PostgreSQL run against a real one."""

import asyncio
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from tests.contract.factories import HOUR, add
from tests.contract.stores import Served
from tests.docs.pages import DOCS, blocks
from tests.docs.terminal import masked
from tidings.clock import SystemClock
from tidings.timeline.sqlite.store import SqliteStore

pytestmark = [pytest.mark.slow]

ADDRESS = "postgres://tidings_node@localhost/tidings"
BLOCK_S_MAX = 60.0


async def make_store(path: Path) -> None:
    clock, store = SystemClock(), await SqliteStore.open(path)
    assert await store.acquire(clock.elapsed(), HOUR)
    await store.apply([add("kept", clock.now() + HOUR)], clock.now())
    await store.close()


def test_the_commands_of_the_how_to_work(tmp_path: Path) -> None:
    asyncio.run(make_store(tmp_path / "tidings.db"))
    with psycopg.connect(Served.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE tidings")
    dsn = Served.dsn().rpartition("/")[0] + "/tidings"
    page = [block for block in blocks(DOCS / "how-to/move-to-postgres.md") if block.language in {"sh", "text"}]
    said = {block.text: after.text for block, after in pairwise(page) if after.language == "text"}
    output_of = {}
    for block in (block for block in page if block.language == "sh" and not block.runs):
        if block.text == f".venv/bin/tidings serve --store {ADDRESS}\n":
            continue  # it would run for ever
        command = block.text.replace(".venv/bin/tidings", f"{sys.executable} -m tidings").replace(ADDRESS, dsn)
        environment = os.environ | {"NO_COLOR": "1"}
        run = ["bash", "-c", command]
        done = subprocess.run(
            run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BLOCK_S_MAX, check=False
        )
        printed = done.stdout.replace(dsn, ADDRESS).replace(f"{tmp_path}/", "")
        output_of[block.text] = printed + done.stderr
        if block.text in said:
            assert masked(printed) == masked(said[block.text]), done.stderr
    refused = output_of[".venv/bin/tidings serve --store tidings.db\n"]
    assert "this store has moved to" in refused
    assert "copy --from" in refused
    assert "can be served again" in output_of[".venv/bin/tidings copy --from sqlite:tidings.db --take-back\n"]

"""Writes of single rows: the whole effect of a decision is stored."""

from pathlib import Path

import msgspec
import pytest

from tests.contract.factories import ACME, HOUR, NOW, add, every
from tests.timeline.sqlite.test_failures import FOREVER
from tidings.domain.schedules.command import Add
from tidings.timeline.sqlite import id_lookup, row_writes
from tidings.timeline.sqlite.store import SqliteStore
from tidings.timeline.store_rules import terms_of_row


@pytest.mark.parametrize("schedule", [add("a", NOW + HOUR), every("a", NOW + HOUR, period=HOUR)])
async def test_a_schedule_is_paused_with_the_terms_of_the_decision(tmp_path: Path, schedule: Add) -> None:
    store = await SqliteStore.open(tmp_path / "pause.db")
    assert await store.acquire(0, FOREVER)
    await store.apply([schedule], NOW)
    writer = store._writer
    found = id_lookup.find(writer.connection, writer, ACME, "a", NOW)
    assert found is not None
    terms = terms_of_row(found)
    assert terms is not None
    decided = msgspec.structs.replace(terms, tzdata="2030z")
    with writer.transaction():
        row_writes.pause(writer, found, decided)
    paused = id_lookup.find(writer.connection, writer, ACME, "a", NOW)
    assert paused is not None
    assert (paused.state, paused.terms) == ("paused", decided)
    await store.close()

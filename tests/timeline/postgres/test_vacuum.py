"""No bloat: the space of released rows is reused."""

import pytest

from tests.contract.factories import DAY, NOW, SECOND, add, drain
from tests.servers.postgres import Postgres
from tests.timeline.postgres.conftest import OpenStore
from tidings.testing import SimulatedClock, eventually
from tidings.timeline.postgres import retention

ROUNDS = 12
ROWS = 1_000


async def test_tables_do_not_grow_with_released_rows(
    postgres: Postgres, open_store: OpenStore, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "DEAD_ROWS_MIN", ROWS // 2)
    monkeypatch.setattr(retention, "CHECK_S", 3_600.0)
    store = await open_store(SimulatedClock(), lanes=2)
    await store.acquire(0, DAY)
    sizes = []
    with postgres.connect() as connection:
        for number in range(ROUNDS):
            now = NOW + number * SECOND
            await store.apply([add(None, now, value=b"x" * 200) for _ in range(ROWS)], now)
            await drain(store, now)

            async def vacuumed() -> bool:
                return "timeline" in await store._vacuum.look()

            await eventually(vacuumed, 10)
            row = connection.execute(f"SELECT pg_total_relation_size('{schema}.timeline')").fetchone()
            assert row is not None
            sizes.append(int(str(row[0])))
    assert sizes[-1] <= 2 * sizes[0], sizes

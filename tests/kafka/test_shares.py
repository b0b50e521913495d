"""Fair shares up to Kafka: a burst that is not on Kafka yet delays no other tenant, and can be cancelled."""

import pytest

from tests.kafka.site import Site
from tidings.domain.schedules.command import Cancel, Priority
from tidings.domain.schedules.schedule import Request
from tidings.testing import eventually
from tidings.timeline.store_rules import OUTBOX_ROWS_MAX

pytestmark = pytest.mark.slow

BURST = 50_000
CHUNK = 1_000
REFILL_ROWS_MAX = 4_000  # what may leave of a burst before a single message has its turn


async def test_a_single_message_does_not_wait_for_the_burst_of_another(site: Site) -> None:
    """Everything is due while Kafka is paused; then the single message is released before most of the burst."""
    topic, engine = f"{site.name}-shared", site.engine
    site.broker.create_topic(topic)
    await engine.schedule("acme", Request(topic, b"first"))
    assert len(await site.read(topic, 1)) == 1
    (lane,) = engine.store.lanes()
    site.broker.pause()
    try:
        for first in range(0, BURST, CHUNK):
            rows = range(first, first + CHUNK)
            await engine.submit([engine.admit("acme", Request(topic, b"burst", id=f"row-{row}")) for row in rows])

        async def is_at_rest() -> bool:
            return lane.next_due() is None

        await eventually(is_at_rest, timeout_s=30)
        assert (await engine.count()).overdue >= BURST - OUTBOX_ROWS_MAX
        (outcome,) = await engine.submit([Cancel("acme", f"row-{BURST - 1}")])
        assert outcome.outcome == "cancelled"
        await engine.schedule("globex", Request(topic, b"single", priority=Priority.HIGH))
    finally:
        site.broker.resume()
    records = [record.value() for record in await site.read(topic, BURST + 1)]
    assert len(records) == BURST + 1
    assert records.index(b"single") <= OUTBOX_ROWS_MAX + REFILL_ROWS_MAX

"""Deliveries on the durable stores: a SQLite file, and a database that two nodes share."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.contract.stores import Served
from tests.delivery.test_kills import failing_provider
from tests.delivery.world import QUICK, SECOND, Recorder, ada, changed, started_world, states, words
from tidings.clock import SystemClock
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.domain.notifications.rate_limit import Rate
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

NAMES = [f"n-{k}" for k in range(150)]
PATIENT = changed(QUICK, policy=msgspec.structs.replace(QUICK.policy, claim_us=20 * SECOND))


@pytest.mark.slow
async def test_deliveries_on_sqlite(tmp_path: Path) -> None:
    async with started_world(await SqliteStore.open(tmp_path / "t.db")) as world:
        await world.put_user(ada())
        provider, tried = Recorder(deduplicates=False), Counter[str]()
        provider.answer = lambda message: failing_provider(message, tried)
        for _ in range(2):
            world.start(world.worker({"all": provider}, PATIENT))
        await world.notify(*(words(name, "email", "sms") for name in NAMES))
        found = await world.settled(*(f"{name}/1" for name in NAMES), timeout_s=30)
        assert states(found) == {"sent": len(NAMES)}
        assert set(provider.took.values()) == {1}


@pytest.mark.slow
async def test_two_nodes_on_one_database_share_the_work_and_the_limits() -> None:
    stores = [
        await PostgresStore.open(Served.dsn(), SystemClock(), lanes=4, schema="deliver_two_nodes") for _ in range(2)
    ]
    rates = RateLimits({"all": Rate(200.0, burst=20)})
    async with started_world(stores[0]) as one, started_world(stores[1]) as two:
        await one.put_user(ada())
        providers = [Recorder(deduplicates=False), Recorder(deduplicates=False)]
        for node, provider in zip((one, two), providers, strict=True):
            node.start(node.worker({"all": provider}, changed(PATIENT, rates=rates)))
        begun = one.clock.now()
        await one.notify(*(words(name) for name in NAMES))
        found = await one.settled(*(f"{name}/1" for name in NAMES), timeout_s=40)
        assert states(found) == {"sent": len(NAMES)}
        assert one.clock.now() - begun >= (len(NAMES) - 20 - 20) / 200 * SECOND, "one limit for both"
        took = providers[0].took + providers[1].took
        assert set(took.values()) == {1}
        assert len(took) == len(NAMES)
        assert all(provider.calls for provider in providers), "both have their share"

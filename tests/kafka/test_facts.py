"""Facts on Kafka, and the metrics of a node with Kafka."""

import asyncio
import contextlib
import json
import re
from typing import Any

import pytest

from tests.kafka.served import PATIENCE_S, Served
from tests.kafka.site import read_all
from tidings.edges.cli.client import Client
from tidings.testing import eventually

pytestmark = pytest.mark.slow

ASKED_MAX = 20


async def facts_of(
    served: Served, topic: str, tenant: str, count: int, patience_s: float = PATIENCE_S
) -> list[tuple[bytes | None, Any]]:
    """Read this many facts of a tenant, each with its key."""

    async def found() -> list[tuple[bytes | None, Any]]:
        records = await asyncio.to_thread(read_all, served.broker, topic)
        facts = [(record.key(), json.loads(record.value() or b"")) for record in records]
        mine = [(key, fact) for key, fact in facts if fact.get("tenant") == tenant]
        return mine if len(mine) >= count else []

    return await eventually(found, timeout_s=patience_s)


async def actions_of(served: Served, tenant: str) -> list[tuple[bytes | None, Any]]:
    """Facts on the tenant's own topic. The topic may be noticed some seconds later, so retry."""
    for _ in range(ASKED_MAX):
        ask(served, tenant, "CANCEL", "nobody")
        with contextlib.suppress(AssertionError):
            return await facts_of(served, f"{tenant}-schedule-actions", tenant, 1, patience_s=2.0)
    raise AssertionError("nothing is published on the topic of the tenant")


def figures(served: Served, app: str = "") -> dict[str, float]:
    """All metrics without labels, and Kaspr's metrics of this app."""
    with Client(served.url).request("GET", "/metrics") as response:
        text = response.read().decode()
    own = rf'{{app_name="{app}",worker_name="[^"]+"(?:,type="D",partition="0")?}}'
    return {name: float(value) for name, value in re.findall(rf"^(\w+)(?:{own})? ([-\d.]+)$", text, re.MULTILINE)}


def ask(
    served: Served, tenant: str, action: str, name: str, value: bytes = b"", at: str = "2031-01-01T00:00:00Z"
) -> None:
    served.send(
        f"{tenant}-schedule-requests",
        value,
        b"key",
        ("x-scheduler-action", action),
        ("x-scheduler-request-id", name),
        ("x-scheduler-deliver-at", at),
        ("x-scheduler-deliver-to", f"{tenant}-out"),
    )


async def test_facts_have_every_change_and_release_of_schedules(served: Served, tenant: str) -> None:
    ask(served, tenant, "ADD", "one", b"first")
    ask(served, tenant, "REPLACE", "one", b"instead")
    ask(served, tenant, "REPLACE", "one", b"instead")
    ask(served, tenant, "CANCEL", "one")
    ask(served, tenant, "CANCEL", "nobody")
    ask(served, tenant, "ADD", "two", b"now", "2020-01-01T00:00:00Z")
    ask(served, tenant, "ADD", "bad", b"when", "tomorrow")
    facts = await facts_of(served, "tidings.facts", tenant, 8)
    words = [(fact["fact"], fact.get("id"), fact.get("action"), fact.get("outcome")) for _, fact in facts]
    assert words[:5] == [
        ("accepted", "one", "add", "scheduled"),
        ("replaced", "one", "replace", "replaced"),
        ("unchanged", "one", "replace", "unchanged"),
        ("cancelled", "one", "cancel", "cancelled"),
        ("unchanged", "nobody", "cancel", "unknown"),
    ]
    assert {word[:2] for word in words[5:]} == {("accepted", "two"), ("released", "two"), ("rejected", None)}
    released = next(fact for _, fact in facts if fact["fact"] == "released")
    assert (released["topic"], released["bus"], released["occurrence"]) == (f"{tenant}-out", "kafka", "two/1/1")
    rejected = next(fact for _, fact in facts if fact["fact"] == "rejected")
    assert rejected["source_topic"] == f"{tenant}-schedule-requests"
    assert rejected["source_offset"] == 6
    assert "tomorrow" in rejected["reasons"][0]
    assert all(key == (fact["id"].encode() if "id" in fact else None) for key, fact in facts)
    actions = await actions_of(served, tenant)
    assert {fact["fact"] for _, fact in actions} <= {fact["fact"] for _, fact in facts}


async def test_metrics_of_a_node_with_kafka(served: Served, tenant: str) -> None:
    before = figures(served)["tidings_kafka_release_seconds_count"]
    ask(served, tenant, "ADD", "one", b"first")
    ask(served, tenant, "REPLACE", "one", b"other")
    ask(served, tenant, "REPLACE", "one", b"other")
    ask(served, tenant, "CANCEL", "one")
    ask(served, tenant, "ADD", "two", b"now", "2020-01-01T00:00:00Z")
    ask(served, tenant, "ADD", "bad", b"when", "tomorrow")

    wanted = {
        "scheduled": 2,
        "delivered_instant": 1,
        "replaced": 1,
        "replace_noop": 1,
        "canceled": 1,
        "delivered": 2,  # with the rejection
        "removed": 2,
    }

    async def have_grown() -> bool:
        found = figures(served, tenant)
        names = {f"kaspr_kms_messages_{word}{end}": more for word, more in wanted.items() for end in ("", "_total")}
        released = found["tidings_kafka_release_seconds_count"] - before
        return released >= 2 and all(found.get(name) == more for name, more in names.items())

    await eventually(have_grown, timeout_s=PATIENCE_S)
    now = figures(served, tenant)
    assert now["tidings_kafka_up"] == 1
    assert now["tidings_kafka_facts_dropped_total"] == 0
    assert now["kaspr_kms_timetable_size"] == now["tidings_pending"]
    assert {
        "tidings_kafka_consumer_lag",
        "tidings_kafka_transaction_failures_total",
        "kaspr_kms_last_location_lag",
    } <= now.keys()

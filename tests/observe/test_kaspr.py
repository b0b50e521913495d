"""Metrics for Kaspr dashboards, with the labels that they select by."""

import re
from collections.abc import Set

from tidings.domain.facts import Changed, Released
from tidings.domain.schedules.command import Add, Cancel, Command, Outcome, Replace
from tidings.domain.schedules.when import Once
from tidings.observe.metrics import LABELS_MAX, KasprMetrics, Worker
from tidings.ports import Count
from tidings.testing import SimulatedClock

AT = 1_795_165_200_000_000
WORKER = Worker(name="node-1", group="tidings", version="tidings-0.1.0")
COMMON = {"app_name": "orders", "worker_name": "node-1"}

Labels = frozenset[tuple[str, str]]


def made(apps: Set[str] | None = frozenset({"orders", "idle"}), due: int | None = None) -> KasprMetrics:
    return KasprMetrics(WORKER, lambda: apps, lambda: due, lambda: True, SimulatedClock(AT))


def add(tenant: str = "orders") -> Add:
    return Add(tenant, "a", "kafka:out", Once(AT), b"", bytes(16), AT)


def series(metrics: KasprMetrics, count: Count | None = None) -> dict[tuple[str, Labels], str]:
    """Each value by name and labels."""
    found = {}
    for line in metrics.lines(count):
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+){(.*)} (\S+)", line).groups()  # type: ignore[union-attr]
            found[name, frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))] = value
    return found


def value(found: dict[tuple[str, Labels], str], name: str, **labels: str) -> str:
    """The only series that a selector finds."""
    [only] = [text for (each, has), text in found.items() if each == name and labels.items() <= dict(has).items()]
    return only


def test_changes_are_counted_for_their_app() -> None:
    metrics = made()
    commands: list[Command] = [add(), Replace(add()), Replace(add()), Cancel("orders", "a"), Cancel("orders", "b")]
    commands += [add(), add("other")]
    outcomes = [
        Outcome("a", "scheduled", due=AT + 1),
        Outcome("a", "replaced", due=AT),
        Outcome("a", "unchanged"),
        Outcome("a", "cancelled"),
        Outcome("b", "unknown"),
        Outcome("c", "scheduled", due=AT),
        Outcome("d", "scheduled", due=AT),
    ]
    metrics(Changed(AT, commands, outcomes))
    metrics(Released(AT, [1, 2, 3], frozenset({("orders", "kafka:out")}), {"orders": 2, "other": 1}))
    metrics(Released(AT, [1], frozenset({("orders", "out")})))
    found = series(metrics, Count(5, 0, 0))
    wanted = {"scheduled": "2", "delivered_instant": "1", "replaced": "1", "replace_noop": "1", "canceled": "1"}
    wanted |= {"delivered": "2", "removed": "2"}
    for word, count in wanted.items():
        for name in (f"kaspr_kms_messages_{word}", f"kaspr_kms_messages_{word}_total"):
            assert value(found, name, **COMMON) == count
            assert value(found, name, app_name="idle") == "0"
    assert value(found, "kaspr_kms_timetable_size", **COMMON) == "5"
    assert "other" not in {dict(labels)["app_name"] for _, labels in found}
    assert "kaspr_kms_timetable_size" not in {name for name, _ in series(metrics)}


def test_the_selectors_of_the_dashboard_find_something() -> None:
    """The selectors of `grafana-dashboards/scheduler.json`, without `namespace`, which Prometheus adds."""
    found = series(made(due=AT - 2_500_000), Count(5, 0, 0))
    info = {"group_id": "tidings", "kaspr_version": "tidings-0.1.0", "kms_enabled": "1"}
    assert value(found, "kaspr_app_info", **COMMON, **info) == "1795165200"
    assert value(found, "kaspr_health", **COMMON) == "0"
    for role in ("D", "J"):
        assert value(found, "kaspr_kms_last_location_lag", **COMMON, type=role, partition="0") == "2.5"
        assert value(found, "kaspr_kms_last_location_time", **COMMON, type=role, partition="0") == "1795165197.5"


def test_a_node_without_intake_shows_the_tenants_it_releases_for() -> None:
    metrics = made(None)
    tenants = {f"t{number:03}": 1 for number in range(LABELS_MAX + 5)} | {'a"b': 1}
    metrics(Released(AT, [], frozenset(), {"orders": 1}))
    metrics(Released(AT, [], frozenset(), tenants))
    shown = {dict(labels)["app_name"] for _, labels in series(metrics)}
    assert len(shown) == LABELS_MAX
    assert "orders" in shown


def test_labels_are_escaped() -> None:
    lines = [line for line in made({'a"b\\c'}).lines(None) if line.startswith("kaspr_health{")]
    assert lines == [r'kaspr_health{app_name="a\"b\\c",worker_name="node-1"} 0']

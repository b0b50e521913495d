"""Which request topics are read: all by default, or those that the settings select."""

from collections.abc import Mapping, Sequence

import pytest

from tidings.config.settings import Kafka
from tidings.domain.errors import Invalid
from tidings.edges.kafka.request_topics import Requests

TOPICS = [
    "assignments.acme",
    "assignments.shop",
    "acme-schedule-requests",
    "shop-schedule-requests",
    "schedules",
    "videos",
    "tidings.requests.acme",
    "tidings.requests.shop",
]
OTHERS = ["orders", "executions.acme", "tidings.progress", "tidings.facts", "acme-schedule-actions", "my-schedules"]


def taken(
    wires: Sequence[str] = Kafka().wires,
    tenants: Sequence[str] = Kafka().tenants,
    schedules: Mapping[str, str] | None = None,
) -> list[str]:
    requests = Requests(wires, tenants, Kafka().schedules if schedules is None else schedules, {})
    return [topic for topic in TOPICS + OTHERS if requests.takes(topic)]


@pytest.mark.parametrize(
    ("wires", "tenants", "destinations", "topics"),
    [
        (Kafka().wires, ["*"], {}, {"schedules", "tidings.requests.default", "tidings.notify.default"}),
        (["intervals", "kaspr"], ["acme", "eu-*"], {}, {"assignments.acme", "acme-schedule-requests"}),
        (["native"], ["acme", "default"], {}, {"tidings.requests.acme", "tidings.requests.default"}),
        (["native", "etf1"], ["acme"], {}, {"tidings.requests.acme"}),
        (["intervals"], ["eu-*"], {"eu-shop": ["a"], "us-shop": ["a"]}, {"assignments.eu-shop"}),
        ([], ["acme"], {}, set()),
    ],
)
def test_request_topics_of_known_tenants(
    wires: list[str], tenants: list[str], destinations: dict[str, list[str]], topics: set[str]
) -> None:
    assert Requests(wires, tenants, Kafka().schedules, destinations).known_topics == topics


def test_every_request_topic_by_default() -> None:
    assert taken() == [topic for topic in TOPICS if topic != "videos"]


@pytest.mark.parametrize(
    ("wires", "topics"),
    [
        (["intervals"], ["assignments.acme", "assignments.shop"]),
        (["kaspr"], ["acme-schedule-requests", "shop-schedule-requests"]),
        (["etf1"], ["schedules"]),
        (["native"], ["tidings.requests.acme", "tidings.requests.shop"]),
        ([], []),
    ],
)
def test_wires(wires: list[str], topics: list[str]) -> None:
    assert taken(wires) == topics


def test_tenants_of_every_wire() -> None:
    acme = ["assignments.acme", "acme-schedule-requests", "tidings.requests.acme"]
    assert taken(tenants=["acme"]) == acme
    assert taken(tenants=["ac*", "x"]) == acme
    assert taken(tenants=["[!as]*"]) == ["schedules"]
    assert taken(tenants=["ACME"]) == []
    assert taken(tenants=[]) == []


def test_topics_of_etf1_and_their_tenants() -> None:
    schedules = {"schedules": "acme", "videos": "shop"}
    assert taken(["etf1"], schedules=schedules) == ["schedules", "videos"]
    assert taken(["etf1"], ["shop"], schedules) == ["videos"]
    assert taken(["etf1"], schedules={}) == []


def test_a_topic_of_a_disabled_wire_is_not_read_by_another() -> None:
    assert not Requests(["kaspr"], ["*"], {}, {}).takes("assignments.x-schedule-requests")


def test_topics_of_etf1_take_no_deliveries_even_where_they_are_not_read() -> None:
    requests = Requests(["native"], ["acme"], {"schedules": "default", "videos": "shop"}, {})
    assert requests.destinations.forbidden("acme", "videos") == "videos is a request topic: choose another topic"


@pytest.mark.parametrize("topic", ["tidings.progress", "assignments.x", "x-schedule-requests", "executions.x"])
def test_reserved_topics_cannot_be_request_topics_of_etf1(topic: str) -> None:
    with pytest.raises(Invalid, match=f"kafka.schedules: {topic} .*: choose another topic"):
        Requests(["etf1"], ["*"], {topic: "default"}, {})

"""Which topics requests may name."""

import pytest

from tidings.wires.wire import Destinations, is_topic

OPEN = Destinations()


@pytest.mark.parametrize(
    "topic", ["greetings", "a", "A.b_c-d", "t" * 249, "executions.acme", "rejections.acme", "my.tidings.x"]
)
def test_any_other_topic_may_be_named(topic: str) -> None:
    assert OPEN.forbidden("acme", topic) is None


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("tidings.progress", "reserved for Tidings"),
        ("tidings.requests.acme", "reserved for Tidings"),
        ("tidings.rejections.acme", "reserved for Tidings"),
        ("assignments.acme", "is a request topic"),
        ("assignments.", "is a request topic"),
        ("acme-schedule-requests", "is a request topic"),
        ("executions.acme-schedule-requests", "is a request topic"),
        ("schedules", "is a request topic"),
        ("acme-schedule-actions", "reserved for Tidings"),
        ("acme-schedule-rejections", "reserved for Tidings"),
        ("executions.other", "belongs to another tenant"),
        ("executions.acme.other", "belongs to another tenant"),
        ("rejections.other", "belongs to another tenant"),
        ("__consumer_offsets", "reserved for Kafka"),
        ("", "use letters"),
        (".", "use letters"),
        ("..", "use letters"),
        ("a b", "use letters"),
        ("a\n", "use letters"),
        ("é", "use letters"),
        ("t" * 250, "use letters"),
    ],
)
def test_reserved_and_invalid_topics_are_forbidden_to_everyone(topic: str, why: str) -> None:
    for destinations in (OPEN, Destinations({"acme": ["*"]})):
        reason = destinations.forbidden("acme", topic)
        assert reason is not None
        assert why in reason


def test_patterns_narrow_one_tenant() -> None:
    narrow = Destinations({"acme": ["orders.*", "audit"], "mute": []})
    assert narrow.forbidden("acme", "orders.eu") is None
    assert narrow.forbidden("acme", "audit") is None
    assert narrow.forbidden("acme", "audit2") == (
        "audit2 is not among the topics that acme may write to: orders.*, audit"
    )
    assert narrow.forbidden("mute", "anything") is not None
    assert narrow.forbidden("other", "anything") is None


def test_patterns_do_not_close_what_intervals_delivers_to() -> None:
    narrow = Destinations({"acme": ["orders.*"], "mute": []})
    assert narrow.forbidden("acme", "executions.acme") is None
    assert narrow.forbidden("mute", "executions.mute") is None
    assert narrow.forbidden("mute", "executions.acme") is not None


def test_request_topics_of_etf1_are_configured() -> None:
    configured = Destinations(schedules={"video-schedules"})
    assert configured.forbidden("acme", "video-schedules") is not None
    assert configured.forbidden("acme", "schedules") is None


def test_names_of_topics() -> None:
    assert is_topic("...")
    assert not is_topic("a/b")

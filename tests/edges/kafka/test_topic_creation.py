"""Creation of topics: a topic that cannot be created is retried, and logged once."""

import pytest

pytest.importorskip("confluent_kafka")

from tidings.bus.kafka.topics import Cluster, Topics, TopicUnavailable
from tidings.edges.kafka import request_topics
from tidings.edges.kafka.request_topics import TopicCreation
from tidings.testing import SimulatedClock, eventually


class ForbiddenTopics:
    """Topics of which some cannot be created."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.forbidden: dict[str, str] = {"b": "forbidden"}

    def ensure(self, names: set[str]) -> None:
        self.asked.append(set(names))
        if failed := {name: reason for name, reason in self.forbidden.items() if name in names}:
            raise TopicUnavailable("some cannot be created", failed)


async def test_a_topic_that_cannot_be_created_is_retried_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guarded, clock = ForbiddenTopics(), SimulatedClock()
    monkeypatch.setattr(Topics, "ensure", lambda _, names: guarded.ensure(names))
    made = TopicCreation(Cluster("127.0.0.1:1"), clock)
    try:
        made.request({"a", "b", "c"})
        await eventually(lambda: settled(made))
        assert guarded.asked == [{"a", "b", "c"}, {"a", "c"}]
        made.request({"d"})
        await eventually(lambda: settled(made))
        assert guarded.asked[2:] == [{"d"}]
        clock.advance(request_topics.AGAIN_US)
        made.request(set())
        await eventually(lambda: settled(made))
        assert guarded.asked[3:] == [{"b"}]
        assert [record.getMessage() for record in caplog.records] == ["cannot create the topics b: forbidden"]
        guarded.forbidden.clear()
        clock.advance(request_topics.AGAIN_US)
        made.request(set())
        await eventually(lambda: settled(made))
        clock.advance(request_topics.AGAIN_US)
        made.request(set())
        assert guarded.asked[4:] == [{"b"}]
    finally:
        made.close()


def settled(made: TopicCreation) -> bool:
    made.request(set())
    return made._work is None

"""Topics that cannot be made are no reason to stop, nor to say so again and again."""

import pytest

pytest.importorskip("confluent_kafka")

from tidings.bus.kafka.client import Cluster
from tidings.bus.kafka.topics import NoTopic, Topics
from tidings.edges.kafka import request_topics
from tidings.edges.kafka.request_topics import TopicCreation
from tidings.testing import SimulatedClock, eventually


class Guarded:
    """Topics of which some cannot be made."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.forbidden: dict[str, str] = {"b": "forbidden"}

    def ensure(self, names: set[str]) -> None:
        self.asked.append(set(names))
        if failed := {name: reason for name, reason in self.forbidden.items() if name in names}:
            raise NoTopic("some cannot be made", failed)


async def test_one_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    guarded, clock = Guarded(), SimulatedClock()
    monkeypatch.setattr(Topics, "ensure", lambda _, names: guarded.ensure(names))
    made = TopicCreation(Cluster("127.0.0.1:1"), clock)
    try:
        made.want({"a", "b", "c"})
        await eventually(lambda: settled(made))
        assert guarded.asked == [{"a", "b", "c"}, {"a", "c"}]
        made.want({"d"})
        await eventually(lambda: settled(made))
        assert guarded.asked[2:] == [{"d"}]
        clock.advance(request_topics.AGAIN_US)
        made.want(set())
        await eventually(lambda: settled(made))
        assert guarded.asked[3:] == [{"b"}]
        assert [record.getMessage() for record in caplog.records] == ["topics that could not be created: b: forbidden"]
        guarded.forbidden.clear()
        clock.advance(request_topics.AGAIN_US)
        made.want(set())
        await eventually(lambda: settled(made))
        clock.advance(request_topics.AGAIN_US)
        made.want(set())
        assert guarded.asked[4:] == [{"b"}]
    finally:
        made.close()


def settled(made: TopicCreation) -> bool:
    made.want(set())
    return made._work is None

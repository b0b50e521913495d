"""Reports while Kafka is down."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kafka.served import Served
from tidings.edges.cli.client import Client
from tidings.edges.cli.exit_codes import Failure

pytestmark = pytest.mark.slow

NOTICED_S_MAX = 20.0
REPORTED_S_MAX = 4.5  # 3 s and some, on a machine that does other things too


@contextmanager
def alone(served: Served) -> Iterator[None]:
    """A node whose broker is stopped until the end of the test."""
    served.broker.kill()
    deadline = time.monotonic() + NOTICED_S_MAX
    while readiness(served)["status"] == "ready":
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)
    try:
        yield
    finally:
        served.broker.restart()


def readiness(served: Served) -> Any:
    try:
        return served.get("/readyz")
    except Failure as failure:
        return failure.document


def test_reports_while_kafka_is_down(served: Served, tenant: str, capsys: pytest.CaptureFixture[str]) -> None:
    served.broker.create_topic(tenant)
    with alone(served):
        Client(served.url).call("POST", "/v1/schedules", body={"topic": tenant, "value": "waits", "id": tenant})
        for argv in (("topics",), ("tail", tenant), ("rejections",), ("rejections", tenant)):
            begun = time.monotonic()
            code, out, err = served.command(capsys, *argv)
            assert time.monotonic() - begun < REPORTED_S_MAX, argv
            assert (code, out) == (1, ""), argv
            assert "Kafka does not answer: " in err
            assert "KafkaError" not in err
        state = readiness(served)
        assert state["status"] == 503
        words = state["detail"].removeprefix("changes are accepted, but Kafka is unavailable: ").split("; ")
        assert "KafkaError" not in state["detail"]
        assert len(set(words)) == len(words)
        code, out, _ = served.command(capsys, "explain", tenant)
        assert out.splitlines()[0] == f"{tenant} pending"
    code, out, _ = served.command(capsys, "tail", tenant, "--count", "1")
    assert "waits" in out

"""PostgreSQL becomes unavailable and returns: the node reports it, and continues by itself."""

from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from tests.node.conftest import Start
from tests.node.test_serve import START_S, eventually, is_ready
from tests.servers.fixtures import started_postgres
from tests.servers.postgres import Postgres
from tidings.clock import SystemClock
from tidings.edges.cli.client import Client
from tidings.edges.cli.exit_codes import Failure

pytestmark = [pytest.mark.slow]


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    yield from started_postgres()


def refusal_of(client: Client, method: str, path: str, **more: object) -> tuple[int, str]:
    """The status and the detail of a refusal."""
    with pytest.raises(Failure) as failed:
        client.call(method, path, **more)  # type: ignore[arg-type]
    return failed.value.document["status"], failed.value.document["detail"]


def test_postgres_is_unavailable_and_returns(start: Start, own_postgres: Postgres) -> None:
    node = start("--store", own_postgres.dsn)
    client = node.ready()
    body = {"topic": "x", "id": "before", "at": "+1s"}
    client.call("POST", "/v1/schedules", body=body)
    own_postgres.stop(immediate=True)

    assert eventually(lambda: not is_ready(client))
    assert eventually(lambda: "cannot be reached" in refusal_of(client, "GET", "/readyz")[1])
    for method, path, more in (
        ("GET", "/readyz", {}),
        ("POST", "/v1/schedules", {"body": body | {"id": "meanwhile"}}),
        ("GET", "/v1/schedules/before", {}),
        ("GET", "/v1/nodes", {}),
    ):
        status, detail = refusal_of(client, method, path, **more)
        assert status == 503
        assert "PostgreSQL cannot be reached" in detail
        assert "see that it runs" in detail
    assert client.call("GET", "/healthz")["status"] == "ok"
    assert "tidings_up 0" in client.call("GET", "/metrics")

    own_postgres.restart()
    assert eventually(lambda: is_ready(client)), node.log
    page = client.call("GET", "/v1/topics/x/records", query={"wait": "10s"})
    assert [record["id"] for record in page["records"]] == ["before"]
    assert client.call("POST", "/v1/schedules", body=body | {"id": "after"})["outcome"] == "scheduled"
    assert "Traceback" not in node.log
    node.logged('"level":"warning",[^\n]*"takes no changes: [^\n]*PostgreSQL')
    node.logged("the store answers again: owns lanes 0-15")
    assert node.log.count("takes no changes") == 1, node.log


def test_followers_are_asked_to_reconnect(start: Start, own_postgres: Postgres) -> None:
    node = start("--store", own_postgres.dsn)
    client = node.ready()
    client.call("POST", "/v1/schedules", body={"topic": "x", "id": "a"})
    with urlopen(f"{client.url}/v1/topics/x/stream", timeout=START_S) as stream:
        assert any(b'"id":"a"' in line for line in stream)
        own_postgres.stop(immediate=True)
        for _ in stream:  # until it ends
            pass
    assert eventually(lambda: not is_ready(client))
    assert "Traceback" not in node.log, node.log


def test_a_server_that_stops_responding_is_reported(start: Start, own_postgres: Postgres) -> None:
    node = start("--store", own_postgres.dsn)
    client = node.ready()
    clock = SystemClock()
    own_postgres.pause()
    try:
        node.logged("takes no changes: ")
        assert not is_ready(client)
        started = clock.elapsed()
        assert "tidings_up 0" in client.call("GET", "/metrics")
        assert refusal_of(client, "POST", "/v1/schedules", body={"topic": "x"})[0] == 503
        assert clock.elapsed() - started < 3_000_000
    finally:
        own_postgres.resume()
    assert eventually(lambda: is_ready(client)), node.log
    node.logged("the store answers again")
    assert "Traceback" not in node.log, node.log

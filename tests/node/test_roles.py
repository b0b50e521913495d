"""Nodes as processes on one database: what each does by its roles, and how they list each other."""

import itertools
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import Start
from tests.node.test_serve import NodeProcess, eventually, is_ready, tidings
from tests.servers.postgres import Postgres
from tidings import __version__
from tidings.edges.cli.client import Client
from tidings.edges.cli.commands.admin import _node
from tidings.edges.cli.exit_codes import Failure
from tidings.edges.cli.screen import Screen

pytestmark = [pytest.mark.slow]

_numbers = itertools.count(1)


@pytest.fixture
def shared(postgres: Postgres) -> list[str]:
    """The flags for a store that no other test uses."""
    schema = f"roles_{next(_numbers)}"
    return ["--store", postgres.dsn, "--set", f"store.schema={schema}", "--set", "store.lanes=4"]


def nodes(client: Client) -> dict[str, Any]:
    return {node["name"]: node for node in client.call("GET", "/v1/nodes")["nodes"]}


def owned(client: Client) -> dict[str, list[int]]:
    return {name: [lane["lane"] for lane in node["owns"]] for name, node in nodes(client).items()}


def named(start: Start, shared: list[str], name: str, *argv: str) -> NodeProcess:
    return start(*shared, "--set", f"node.name={name}", *argv)


def test_three_nodes_share_and_lanes_move(start: Start, shared: list[str]) -> None:
    first = named(start, shared, "north")
    client = first.ready()
    assert owned(client) == {"north": [0, 1, 2, 3]}
    second, third = (named(start, shared, name) for name in ("south", "west"))
    for node in (second, third):
        node.ready()

    def is_even() -> bool:
        lanes = owned(client)
        return sorted(map(len, lanes.values())) == [1, 1, 2] and sorted(itertools.chain(*lanes.values())) == [
            0,
            1,
            2,
            3,
        ]

    assert eventually(is_even), owned(client)
    for number, node in enumerate((first, second, third)):
        node.client().call("POST", "/v1/schedules", body={"topic": "x", "id": f"s{number}", "at": "+1s"})
    second.process.kill()
    assert eventually(lambda: nodes(client)["south"]["state"] == "gone"), nodes(client)
    assert eventually(lambda: sorted(map(len, owned(client).values())) == [0, 2, 2]), owned(client)

    def all_left() -> bool:
        return len(client.call("GET", "/v1/topics/x/records")["records"]) == 3

    assert eventually(all_left)
    third.process.send_signal(signal.SIGTERM)
    assert third.end()[0] == 0
    assert eventually(lambda: "west" not in nodes(client), 3.0), "who leaves in good order is not remembered"
    assert eventually(lambda: len(owned(client)["north"]) == 4, 3.0)
    first.logged(r"owns lanes 0-3")


def test_more_nodes_than_lanes(start: Start, postgres: Postgres) -> None:
    shared = ["--store", postgres.dsn, "--set", "store.schema=narrow", "--set", "store.lanes=1"]
    clients = {name: named(start, shared, name).ready() for name in ("north", "south")}
    lanes = owned(clients["north"])
    (idle,) = [name for name in lanes if not lanes[name]]
    outcome = clients[idle].call("POST", "/v1/schedules", body={"topic": "x", "id": "a", "at": "+300ms"})
    assert outcome["outcome"] == "scheduled"
    page = clients[idle].call("GET", "/v1/topics/x/records", query={"wait": "10s"})
    assert [record["id"] for record in page["records"]] == ["a"]


def test_an_api_node_and_a_dispatch_node_work_together(start: Start, shared: list[str]) -> None:
    front = named(start, shared, "front", "--roles", "api").ready()
    back = named(start, shared, "back", "--roles", "dispatch,deliver", "--host", "0.0.0.0")  # nothing to guard there
    behind = back.client()
    assert eventually(lambda: is_ready(behind)), back.log
    assert eventually(lambda: owned(front) == {"front": [], "back": [0, 1, 2, 3]})
    assert nodes(front)["back"]["roles"] == ["dispatch", "deliver"]
    front.call("POST", "/v1/schedules", body={"topic": "x", "id": "a", "at": "+300ms"})
    page = front.call("GET", "/v1/topics/x/records", query={"wait": "10s"})
    assert [record["id"] for record in page["records"]] == ["a"]

    for method, path in (("GET", "/v1/schedules"), ("GET", "/v1/nodes"), ("GET", "/docs"), ("POST", "/v1/schedules")):
        with pytest.raises(
            Failure, match=f"this node does not have the role api.*use {front.url}, which has it"
        ) as away:
            behind.call(method, path)
        assert away.value.document["status"] == 404
    assert behind.call("GET", "/healthz")["status"] == "ok"
    assert "tidings_lanes 4" in behind.call("GET", "/metrics")
    assert "tidings_lanes 0" in front.call("GET", "/metrics")


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ("api,cook", "--roles: 'cook' is not known: use api, intake"),
        ("none", "--roles: is empty: write a list such as"),
        ("api,", "--roles: 'api,' has an empty entry"),
        ("api,intake", "node.roles: without dispatch nothing would be released"),
    ],
)
def test_invalid_roles_are_refused(tmp_path: Path, roles: str, said: str) -> None:
    done = tidings(tmp_path, "serve", "--port", "0", "--roles", roles)
    assert done.returncode == 2
    assert said in done.stderr
    assert "api, intake, dispatch, deliver" in done.stderr or "dispatch" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("channels", "said"),
    [
        ("email,fax", "--channels: 'fax' is not known: use email, sms"),
        ("none", "--channels: is empty: write a list such as"),
        ("email,sms", "node.channels: nobody would deliver to push, webhook, in_app"),
    ],
)
def test_invalid_channels_are_refused(tmp_path: Path, channels: str, said: str) -> None:
    done = tidings(tmp_path, "serve", "--port", "0", "--channels", channels)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_node_without_the_role_api_refuses_requests(start: Start) -> None:
    behind = start("--roles", "dispatch").ready()
    with pytest.raises(Failure, match="this node does not have the role api"):
        behind.call("GET", "/v1/topics")


def test_nodes_are_listed_as_a_table(start: Start, shared: list[str], tmp_path: Path) -> None:
    client = named(start, shared, "north").ready()
    named(start, shared, "front", "--roles", "api").ready()
    shown = tidings(tmp_path, "nodes", "--url", client.url)
    assert shown.returncode == 0, shown.stderr
    heads, north, front, empty, lane_heads, lanes = shown.stdout.splitlines()
    assert heads.split()[:7] == ["node", "version", "up", "roles", "channels", "lanes", "released"]
    assert (north.split()[:2], north.split()[4:7]) == (["north", __version__], ["all", "all", "4"])
    assert (front.split()[:2], front.split()[4:7]) == (["front", __version__], ["api", "-", "0"])
    assert empty == ""
    assert lane_heads.split() == ["lanes", "owner", "since", "overdue"]
    assert lanes.split()[:2] == ["0-3", "north"]
    assert nodes(client)["north"]["lateness"] == {"released": 0, "p50_ms": None, "p99_ms": None, "max_ms": None}

    twin = named(start, shared, "front", "--roles", "api")
    twin.ready()
    twin.process.kill()
    assert eventually(lambda: "gone" in tidings(tmp_path, "nodes", "--url", client.url).stdout)
    named(start, shared, "front", "--roles", "api").ready()
    shown = tidings(tmp_path, "nodes", "--url", client.url)
    assert "warning: 2 nodes are named front: give each a node.name of its own" in shown.stderr
    assert len(set(re.findall(r"front \((\w{8})\)", shown.stdout))) == 3, shown.stdout
    assert re.search(r"gone [\d.]+ m?s ago", shown.stdout)


def test_amounts_are_formatted() -> None:
    node = {
        "id": "a", "name": "north", "version": "1", "state": "alive", "roles": ["api"], "since": None,
        "channels": [], "lease_until": None, "owns": [], "clock_ahead_ms": -0.01,
        "lateness": {"released": 1, "p50_ms": 0.04, "p99_ms": 999.0, "max_ms": 110_369.9},
    }  # fmt: skip
    *_, p50, p99, most, overdue, ahead = _node(node, "north", Screen(0))
    assert (p50, p99, most, overdue, ahead) == ("0.0 ms", "999.0 ms", "1 min 50 s", "0.0 ms", "+0.0 ms")


def test_only_an_admin_sees_the_nodes(start: Start, tmp_path: Path) -> None:
    made = [
        tidings(tmp_path, "keys", "create", name, *admin, "--store", "tidings.db").stdout.strip()
        for name, *admin in (("boss", "--admin"), ("worker",))
    ]
    node = start()
    boss, worker = node.ready(made[0]), node.client(made[1])
    (only,) = boss.call("GET", "/v1/nodes")["nodes"]
    assert [lane["lane"] for lane in only["owns"]] == [0]
    with pytest.raises(Failure, match="may not list the nodes"):
        worker.call("GET", "/v1/nodes")


def test_a_standby_shows_the_owner(start: Start) -> None:
    first = start("--set", "node.name=first")
    first.ready()
    second = start("--set", "node.name=second").client()
    assert list(nodes(second)) == ["first"]

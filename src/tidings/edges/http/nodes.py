"""The fleet, for whoever runs it: which nodes live, which lanes each owns, and how late it runs."""

from tidings.domain.fleet import Fleet, LaneState, Node
from tidings.domain.iso8601 import format_instant
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import query_of
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.wires.answers import Document


class Nodes:
    """The resource `/v1/nodes`. It is about all tenants, so it wants an admin key."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def index(self, call: Call) -> Reply:
        """Every node that lives, those that died a moment ago, and the lanes that nobody owns."""
        query_of(call.scope)
        if not call.caller.admin:
            raise Refusal("forbidden", "this key may not see the nodes: use one made with --admin")
        return json_answer(_document(await self._edge.engine.nodes()))

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/v1/nodes": {"GET": self.index}}


def _document(fleet: Fleet) -> Document:
    free = [_lane(lane) for lane in fleet.lanes if lane.node is None]
    return {"nodes": [_node(node, fleet) for node in fleet.nodes], "lanes": len(fleet.lanes), "free_lanes": free}


def _node(node: Node, fleet: Fleet) -> Document:
    report = node.report
    p50, p99, most = (us / 1_000 if report.released else None for us in (report.p50_us, report.p99_us, report.max_us))
    return {
        "id": node.id,
        "name": report.name,
        "state": "alive" if node.is_alive else "gone",
        "roles": list(report.roles),
        "url": report.url or None,
        "version": report.version,
        "since": format_instant(node.since),
        "lease_until": format_instant(node.until),
        "owns": [_lane(lane) for lane in fleet.lanes if lane.node == node.id],
        "lateness": {"released": report.released, "p50_ms": p50, "p99_ms": p99, "max_ms": most},
        "clock_ahead_ms": report.ahead_us / 1_000,
    }


def _lane(lane: LaneState) -> Document:
    since = None if lane.since is None else format_instant(lane.since)
    return {"lane": lane.number, "since": since, "overdue_ms": lane.overdue_us / 1_000}

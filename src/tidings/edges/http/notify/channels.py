"""Channels: which providers serve them, in which order, and how they stand."""

from tidings.domain.rendered import CHANNEL_NAMES
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import query_of
from tidings.edges.http.notify.documents import way_document
from tidings.edges.http.routing import Call, Handler, Reply, json_answer


class Channels:
    """The resource `/v1/channels`. It knows no secret, so that it cannot tell one."""

    def __init__(self, edge: Edge) -> None:
        self._ways = edge.office.ways

    async def index(self, call: Call) -> Reply:
        """The providers as they stand, and by channel the order in which they are tried."""
        query_of(call.scope)
        found = await self._ways.standing(call.caller.tenant)
        by_channel = {
            channel: [standing.way.name for standing in found if channel in standing.way.channels]
            for channel in CHANNEL_NAMES
        }
        return json_answer({"providers": [way_document(standing) for standing in found], "channels": by_channel})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/v1/channels": {"GET": self.index}}

"""Channels: which providers serve them, in which order, and how they stand."""

from tidings.domain.errors import Invalid
from tidings.domain.rendered import CHANNEL_NAMES
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import SMALL_BODY_BYTES_MAX, query_of, read_body
from tidings.edges.http.notify.documents import way_document
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.wires.refusal import shorten

LIST = "/v1/channels"


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
        document: dict[str, object] = {
            "providers": [way_document(standing) for standing in found],
            "channels": by_channel,
        }
        if self._ways.warnings:
            document["warnings"] = list(self._ways.warnings)
        return json_answer(document)

    async def close(self, call: Call) -> Reply:
        """Close the breaker of a provider, or of one who receives webhooks, once somebody has put it right."""
        receiver = query_of(call.scope, "receiver").get("receiver")
        if (await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)).strip() not in {b"", b"{}"}:
            raise Invalid("body", "must be empty here: leave it out")
        if receiver is None and not call.caller.admin:
            raise Refusal(
                "forbidden",
                "providers are shared by all tenants: use an admin key (made with --admin), or name a receiver",
            )
        name = call.text("name")
        closed = await self._ways.close(call.caller.tenant, name, receiver)
        if closed is None:
            raise Refusal("not_found", f"unknown provider {shorten(name)!r}: GET {LIST} lists them")
        document = {"name": name} if receiver is None else {"name": name, "receiver": receiver}
        return json_answer(document | {"outcome": "closed" if closed else "unchanged"})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {LIST: {"GET": self.index}, f"{LIST}/{{name}}/close": {"POST": self.close}}

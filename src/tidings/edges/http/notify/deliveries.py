"""Deliveries: what was sent, through what, and how late; and once more what was given up."""

from tidings.domain.errors import Invalid
from tidings.domain.iso8601 import format_instant
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import SMALL_BODY_BYTES_MAX, query_of, read_body
from tidings.edges.http.notify.asking import unknown
from tidings.edges.http.notify.documents import delivery_document
from tidings.edges.http.notify.notifications import search_of
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.wires.answers import Document

LIST = "/v1/deliveries"


class Deliveries:
    """The resource `/v1/deliveries` and what lies below it."""

    def __init__(self, edge: Edge) -> None:
        self._office = edge.office
        self._clock = edge.engine.clock

    async def index(self, call: Call) -> Reply:
        """A page of those that fit, those due last first."""
        names = ("user", "state", "channel", "notification", "since", "until", "cursor", "limit")
        query = query_of(call.scope, *names)
        search = search_of(query, self._clock.now())
        page = await self._office.lookup.deliveries(call.caller.tenant, search, query.get("notification"))
        return json_answer({"deliveries": [*map(delivery_document, page.deliveries)], "cursor": page.cursor})

    async def show(self, call: Call) -> Reply:
        """One with its attempts."""
        query_of(call.scope)
        found = await self._office.lookup.delivery(call.caller.tenant, call.text("name"))
        if found is None:
            raise unknown("delivery", call.text("name"))
        return json_answer(delivery_document(found))

    async def retry(self, call: Call) -> Reply:
        """Send it again."""
        query_of(call.scope)
        if (await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)).strip() not in {b"", b"{}"}:
            raise Invalid("body", "must be empty here: leave it out")
        name = call.text("name")
        retried = await self._office.retrying.retry(call.caller.tenant, name)
        if retried.outcome == "unknown":
            raise unknown("delivery", name)
        document: Document = {"id": name, "outcome": retried.outcome, "state": retried.state}
        if retried.outcome == "rejected":
            raise Refusal("conflict", retried.reason, **document)
        return json_answer(document if retried.due is None else document | {"due_at": format_instant(retried.due)})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method; longer paths first, for a name holds slashes."""
        one = f"{LIST}/{{name}}"
        return {LIST: {"GET": self.index}, f"{one}/retry": {"POST": self.retry}, one: {"GET": self.show}}

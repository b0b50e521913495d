"""Inboxes: what a person was told inside the product, over HTTP and as it comes."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec

from tidings.delivery.cursors import read_cursor
from tidings.delivery.profile import check_id
from tidings.domain.errors import Invalid
from tidings.domain.inbox import Line
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import SMALL_BODY_BYTES_MAX, query_of, yes_or_no
from tidings.edges.http.notify.asking import limit_of, sent
from tidings.edges.http.notify.documents import line_document
from tidings.edges.http.readers import counted
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.edges.http.sse import EventStream, pieces
from tidings.shapes.user import MarkRead
from tidings.wires.answers import encode

ONE = "/v1/inbox/{user}"
PIECE_BYTES = 64 * 1024


_decoder = msgspec.json.Decoder(MarkRead)


class Inboxes:
    """The resource `/v1/inbox/{user}` and what lies below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._inbox = edge.office.inbox

    async def index(self, call: Call) -> Reply:
        """A page, the latest first."""
        query = query_of(call.scope, "unread", "cursor", "limit")
        unread, limit = yes_or_no(query, "unread"), limit_of(query)
        page = await self._inbox.page(
            call.caller.tenant, _user(call), unread=unread, cursor=query.get("cursor"), limit=limit
        )
        return json_answer({"lines": [line_document(line) for line in page.lines], "cursor": page.cursor})

    async def unread(self, call: Call) -> Reply:
        """How many lines are unread."""
        query_of(call.scope)
        unread = await self._inbox.unread(call.caller.tenant, _user(call))
        return json_answer({"unread": unread.count, "more": unread.more})

    async def read(self, call: Call) -> Reply:
        """Mark some, or all that are there now."""
        query_of(call.scope)
        tenant, user = call.caller.tenant, _user(call)
        asked = await sent(call, _decoder, MarkRead, 4 * SMALL_BODY_BYTES_MAX)
        if asked.all == bool(asked.ids):
            raise Invalid("ids", 'give either "ids" (of the messages) or "all": true')
        if asked.all:
            return json_answer({"user": user, "outcome": "read", "read": await self._inbox.read_all(tenant, user)})
        lines = [await self._inbox.read_one(tenant, user, line) for line in asked.ids]
        missing = [line for line, found in zip(asked.ids, lines, strict=True) if found is None]
        document = {"user": user, "outcome": "read", "read": len(lines) - len(missing)}
        return json_answer(document | ({"unknown": missing} if missing else {}))

    async def stream(self, call: Call) -> Reply:
        """Lines as they come, without end."""
        query = query_of(call.scope, "cursor")
        cursor, tenant, user = query.get("cursor"), call.caller.tenant, _user(call)
        if last := call.headers.get(b"last-event-id"):
            cursor = last.decode("latin-1")
        if cursor is None:
            cursor = self._inbox.cursor()
        read_cursor(cursor)  # here rather than in the stream: a wrong one is still refused

        @asynccontextmanager
        async def source() -> AsyncIterator[AsyncIterator[bytes]]:
            async with aclosing(self._inbox.follow(tenant, user, cursor)) as batches:
                yield (piece async for batch in batches for piece in pieces(map(self._event, batch), PIECE_BYTES))

        return EventStream(self._edge, call, cursor, source)

    def _event(self, line: Line) -> bytes:
        return b"id: %s\ndata: %s\n\n" % (self._inbox.cursor(line).encode(), encode(line_document(line)))

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            ONE: {"GET": self.index},
            f"{ONE}/unread": {"GET": self.unread},
            f"{ONE}/read": {"POST": self.read},
            f"{ONE}/stream": {"GET": counted(self._edge, self.stream)},
        }


def _user(call: Call) -> str:
    user = call.text("user")
    check_id(user, "user")
    return user

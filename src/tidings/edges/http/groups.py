"""Consumer groups: join, heartbeat, fetch, commit, leave."""

from typing import TypeVar

import msgspec

from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import (
    SMALL_BODY_BYTES_MAX,
    body_kind,
    decode,
    query_of,
    read_body,
    seconds,
)
from tidings.edges.http.readers import counted
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.edges.http.waiting import unless_ended
from tidings.shapes.topic import WAIT_S_MAX, Commit, Fetch, Join, Member
from tidings.wires.answers import record_document

Body = TypeVar("Body", bound=msgspec.Struct)


class Groups:
    """The resources below `/v1/topics/{topic}/groups/{group}`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._engine = edge.engine

    async def join(self, call: Call) -> Reply:
        """Become a member."""
        joining = await _read(call, Join)
        return json_answer(await self._engine.groups.join(*_place(call), joining.member))

    async def heartbeat(self, call: Call) -> Reply:
        """Stay a member, and learn the partitions."""
        sent = await _read(call, Member)
        return json_answer(await self._engine.groups.heartbeat(*_place(call), sent.member, sent.generation))

    async def fetch(self, call: Call) -> Reply:
        """The next records of one's partitions."""
        sent = await _read(call, Fetch)
        wait_us = seconds(None if sent.wait is None else str(sent.wait), "wait", WAIT_S_MAX)
        fetching = self._engine.groups.fetch(*_place(call), sent.member, sent.generation, sent.limit, wait_us)
        records = await unless_ended(self._edge, call, fetching)
        return json_answer({"records": [record_document(record) for record in records or ()]})

    async def commit(self, call: Call) -> Reply:
        """Keep where the group stands."""
        sent = await _read(call, Commit)
        await self._engine.groups.commit(*_place(call), sent.member, sent.generation, sent.offsets)
        return json_answer({"member": sent.member, "committed": sent.offsets})

    async def leave(self, call: Call) -> Reply:
        """Hand one's partitions over."""
        sent = await _read(call, Member)
        await self._engine.groups.leave(*_place(call), sent.member, sent.generation)
        return json_answer({"member": sent.member, "left": True})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        verbs = (self.join, self.heartbeat, counted(self._edge, self.fetch), self.commit, self.leave)
        return {f"/v1/topics/{{topic}}/groups/{{group}}/{verb.__name__}": {"POST": verb} for verb in verbs}


def _place(call: Call) -> tuple[str, str, str]:
    return call.caller.tenant, call.text("topic"), call.text("group")


async def _read(call: Call, kind: type[Body]) -> Body:
    query_of(call.scope)
    body = await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)
    if body:
        body_kind(call.headers)
    return decode(msgspec.json.Decoder(kind), body, kind)

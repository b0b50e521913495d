"""ETags, and changes that are made only if nothing else has changed meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from weakref import WeakValueDictionary

from tidings.edges.http.edge import Edge
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call
from tidings.edges.http.showing import document_of
from tidings.wires.answers import encode

ETAG_BYTES = 12


def etag_of(body: bytes) -> bytes:
    """The tag of a document: another one for every other content, state or occurrence."""
    return b'"%s"' % blake2b(body, digest_size=ETAG_BYTES).hexdigest().encode()


def is_named(tags: bytes, etag: bytes, *, weakly: bool = False) -> bool:
    """Whether a list of tags names this one."""
    if tags.strip() == b"*":
        return True
    named = (tag.strip() for tag in tags.split(b","))
    return any(tag == etag or (weakly and tag == b"W/" + etag) for tag in named)


class Preconditions:
    """Checks If-Match and If-None-Match, and lets one change of a schedule follow the other."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, call: Call, schedule_id: str) -> AsyncIterator[None]:
        """While this is held, no other request changes the schedule, and what was asked for is so."""
        place = (call.caller.tenant, schedule_id)
        turn = self._turns.get(place)
        if turn is None:
            turn = self._turns[place] = asyncio.Lock()
        async with turn:
            wanted, unwanted = call.headers.get(b"if-match"), call.headers.get(b"if-none-match")
            if wanted is not None or unwanted is not None:
                _check(wanted, unwanted, await self._etag(*place))
            yield

    async def _etag(self, tenant: str, schedule_id: str) -> bytes | None:
        found = await self._edge.engine.find(tenant, schedule_id)
        return None if found is None else etag_of(encode(await document_of(self._edge.engine, tenant, found)))


def _check(wanted: bytes | None, unwanted: bytes | None, etag: bytes | None) -> None:
    if wanted is not None and (etag is None or not is_named(wanted, etag)):
        detail = "it is not (any more) what If-Match names: GET it, look, and send the new ETag"
        raise Refusal("precondition_failed", detail)
    if unwanted is not None and etag is not None and is_named(unwanted, etag, weakly=True):
        detail = "it is there already: leave If-None-Match out to replace it"
        raise Refusal("precondition_failed", detail)

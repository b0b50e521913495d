"""API keys, for those whose key may manage keys: list, create, revoke."""

import msgspec

from tidings.domain.errors import NotFound
from tidings.domain.iso8601 import format_instant
from tidings.domain.names import check_name
from tidings.edges.http.auth import make_key
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import SMALL_BODY_BYTES_MAX, body_kind, decode, query_of, read_body
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.ports import ApiKey
from tidings.shapes.admin import NewKey
from tidings.wires.answers import Document

_decoder = msgspec.json.Decoder(NewKey)


class ApiKeys:
    """The resource `/v1/keys`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._store = edge.engine.store

    async def index(self, call: Call) -> Reply:
        """Every key, never the key itself."""
        self._check(call)
        return json_answer({"keys": [_document(key) for key in await self._store.keys()]})

    async def create(self, call: Call) -> Reply:
        """A new key, shown this once."""
        self._check(call)
        body_kind(call.headers)
        body = await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)
        new = decode(_decoder, body, NewKey)
        check_name(new.name, "name")
        check_name(new.tenant, "tenant")
        key, stored = make_key(new.name, new.tenant, admin=new.admin, now=self._edge.engine.clock.now())
        await self._store.add_key(stored)
        await self._refresh()
        return json_answer(_document(stored) | {"key": key}, 201, [(b"cache-control", b"no-store")])

    async def revoke(self, call: Call) -> Reply:
        """From now on this key is nothing."""
        self._check(call)
        name = call.text("name")
        if not await self._store.revoke_key(name):
            raise NotFound(f"there is no key named {name!r}: GET /v1/keys lists them")
        await self._refresh()
        return json_answer({"name": name, "revoked": True})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            "/v1/keys": {"GET": self.index, "POST": self.create},
            "/v1/keys/{name}": {"DELETE": self.revoke},
        }

    def _check(self, call: Call) -> None:
        query_of(call.scope)
        if not call.caller.admin:
            raise Refusal("forbidden", "this key may not manage keys: use one made with --admin")

    async def _refresh(self) -> None:
        if self._edge.keys is not None:
            await self._edge.keys.refresh()


def _document(key: ApiKey) -> Document:
    return {
        "name": key.name,
        "tenant": key.tenant,
        "admin": key.admin,
        "created_at": format_instant(key.created),
    }

"""Users: who can be told something."""

from typing import Any
from urllib.parse import quote

import msgspec

from tidings.delivery.profile import check_id
from tidings.domain.errors import Conflict, Invalid
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import body_kind, decode, query_of, read_body
from tidings.edges.http.notify.asking import Expected, limit_of, sent, unknown, version_tag
from tidings.edges.http.notify.documents import user_document
from tidings.edges.http.notify.importing import ImportStream
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.shapes.user import NewUser, Profile

BODY_BYTES_MAX = 256 * 1024
LIST = "/v1/users"


_decoder = msgspec.json.Decoder(NewUser)
_changes = msgspec.json.Decoder(dict[str, Any])


class Users:
    """The resource `/v1/users` and what lies below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._users = edge.office.users

    async def index(self, call: Call) -> Reply:
        """A page, by id."""
        query = query_of(call.scope, "prefix", "cursor", "limit")
        prefix = query.get("prefix", "")
        if prefix:
            check_id(prefix, "prefix")
        page = await self._users.page(call.caller.tenant, prefix, query.get("cursor"), limit_of(query))
        return json_answer({"users": [user_document(user) for user in page.users], "cursor": page.cursor})

    async def show(self, call: Call) -> Reply:
        """One user, with its version as ETag."""
        query_of(call.scope)
        found = await self._users.get(call.caller.tenant, call.text("id"))
        if found is None:
            raise unknown("user", call.text("id"), LIST)
        return json_answer(user_document(found.user), headers=[(b"etag", version_tag(found.version))])

    async def put(self, call: Call) -> Reply:
        """Create a user, or replace the profile."""
        query_of(call.scope)
        expected, user_id = Expected(call), call.text("id")
        profile = await sent(call, _decoder, NewUser, BODY_BYTES_MAX)
        if profile.id not in {None, user_id}:
            raise Invalid("id", f"is not the one in the path, {user_id!r}: leave it out")
        await self._check_there(call, expected)
        try:
            stored = await self._users.put(call.caller.tenant, user_id, profile, expected.version)
        except Conflict as conflict:
            raise expected.failed(conflict) from None
        document = {"id": user_id, "outcome": "created" if stored.created else "replaced"}
        headers = [(b"etag", version_tag(stored.version))]
        if not stored.created:
            return json_answer(document, headers=headers)
        return json_answer(document, 201, [*headers, (b"location", f"{LIST}/{quote(user_id, safe='')}".encode())])

    async def patch(self, call: Call) -> Reply:
        """Change single fields."""
        query_of(call.scope)
        expected, user_id = Expected(call), call.text("id")
        body_kind(call.headers)
        changes = decode(_changes, await read_body(call.headers, call.receive, BODY_BYTES_MAX), Profile)
        try:
            stored = await self._users.patch(call.caller.tenant, user_id, changes, expected.version)
        except Conflict as conflict:
            raise expected.failed(conflict) from None
        if stored is None:
            raise unknown("user", user_id, LIST)
        return json_answer({"id": user_id, "outcome": "changed"}, headers=[(b"etag", version_tag(stored.version))])

    async def delete(self, call: Call) -> Reply:
        """Delete the user alone."""
        query_of(call.scope)
        expected, user_id = Expected(call), call.text("id")
        try:
            done = await self._users.delete(call.caller.tenant, user_id, expected.version)
        except Conflict as conflict:
            raise expected.failed(conflict) from None
        if not done:
            raise unknown("user", user_id, LIST)
        return json_answer({"id": user_id, "outcome": "deleted"})

    async def erase(self, call: Call) -> Reply:
        """Erase all data of a user, and say what was removed."""
        query_of(call.scope)
        if (await read_body(call.headers, call.receive, BODY_BYTES_MAX)).strip() not in {b"", b"{}"}:
            raise Invalid("body", "must be empty here: leave it out")
        user_id = call.text("id")
        check_id(user_id)
        erased = await self._edge.office.erasing.erase(call.caller.tenant, user_id)
        if not erased.removed and not erased.suppressions:
            raise unknown("user", user_id, LIST)
        counts = {"removed": erased.removed, "cancelled": erased.cancelled, "suppressions": erased.suppressions}
        return json_answer({"id": user_id, "outcome": "erased"} | counts | {"providers": erased.providers})

    async def take(self, call: Call) -> Reply:
        """Many, as CSV or as lines of JSON."""
        query_of(call.scope)
        return ImportStream(self._edge, call)

    async def _check_there(self, call: Call, expected: Expected) -> None:
        if expected.is_there and await self._users.get(call.caller.tenant, call.text("id")) is None:
            raise Refusal("precondition_failed", "unknown user: leave If-Match out to create it")

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method; those of verbs first."""
        return {
            f"{LIST}/import": {"POST": self.take},
            f"{LIST}/{{id}}/erase": {"POST": self.erase},
            LIST: {"GET": self.index},
            f"{LIST}/{{id}}": {"GET": self.show, "PUT": self.put, "PATCH": self.patch, "DELETE": self.delete},
        }

"""Users and their inboxes, and the import of users from a file."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.types import Send

from tidings.delivery.people.profile import check_id
from tidings.delivery.people.user_import import LINE_CHARS_MAX, Form, ImportResult
from tidings.delivery.rows import read_cursor
from tidings.domain.errors import Conflict, Invalid, StoreError
from tidings.domain.notifications.user import InboxEntry
from tidings.edges.http.inputs import (
    NDJSON_TYPE,
    SMALL_BODY_BYTES_MAX,
    Disconnected,
    body_kind,
    decode,
    query_of,
    read_body,
    refuse_body,
    yes_or_no,
)
from tidings.edges.http.ndjson import ANSWERS_BYTES_MAX, AnswerBuffer, BodyLines
from tidings.edges.http.notifications.documents import line_document, user_document
from tidings.edges.http.notifications.notifications import Precondition, limit_of, sent, unknown, version_tag
from tidings.edges.http.problems import Refusal, problem_document, refusal_of
from tidings.edges.http.readers import counted
from tidings.edges.http.routes import Call, Edge, Handler, Reply, json_answer, problem_answer
from tidings.edges.http.streams import EventStream, pieces
from tidings.shapes.user import MarkRead, NewUser, Profile
from tidings.wires.answers import Document, encode

BODY_BYTES_MAX = 256 * 1024
LIST = "/v1/users"


_decoder = msgspec.json.Decoder(NewUser)
_changes = msgspec.json.Decoder(dict[str, Any])

_HEADERS = [(b"content-type", NDJSON_TYPE.encode()), (b"x-accel-buffering", b"no")]
_TOO_LONG = "x" * (LINE_CHARS_MAX + 1)  # in place of a line that was not kept, so that it is refused as too long

ONE = "/v1/inbox/{user}"
PIECE_BYTES = 64 * 1024

_mark_decoder = msgspec.json.Decoder(MarkRead)


class Users:
    """The resource `/v1/users` and the paths below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._users = edge.services.users

    async def index(self, call: Call) -> Reply:
        """A page of users, by id."""
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
        """Create a user, or replace their profile."""
        query_of(call.scope)
        expected, user_id = Precondition(call), call.text("id")
        profile = await sent(call, _decoder, NewUser, BODY_BYTES_MAX)
        if profile.id not in {None, user_id}:
            raise Invalid("id", f"is not the one in the path, {user_id!r}: leave it out")
        await self._check_exists(call, expected)
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
        """Change some fields."""
        query_of(call.scope)
        expected, user_id = Precondition(call), call.text("id")
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
        """Delete the profile of a user, and keep their notifications."""
        query_of(call.scope)
        expected, user_id = Precondition(call), call.text("id")
        try:
            done = await self._users.delete(call.caller.tenant, user_id, expected.version)
        except Conflict as conflict:
            raise expected.failed(conflict) from None
        if not done:
            raise unknown("user", user_id, LIST)
        return json_answer({"id": user_id, "outcome": "deleted"})

    async def erase(self, call: Call) -> Reply:
        """Erase all data of a user, and report what was removed."""
        query_of(call.scope)
        await refuse_body(call.headers, call.receive)
        user_id = call.text("id")
        check_id(user_id)
        erased = await self._edge.services.erasure.erase(call.caller.tenant, user_id)
        if not erased.removed and not erased.suppressions:
            raise unknown("user", user_id, LIST)
        counts = {"removed": erased.removed, "cancelled": erased.cancelled, "suppressions": erased.suppressions}
        return json_answer({"id": user_id, "outcome": "erased"} | counts | {"providers": erased.providers})

    async def import_users(self, call: Call) -> Reply:
        """Import many users, as CSV or NDJSON."""
        query_of(call.scope)
        return ImportStream(self._edge, call)

    async def _check_exists(self, call: Call, expected: Precondition) -> None:
        if expected.must_exist and await self._users.get(call.caller.tenant, call.text("id")) is None:
            raise Refusal("precondition_failed", "unknown user: leave If-Match out to create it")

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method; verbs first."""
        return {
            f"{LIST}/import": {"POST": self.import_users},
            f"{LIST}/{{id}}/erase": {"POST": self.erase},
            LIST: {"GET": self.index},
            f"{LIST}/{{id}}": {"GET": self.show, "PUT": self.put, "PATCH": self.patch, "DELETE": self.delete},
        }


def form_of(headers: dict[bytes, bytes]) -> Form:
    """Whether the body is declared as CSV or NDJSON."""
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media == b"text/csv" and headers.get(b"content-encoding", b"identity").lower() == b"identity":
        return "csv"
    with contextlib.suppress(Refusal):  # its text is about other resources
        if media != b"text/csv" and body_kind(headers) == "ndjson":
            return "ndjson"
    raise Refusal("media_type", f"send users as 'Content-Type: text/csv' or {NDJSON_TYPE}, not compressed")


class ImportStream:
    """The answer to an import: progress after each batch, then the totals."""

    def __init__(self, edge: Edge, call: Call) -> None:
        self._edge = edge
        self._tenant = call.caller.tenant
        self._form = form_of(call.headers)
        self._body = BodyLines(edge, call, keyed=False)
        self._started = False
        self._last = ImportResult(0, 0, 0, 0)

    async def __call__(self, send: Send) -> None:
        buffer = AnswerBuffer(send, ANSWERS_BYTES_MAX, self._edge.buffered_answers)
        try:
            await self._answer(buffer, send)
        finally:
            buffer.close()

    async def _answer(self, buffer: AnswerBuffer, send: Send) -> None:
        try:
            async for imported in self._edge.services.user_import.run(self._tenant, self._form, self._lines()):
                self._last = imported
                await self._put(buffer, _document(imported))
            if self._edge.stopping.is_set():
                raise StoreError("the server is stopping: import again from the line given here")
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - it is answered, and logged if it is ours
            if not self._started:
                await problem_answer(error)(send)
                return
            await self._put(buffer, problem_document(refusal_of(error)) | {"lines": self._last.lines})
        else:
            total = msgspec.structs.replace(self._last, bad_lines=())
            await self._put(buffer, _document(total) | {"done": True})
        await buffer.finish()

    async def _lines(self) -> AsyncIterator[str]:
        """The lines of the body. Bytes that are not UTF-8 are passed on, so that each such line is refused."""
        async with aclosing(self._body.batches()) as batches:
            async for batch in batches:
                for line in batch.lines:
                    yield _TOO_LONG if line is None else line.decode("utf-8", "surrogateescape")

    async def _put(self, buffer: AnswerBuffer, document: Document) -> None:
        if not self._started:
            self._started = True
            await buffer.start(_HEADERS)
        await buffer.put(encode(document) + b"\n")


def _document(imported: ImportResult) -> Document:
    document: Document = msgspec.to_builtins(imported)
    return document


class Inboxes:
    """The resource `/v1/inbox/{user}` and the paths below it."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._inbox = edge.services.inbox

    async def index(self, call: Call) -> Reply:
        """A page of messages, the latest first."""
        query = query_of(call.scope, "unread", "cursor", "limit")
        unread, limit = yes_or_no(query, "unread"), limit_of(query)
        page = await self._inbox.page(
            call.caller.tenant, _user(call), unread=unread, cursor=query.get("cursor"), limit=limit
        )
        return json_answer({"lines": [line_document(line) for line in page.entries], "cursor": page.cursor})

    async def unread(self, call: Call) -> Reply:
        """How many messages are unread."""
        query_of(call.scope)
        unread = await self._inbox.unread(call.caller.tenant, _user(call))
        return json_answer({"unread": unread.count, "more": unread.more})

    async def read(self, call: Call) -> Reply:
        """Mark some messages as read, or all that are in the inbox now."""
        query_of(call.scope)
        tenant, user = call.caller.tenant, _user(call)
        asked = await sent(call, _mark_decoder, MarkRead, 4 * SMALL_BODY_BYTES_MAX)
        if asked.all == bool(asked.ids):
            raise Invalid("ids", 'give either "ids" (of the messages) or "all": true')
        if asked.all:
            return json_answer({"user": user, "outcome": "read", "read": await self._inbox.read_all(tenant, user)})
        done = await self._inbox.read_some(tenant, user, asked.ids)
        document = {"user": user, "outcome": "read", "read": done.count}
        return json_answer(document | ({"unknown": done.unknown} if done.unknown else {}))

    async def stream(self, call: Call) -> Reply:
        """Messages as they arrive, until the client disconnects."""
        query = query_of(call.scope, "cursor")
        cursor, tenant, user = query.get("cursor"), call.caller.tenant, _user(call)
        if last := call.headers.get(b"last-event-id"):
            cursor = last.decode("latin-1")
        if cursor is None:
            cursor = self._inbox.cursor()
        read_cursor(cursor)  # before the stream starts, so that a wrong one is refused

        @asynccontextmanager
        async def source() -> AsyncIterator[AsyncIterator[bytes]]:
            async with aclosing(self._inbox.follow(tenant, user, cursor)) as batches:
                yield (piece async for batch in batches for piece in pieces(map(self._event, batch), PIECE_BYTES))

        return EventStream(self._edge, call, cursor, source)

    def _event(self, line: InboxEntry) -> bytes:
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

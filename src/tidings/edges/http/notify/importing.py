"""Users from a file that streams in: bounded in memory, a line of progress after each batch, the totals last."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
from starlette.types import Send

from tidings.delivery.importing import LINE_CHARS_MAX, Form, Imported
from tidings.domain.errors import StoreError
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import NDJSON_TYPE, Disconnected, body_kind
from tidings.edges.http.lines import BodyLines
from tidings.edges.http.ndjson import ANSWERS_BYTES_MAX, Outbox
from tidings.edges.http.problems import Refusal, problem_document, refusal_of
from tidings.edges.http.routing import Call, problem_answer
from tidings.wires.answers import Document, encode

_HEADERS = [(b"content-type", NDJSON_TYPE.encode()), (b"x-accel-buffering", b"no")]
_TOO_LONG = "x" * (LINE_CHARS_MAX + 1)  # stands for a line that was not kept, and is refused as too long


def form_of(headers: dict[bytes, bytes]) -> Form:
    """What the body claims to be."""
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media == b"text/csv" and headers.get(b"content-encoding", b"identity").lower() == b"identity":
        return "csv"
    with contextlib.suppress(Refusal):  # its words are about other resources
        if media != b"text/csv" and body_kind(headers) == "ndjson":
            return "ndjson"
    raise Refusal("media_type", f"send users as 'Content-Type: text/csv' or {NDJSON_TYPE}, not compressed")


class ImportStream:
    """The answer to an import."""

    def __init__(self, edge: Edge, call: Call) -> None:
        self._edge = edge
        self._tenant = call.caller.tenant
        self._form = form_of(call.headers)
        self._body = BodyLines(edge, call, keyed=False)
        self._started = False
        self._last = Imported(0, 0, 0, 0)

    async def __call__(self, send: Send) -> None:
        outbox = Outbox(send, ANSWERS_BYTES_MAX, self._edge.kept_answers)
        try:
            await self._answer(outbox, send)
        finally:
            outbox.close()

    async def _answer(self, outbox: Outbox, send: Send) -> None:
        try:
            async for imported in self._edge.office.importing.run(self._tenant, self._form, self._lines()):
                self._last = imported
                await self._put(outbox, _document(imported))
            if self._edge.stopping.is_set():
                raise StoreError("the server is stopping: import again from the line given here")
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - it is answered, and logged if it is our fault
            if not self._started:
                await problem_answer(error)(send)
                return
            await self._put(outbox, problem_document(refusal_of(error)) | {"lines": self._last.lines})
        else:
            total = msgspec.structs.replace(self._last, bad_lines=())
            await self._put(outbox, _document(total) | {"done": True})
        await outbox.finish()

    async def _lines(self) -> AsyncIterator[str]:
        """What is not UTF-8 is passed on as such, and refused line by line."""
        async with aclosing(self._body.batches()) as batches:
            async for batch in batches:
                for line in batch.lines:
                    yield _TOO_LONG if line is None else line.decode("utf-8", "surrogateescape")

    async def _put(self, outbox: Outbox, document: Document) -> None:
        if not self._started:
            self._started = True
            await outbox.start(_HEADERS)
        await outbox.put(encode(document) + b"\n")


def _document(imported: Imported) -> Document:
    document: Document = msgspec.to_builtins(imported)
    return document

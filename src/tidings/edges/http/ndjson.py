"""Bodies of NDJSON: lines in batches as they arrive, each batch committed and answered while the next one is read."""

import asyncio
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Generic, NamedTuple, TypeVar

from starlette.types import Message, Send

from tidings.domain.errors import Invalid
from tidings.domain.schedules.command import CommandBatch, Outcome
from tidings.edges.http.inputs import JSON_TYPE, NDJSON_TYPE, Disconnected, idempotency_for, idempotency_key
from tidings.edges.http.problems import problem_document, refusal_of
from tidings.edges.http.readers import BufferedAnswers
from tidings.edges.http.routes import Call, Edge, problem_answer
from tidings.ports import IdempotencyKey
from tidings.wires.answers import Document, encode, encode_lines, outcome_document, rejected_document
from tidings.wires.document import id_of

T = TypeVar("T")

BATCH_LINES = 1000
LINGER_S = 0.002  # how long a batch that is not full waits for more lines

TURN_LINES = 100  # admitted before other tasks get their turn: a release must not wait for a large body
ANSWERS_BYTES_MAX = 32 * 1024 * 1024  # buffered for a client that sends everything before it reads
ANSWERS_IN_ALL_BYTES_MAX = 128 * 1024 * 1024  # for all such clients together; above it, each is limited to
ANSWERS_SMALL_BYTES = 512 * 1024
SEND_BYTES = 256 * 1024

_LINES_HEADERS = [(b"content-type", NDJSON_TYPE.encode()), (b"x-accel-buffering", b"no")]
_ARRAY_HEADERS = [(b"content-type", JSON_TYPE.encode())]


class Batch(NamedTuple):
    """Some lines, and the number of the first, from 1. None marks a line that was too long to keep."""

    first: int
    lines: list[bytes | None]


class Lines:
    """Splits chunks into lines. A line above the limit is discarded as it arrives."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """The lines that this chunk completes, without line ends; None for one that is too long."""
        first, *lines = chunk.split(b"\n")
        if not lines:
            self._keep(first)
            return []
        self._keep(first)
        complete: list[bytes | None] = [self._take()]
        rest = lines.pop()
        if len(chunk) > self._line_bytes_max:
            complete += [line if len(line) <= self._line_bytes_max else None for line in lines]
        else:
            complete += lines
        self._keep(rest)
        return complete

    def finish(self) -> list[bytes | None]:
        """The rest after the last line end, if there is any."""
        return [self._take()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._line_bytes_max:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _take(self) -> bytes | None:
        line = b"".join(self._parts) if self._size <= self._line_bytes_max else None
        self._parts.clear()
        self._size = 0
        return line


class BodyLines:
    """Reads the lines of a body in batches.

    With an idempotency key every batch is full, so that a repeated body has the same batches. Without one, a batch also
    ends where the client pauses, because the client may be waiting for answers before it sends more.
    """

    def __init__(self, edge: Edge, call: Call, *, keyed: bool) -> None:
        self._lines = Lines(edge.engine.settings.limits.line_bytes_max)
        self._receive = call.receive
        self._stopping = edge.stopping
        self._keyed = keyed
        self._first = 1
        self._waiting: list[bytes | None] = []

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Until the body ends, or the server stops."""
        stopping = asyncio.create_task(self._stopping.wait())
        receiving = self._next_message()
        try:
            more = True
            while more:
                await self._wait(receiving, stopping, linger=bool(self._waiting) and not self._keyed)
                if not receiving.done():
                    if stopping.done():
                        break
                    yield self._take(BATCH_LINES)
                    continue
                message = receiving.result()
                if message["type"] != "http.request":
                    raise Disconnected
                more = message.get("more_body", False)
                if more:
                    receiving = self._next_message()
                for batch in self._cut(message.get("body", b""), last=not more):
                    yield batch
        finally:
            stopping.cancel()
            receiving.cancel()
        if self._waiting and not self._keyed:
            yield self._take(BATCH_LINES)

    async def _wait(self, receiving: asyncio.Task[Message], stopping: asyncio.Task[bool], *, linger: bool) -> None:
        """Wait for more of the body, until the server stops or a batch has waited long enough."""
        if not receiving.done():
            timeout = LINGER_S if linger else None
            await asyncio.wait({receiving, stopping}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    def _next_message(self) -> asyncio.Task[Message]:
        return asyncio.ensure_future(self._receive())

    def _cut(self, chunk: bytes, *, last: bool) -> Iterator[Batch]:
        """The batches that a chunk fills; with the last chunk, also the remaining lines."""
        self._waiting += self._lines.feed(chunk)
        if last:
            self._waiting += self._lines.finish()
        while len(self._waiting) >= BATCH_LINES or (last and self._waiting):
            yield self._take(BATCH_LINES)

    def _take(self, count: int) -> Batch:
        """The next lines, at most that many."""
        batch = Batch(self._first, self._waiting[:count])
        if self._first == 1 and batch.lines[0]:
            batch.lines[0] = batch.lines[0].removeprefix(BOM_UTF8)
        del self._waiting[:count]
        self._first += len(batch.lines)
        return batch


class AdmittedBatch:
    """A batch after admission: the commands for the store with their line numbers, and the refused lines."""

    __slots__ = ("commands", "last_line", "lines", "refused")

    def __init__(self, last_line: int) -> None:
        self.last_line = last_line
        self.commands = CommandBatch()
        self.lines: list[int] = []
        self.refused: dict[int, Document] = {}

    def refuse(self, invalid: Invalid, line: int, schedule_id: str | None) -> None:
        """Record a line that was refused."""
        self.refused[len(self.commands) + len(self.refused)] = rejected_document(invalid, line, schedule_id)

    def documents(self, outcomes: list[Outcome]) -> list[object]:
        """One answer for each line that is not blank, in order."""
        documents: list[object] = [*map(outcome_document, outcomes, self.lines)]
        for index, outcome in enumerate(outcomes):
            if outcome.field is not None:
                documents[index] = rejected_document(outcome.invalid(), self.lines[index], outcome.id or None)
        for index, document in self.refused.items():  # in ascending order
            documents.insert(index, document)
        return documents


class AnswerBuffer:
    """Sends answers in the background: `put` waits only if too much is buffered, here or for all clients together."""

    def __init__(self, send: Send, bytes_max: int, total: BufferedAnswers) -> None:
        self._send = send
        self._bytes_max = bytes_max
        self._total = total
        self._parts: list[bytes] = []
        self._size = 0
        self._sending: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()

    async def start(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Start the answer."""
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def put(self, part: bytes) -> None:
        """Queue a part; returns at once unless too much is buffered that clients have not read."""
        self._parts.append(part)
        self._size += len(part)
        self._total.size_bytes += len(part)
        if self._sending is None:
            self._sending = asyncio.create_task(self._run())
        while self._is_full():
            self._sent.clear()
            await self._sent.wait()

    def _is_full(self) -> bool:
        """Whether to wait. A small buffer is always allowed; above it, the total of all clients is limited too."""
        too_much = self._total.size_bytes > ANSWERS_IN_ALL_BYTES_MAX
        return self._size > (min(ANSWERS_SMALL_BYTES, self._bytes_max) if too_much else self._bytes_max)

    async def finish(self) -> None:
        """Wait until everything is sent, and end the answer."""
        if self._sending is not None:
            await self._sending
        await self._send({"type": "http.response.body", "body": b""})

    def close(self) -> None:
        """Discard what has not been sent."""
        if self._sending is not None:
            self._sending.cancel()
        self._total.size_bytes -= self._size
        self._size = 0

    async def _run(self) -> None:
        try:
            while self._parts:
                body = self._take()
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
                size = min(len(body), self._size)  # 0 if it was closed meanwhile
                self._size -= size
                self._total.size_bytes -= size
                self._sent.set()
        finally:
            self._sending = None

    def _take(self) -> bytes:
        """The next parts, together about `SEND_BYTES`."""
        count, size = 0, 0
        while count < len(self._parts) and size < SEND_BYTES:
            size += len(self._parts[count])
            count += 1
        body = b"".join(self._parts[:count])
        del self._parts[:count]
        return body


class LineStream(ABC, Generic[T]):
    """The answer to many lines: while one batch is committed, the next one is read and admitted."""

    def __init__(
        self, edge: Edge, call: Call, batches: AsyncGenerator[Batch, None] | None = None, *, as_lines: bool = True
    ) -> None:
        self._edge = edge
        self._tenant = call.caller.tenant
        self._path = call.scope["path"].encode()
        self._key = idempotency_key(call.headers)
        self._batches = batches or BodyLines(edge, call, keyed=self._key is not None).batches()
        self._as_lines = as_lines
        self._answered = 0
        self._started = False

    async def __call__(self, send: Send) -> None:
        buffer = AnswerBuffer(send, ANSWERS_BYTES_MAX, self._edge.buffered_answers)
        try:
            await self._answer(buffer, send)
        finally:
            buffer.close()

    async def _answer(self, buffer: AnswerBuffer, send: Send) -> None:
        error: Exception | None = None
        try:
            async with asyncio.TaskGroup() as tasks, aclosing(self._batches):
                await self._process(tasks, buffer)
        except* Exception as errors:  # noqa: BLE001 - it is answered, and logged if it is ours
            error = errors.exceptions[0]
        if isinstance(error, Disconnected):
            return
        if error is not None and not self._started:
            await problem_answer(error)(send)
            return
        if error is not None:
            await self._put(buffer, [self._problem(error)])
        await self._finish(buffer)

    async def _process(self, tasks: asyncio.TaskGroup, buffer: AnswerBuffer) -> None:
        """Admit batch after batch, and commit each once the previous one is committed."""
        committing: asyncio.Task[None] | None = None
        index = 0
        async for batch in self._batches:
            try:
                admitted = await self._admit(batch)
            finally:
                if committing is not None:
                    await committing
            committing = tasks.create_task(self._commit(admitted, self._idempotency(batch, index), buffer))
            index += 1

    @abstractmethod
    async def _admit(self, batch: Batch) -> T:
        """Decode and check the lines of a batch."""

    @abstractmethod
    async def _commit(self, admitted: T, idempotency: IdempotencyKey | None, buffer: AnswerBuffer) -> None:
        """Commit a batch, and answer its lines."""

    def _idempotency(self, batch: Batch, index: int) -> IdempotencyKey | None:
        """The idempotency key of a batch, derived from the key of the request: each batch has its own."""
        if self._key is None:
            return None
        lines = (b"\0" if line is None else line for line in batch.lines)
        return idempotency_for(self._tenant, f"{self._key}\n{index}", self._path, *lines)

    def _problem(self, error: Exception) -> Document:
        """The last line of an answer that could not be completed."""
        problem = problem_document(refusal_of(error))
        return problem | {"line": self._answered + 1, "outcome": "rejected"}

    # Writing

    async def _put(self, buffer: AnswerBuffer, documents: list[object]) -> None:
        if self._as_lines:
            body = encode_lines(documents)
        else:
            body = (b",\n" if self._started else b"[\n") + b",\n".join(map(encode, documents))
        await self._start(buffer)
        await buffer.put(body)

    async def _start(self, buffer: AnswerBuffer) -> None:
        if not self._started:
            self._started = True
            await buffer.start(_LINES_HEADERS if self._as_lines else _ARRAY_HEADERS)

    async def _finish(self, buffer: AnswerBuffer) -> None:
        if not self._as_lines:
            await buffer.put(b"\n]\n" if self._started else b"[]\n")
        await self._start(buffer)
        await buffer.finish()

    @property
    def _too_long(self) -> Invalid:
        bytes_max = self._edge.engine.settings.limits.line_bytes_max
        return Invalid("line", f"is longer than {bytes_max} bytes: send less in one line")


class OutcomeStream(LineStream[AdmittedBatch]):
    """The answer to many schedules, or messages for a topic."""

    def __init__(
        self,
        edge: Edge,
        call: Call,
        topic: str | None,
        batches: AsyncGenerator[Batch, None] | None = None,
        *,
        as_lines: bool = True,
    ) -> None:
        super().__init__(edge, call, batches, as_lines=as_lines)
        self._topic = topic

    async def _admit(self, batch: Batch) -> AdmittedBatch:
        admitted = AdmittedBatch(batch.first + len(batch.lines) - 1)
        for start in range(0, len(batch.lines), TURN_LINES):
            if start:
                await asyncio.sleep(0)
            self._admit_some(admitted, batch.first + start, batch.lines[start : start + TURN_LINES])
        return admitted

    def _admit_some(self, admitted: AdmittedBatch, first: int, lines: list[bytes | None]) -> None:
        tenant, topic, add = self._tenant, self._topic, self._edge.add
        now = self._edge.engine.clock.now()
        for number, line in enumerate(lines, first):
            if not line or line.isspace():
                if line is None:
                    admitted.refuse(self._too_long, number, None)
                continue  # blank lines are skipped, but numbered
            try:
                add(admitted.commands, tenant, line, topic, now)
                admitted.lines.append(number)
            except Invalid as invalid:
                admitted.refuse(invalid, number, id_of(line))

    async def _commit(self, admitted: AdmittedBatch, idempotency: IdempotencyKey | None, buffer: AnswerBuffer) -> None:
        outcomes: list[Outcome] = []
        if admitted.commands:
            outcomes = await self._edge.engine.submit(admitted.commands, idempotency)
        if documents := admitted.documents(outcomes):
            await self._put(buffer, documents)
        self._answered = admitted.last_line

"""Requests that are accepted together: the lines of NDJSON in batches, and coalesced single requests."""

import asyncio
import re
from collections.abc import Sequence
from functools import cached_property

import msgspec

from tidings.batcher import Batcher
from tidings.delivery.accept.acceptance import BULK_MIN, Acceptance, PreparedBulk
from tidings.delivery.accept.request import AcceptResult, AcceptResults, NotificationRequest
from tidings.domain.errors import Invalid, StoreError
from tidings.edges.http.inputs import decode, derived_id
from tidings.edges.http.ndjson import TURN_LINES, AnswerBuffer, Batch, LineStream
from tidings.edges.http.notifications.documents import accepted_document, encoded_columns
from tidings.ports import IdempotencyKey
from tidings.wires.answers import rejected_document
from tidings.wires.document import id_of

NUMBER = 'is a number: send "tomorrow 09:00", "2026-11-20T09:00:00Z" or "+5s", a text'
SINGLE_MAX = 256  # single requests that are accepted together

# A user's id, so that lines are found that differ in nothing else. No id that is valid has a character with an escape.
_ID = rb"[A-Za-z0-9_][A-Za-z0-9._@+:~=-]{0,99}"
_USER = re.compile(rb'"user"\s*:\s*"(%s)"' % _ID)
_is_id = re.compile(_ID).fullmatch
_decoder = msgspec.json.Decoder(NotificationRequest)


def read_request(body: bytes) -> NotificationRequest:
    """Decode one notification; unknown fields are refused by name."""
    request = decode(_decoder, body, NotificationRequest)
    for field in ("at", "scheduled_at"):
        if isinstance(getattr(request, field), int):
            raise Invalid(field, NUMBER)
    return request


def as_first_answer(accepted: AcceptResult) -> AcceptResult:
    """A repeat under an idempotency key gets the same answer as the first request."""
    if accepted.outcome != "unchanged":
        return accepted
    return msgspec.structs.replace(accepted, outcome="scheduled", state=None)


def split_at_user(body: bytes) -> tuple[bytes, str, bytes] | None:
    """What stands before the user of a request, the user, and what stands after it; None if there is no plain one."""
    found = _USER.search(body)
    return None if found is None else (body[: found.start(1)], found[1].decode(), body[found.end(1) :])


def may_be_coalesced(body: bytes, user: str, request: NotificationRequest) -> bool:
    """Whether others with the same text around their user are the same request, each for its own user.

    Not so if the text could be read in two ways, or if the request depends on an id or a key.
    """
    if body.count(b'"user"') > 1 or b"\\" in body or user != request.user:
        return False
    return request.id is None and request.dedupe_key is None


class _CoalescedCallers:
    """Callers with single requests that differ only in their user. The first is served at once, the others in batches:
    what arrives while one is being accepted goes into the next."""

    def __init__(self, acceptance: Acceptance, tenant: str, request: NotificationRequest) -> None:
        self.count = 0
        self._acceptance = acceptance
        self._tenant = tenant
        self._request = request

    async def accept_first(self) -> AcceptResult:
        """The result of the request as it is."""
        [result] = await self._acceptance.accept(self._tenant, self._request)
        return result

    async def accept(self, user: str) -> AcceptResult:
        """The result of the request for another user."""
        [result] = await self._batcher.submit([user])
        if isinstance(result, Invalid | StoreError):
            raise result
        return result[0]

    @cached_property
    def _batcher(self) -> Batcher[str, Sequence[AcceptResult] | Invalid | StoreError]:
        return Batcher(self._accept_all, weight=len, weight_max=SINGLE_MAX, calls_max=1, concerns_all=lambda _: True)

    async def _accept_all(self, users: Sequence[str]) -> list[Sequence[AcceptResult] | Invalid | StoreError]:
        if len(users) >= BULK_MIN:
            return await self._acceptance.accept_bulk(self._tenant, self._request, users)
        requests = [msgspec.structs.replace(self._request, user=user) for user in users]
        return [*await self._acceptance.accept_many(self._tenant, requests)]


class CoalescedRequests:
    """Single requests that are the same but for their user, sent concurrently: they are accepted in batches.

    They are known by their bytes, so that only the first of them is decoded. Nothing waits for requests of other kinds.
    """

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance
        self._callers: dict[tuple[str, bytes, bytes], _CoalescedCallers] = {}  # by tenant, and the text around the user

    async def accept(self, tenant: str, body: bytes) -> AcceptResult | NotificationRequest:
        """The result of a request; if no other one can be like it, the request itself, which is not accepted yet."""
        parts = split_at_user(body)
        if parts is None:
            return read_request(body)
        before, user, after = parts
        key = (tenant, before, after)
        callers = self._callers.get(key)
        if callers is None:
            request = read_request(body)
            if not may_be_coalesced(body, user, request):
                return request
            callers = self._callers[key] = _CoalescedCallers(self._acceptance, tenant, request)
        callers.count += 1
        try:
            return await (callers.accept_first() if callers.count == 1 else callers.accept(user))
        finally:
            callers.count -= 1
            if not callers.count:
                del self._callers[key]


class _BulkLines:
    """Lines that differ only in their user: the request of the first, and the number and user of each."""

    def __init__(self, request: NotificationRequest, before: bytes, after: bytes) -> None:
        self.request = request
        self.numbers: list[int] = []
        self.users: list[str] = []
        self.prepared: PreparedBulk | None = None
        self._before = before
        self._after = after

    def add_alike(self, number: int, line: bytes) -> bool:
        """Whether a line has the same bytes around its user; the user is added. To search the line takes longer."""
        before, after = self._before, self._after
        if not line.startswith(before) or not line.endswith(after):
            return False
        user = line[len(before) : len(line) - len(after)]
        if not _is_id(user):
            return False
        self.numbers.append(number)
        self.users.append(user.decode())
        return True


class _Lines:
    """The lines of a batch after decoding, by their numbers: a request, or why it was refused."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.requests: dict[int, NotificationRequest] = {}
        self.named: set[int] = set()  # the lines with an id of their own
        self.bulk: dict[tuple[bytes, bytes], _BulkLines] = {}  # by what stands before and after the user
        self.documents: dict[int, object] = {}
        self._latest: _BulkLines | None = None

    def refuse(self, number: int, invalid: Invalid, notification_id: str | None) -> None:
        self.documents[number] = rejected_document(invalid, number, notification_id)

    def add_to_bulk(self, number: int, line: bytes) -> bool:
        """Whether this line differs from one before only in its user: then it is not decoded."""
        if self._latest is not None and self._latest.add_alike(number, line):
            return True
        parts = split_at_user(line)
        bulk = None if parts is None else self.bulk.get((parts[0], parts[2]))
        if bulk is None:
            return False
        self._latest = bulk
        return bulk.add_alike(number, line)

    def begin_bulk(self, number: int, line: bytes, request: NotificationRequest) -> bool:
        """Whether lines after this one may differ from it only in their user."""
        parts = split_at_user(line)
        if parts is None or not may_be_coalesced(line, parts[1], request):
            return False
        self.bulk[parts[0], parts[2]] = _BulkLines(request, parts[0], parts[2])
        return self.add_to_bulk(number, line)


class NotificationStream(LineStream[_Lines]):
    """The answer to many notifications."""

    async def _admit(self, batch: Batch) -> _Lines:
        lines = _Lines(batch.first + len(batch.lines) - 1)
        for number, line in enumerate(batch.lines, batch.first):
            if (number - batch.first) % TURN_LINES == TURN_LINES - 1:
                await asyncio.sleep(0)
            if line is None:
                lines.refuse(number, self._too_long, None)
            elif line and not line.isspace() and not lines.add_to_bulk(number, line):  # blank lines are only numbered
                self._read(lines, number, line)
        for bulk in lines.bulk.values():
            if len(bulk.numbers) >= BULK_MIN:
                acceptance = self._edge.services.acceptance
                bulk.prepared = await acceptance.prepare_bulk(self._tenant, bulk.request, bulk.users)
            else:
                requests = [msgspec.structs.replace(bulk.request, user=user) for user in bulk.users]
                lines.requests.update(zip(bulk.numbers, requests, strict=True))
        return lines

    def _read(self, lines: _Lines, number: int, line: bytes) -> None:
        try:
            request = read_request(line)
            if request.users:
                raise Invalid("users", "is not accepted in lines: send one line for each user")
        except Invalid as invalid:
            lines.refuse(number, invalid, id_of(line))
            return
        if self._key is None and lines.begin_bulk(number, line, request):
            return
        if request.id is not None:
            lines.named.add(number)
        elif self._key is not None:
            request = msgspec.structs.replace(request, id=derived_id(f"{self._path.decode()}\n{self._key}\n{number}"))
        lines.requests[number] = request

    async def _commit(self, admitted: _Lines, idempotency: IdempotencyKey | None, buffer: AnswerBuffer) -> None:
        if idempotency is not None:
            await self._edge.engine.submit([], idempotency)
        acceptance = self._edge.services.acceptance
        for bulk in admitted.bulk.values():
            if bulk.prepared is not None:
                results = await acceptance.accept_prepared(bulk.prepared)
                for columns in results.columns:
                    numbers = [bulk.numbers[place] for place in columns.places]
                    documents = map(msgspec.Raw, encoded_columns(columns, numbers))
                    admitted.documents.update(zip(numbers, documents, strict=True))
                alone = [bulk.numbers[place] for place in results.others]
                await self._answer_lines(admitted, alone, [*results.others.values()])
        numbers = sorted(admitted.requests)
        if numbers:
            requests = [admitted.requests[number] for number in numbers]
            await self._answer_lines(admitted, numbers, await acceptance.accept_many(self._tenant, requests))
        if admitted.documents:
            await self._put(buffer, [admitted.documents[number] for number in sorted(admitted.documents)])
        self._answered = admitted.last

    async def _answer_lines(
        self, admitted: _Lines, numbers: Sequence[int], results: Sequence[AcceptResults | Invalid | StoreError]
    ) -> None:
        for index, (number, result) in enumerate(zip(numbers, results, strict=True)):
            if index % TURN_LINES == TURN_LINES - 1:
                await asyncio.sleep(0)
            if isinstance(result, Invalid):
                own = admitted.requests[number].id if number in admitted.named else None
                admitted.refuse(number, result, own)
                continue
            if isinstance(result, StoreError):
                raise result
            [one] = result if self._key is None or number in admitted.named else map(as_first_answer, result)
            admitted.documents[number] = accepted_document(one, number)

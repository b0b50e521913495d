"""Users from a file: CSV with a header line, or a JSON object a line. A bad line is reported, the rest go on."""

import csv
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.people.profile import Profile, user_of
from tidings.delivery.people.users import TRIES_MAX, ProfileChanges
from tidings.delivery.rows import user_key
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.notifications.user import User
from tidings.ports import WebhookCheck, any_webhook
from tidings.ports.tables import Row, Tables
from tidings.shapes.refusal import convert, decode

BATCH_LINES = 500
DETAIL_CHARS_MAX = 300
LINE_CHARS_MAX = 256 * 1024
BAD_LINES_MAX = 1_000  # so many are told in full; all are counted

Form = Literal["csv", "ndjson"]
_TEXTS = ("name", "email", "phone", "webhook", "zone", "locale", "quiet")
_PREFIXES = ("preferences", "variables")
_COLUMNS = "id, name, email, phone, webhook, zone, locale, quiet, devices, preferences.<name> or variables.<name>"
_YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class BadLine(msgspec.Struct, frozen=True):
    """A line that was left out; `line` counts from 1."""

    line: int
    field: str
    reason: str


class ImportResult(msgspec.Struct, frozen=True):
    """How far an import has come: lines read, users made and replaced, and the bad lines since the last report."""

    lines: int
    created: int
    replaced: int
    bad: int
    bad_lines: tuple[BadLine, ...] = ()


class _Line(msgspec.Struct, frozen=True):
    number: int
    user: User | None
    fault: Invalid | None = None


class UserImport:
    """Takes users in batches, each one transaction; what follows for pending notifications comes after it."""

    def __init__(
        self, tables: Tables, schedules: NotificationEngine, clock: Clock, webhook_check: WebhookCheck = any_webhook
    ) -> None:
        self._tables = tables
        self._check = webhook_check
        self._clock = clock
        self._changes = ProfileChanges(tables, schedules, clock)

    async def run(self, tenant: str, form: Form, lines: AsyncIterator[str]) -> AsyncIterator[ImportResult]:
        """Report after each batch; the last report holds the final counts. Who is there already is replaced."""
        read = _Csv() if form == "csv" else _Ndjson()
        done, number = ImportResult(0, 0, 0, 0), 0
        batch: list[_Line] = []
        async for line in lines:
            number += 1
            batch += map(self._checked, read.take(number, line))
            if len(batch) >= BATCH_LINES:
                done = await self._store(tenant, batch, number, done)
                yield done
                batch = []
        batch += map(self._checked, read.end())
        yield await self._store(tenant, batch, number, done)

    def _checked(self, line: _Line) -> _Line:
        if line.user is None or line.user.webhook is None:
            return line
        try:
            self._check(line.user.webhook, "webhook")
        except Invalid as fault:
            return _Line(line.number, None, fault)
        return line

    async def _store(self, tenant: str, batch: list[_Line], lines: int, before: ImportResult) -> ImportResult:
        users = {line.user.id: line.user for line in batch if line.user is not None}  # of two lines the later one
        now = self._clock.now()
        there = await self._tables.get([user_key(tenant, user_id) for user_id in users], now)
        await self._write(tenant, [*zip(there, users.values(), strict=True)])
        created = sum(1 for document in there if document is None)
        bad = [BadLine(line.number, line.fault.field, line.fault.detail) for line in batch if line.fault is not None]
        room = max(0, BAD_LINES_MAX - before.bad)
        return ImportResult(
            lines,
            before.created + created,
            before.replaced + sum(1 for line in batch if line.user is not None) - created,
            before.bad + len(bad),
            tuple(bad[:room]),
        )

    async def _write(self, tenant: str, users: Sequence[tuple[Row | None, User]]) -> None:
        """Write users, and what follows from their profiles; those that were changed meanwhile once more."""
        left = users
        for _ in range(TRIES_MAX):
            if not left:
                return
            done = await self._changes.commit(tenant, left)
            again = [user for (_, user), is_done in zip(left, done, strict=True) if not is_done]
            rows = await self._tables.get([user_key(tenant, user.id) for user in again], self._clock.now())
            left = [*zip(rows, again, strict=True)]
        raise Conflict("users are being changed by other requests: import the file again")


class _Ndjson:
    """One object a line; empty lines are passed over."""

    def take(self, number: int, line: str) -> Iterable[_Line]:
        if line.strip():
            yield _read(number, lambda: _from_object(decode(_bounded(line), dict[str, Any])))

    def end(self) -> Iterable[_Line]:
        return ()


class _Csv:
    """RFC 4180: a field in quotes may go over several lines; the line that is told is the one it begins on."""

    def __init__(self) -> None:
        self._columns: list[str] | None = None
        self._begun: list[str] = []
        self._begun_at = 0
        self._chars = 0
        self._quotes = 0

    def take(self, number: int, line: str) -> Iterable[_Line]:
        text = line.rstrip("\r\n")
        self._begun_at = self._begun_at or number
        self._begun.append(text)
        self._chars += len(text) + 1
        self._quotes += text.count('"')
        if self._quotes % 2 and self._chars <= LINE_CHARS_MAX:
            return
        begun_at, whole = self._begun_at, "\n".join(self._begun)
        self._begun, self._begun_at, self._chars, self._quotes = [], 0, 0, 0
        yield from self._row(begun_at, whole)

    def end(self) -> Iterable[_Line]:
        if self._begun:
            yield _Line(self._begun_at, None, Invalid("line", "opens a quote that is never closed: close it"))

    def _row(self, number: int, text: str) -> Iterator[_Line]:
        if not text.strip():
            return
        if self._columns is None:
            self._columns = _header(_cells(text.removeprefix("\ufeff")))
            return
        columns = self._columns
        yield _read(number, lambda: _from_cells(columns, _cells(text)))


def _read(number: int, read: Any) -> _Line:
    try:
        return _Line(number, read())
    except Invalid as fault:
        return _Line(number, None, fault)


def _bounded(text: str) -> str:
    if len(text) > LINE_CHARS_MAX:
        raise Invalid("line", f"has more than {LINE_CHARS_MAX} characters")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise Invalid("line", "is not UTF-8: save the file as UTF-8")
    return text


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([*_bounded(text).splitlines(keepends=True)], strict=True))
    except (csv.Error, StopIteration) as error:
        raise Invalid("line", f"is not valid CSV: {error}") from None


def _header(columns: list[str]) -> list[str]:
    """The names of the columns; an import with a wrong header is refused as a whole."""
    names = [name.strip() for name in columns]
    if len(names) == 1 and re.search("[;\t]", names[0]):
        raise Invalid("header", "has no commas: separate the columns by commas, not by semicolons or tabs")
    for name in names:
        known = name in {"id", "devices", *_TEXTS} or (name.partition(".")[0] in _PREFIXES and "." in name)
        if not known:
            raise Invalid(
                name[:60] or "header", f"is not a known column: the first line must name columns out of {_COLUMNS}"
            )
    if "id" not in names or len(set(names)) < len(names):
        raise Invalid("header", "needs the column id, and each column only once")
    return names


def _from_cells(columns: list[str], cells: list[str]) -> User:
    if len(cells) != len(columns):
        raise Invalid("line", f"has {len(cells)} fields, the header has {len(columns)}")
    document: dict[str, Any] = {}
    for column, cell in zip(columns, (cell.strip() for cell in cells), strict=True):
        if not cell:
            continue
        prefix, _, name = column.partition(".")
        if prefix == "preferences" or prefix == "variables":
            document.setdefault(prefix, {})[name] = cell
        else:
            document[column] = cell if column != "devices" else _devices(cell)
    return _from_object(document)


def _devices(cell: str) -> list[dict[str, str]]:
    """`apns:<token> fcm:<token>`, parted by spaces."""
    pairs = [text.partition(":") for text in cell.split()]
    return [{"platform": platform, "token": token} for platform, _, token in pairs]


def _preference(field: str, value: object) -> bool:
    """Yes or no, in either form of file."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in _YES_OR_NO:
        raise Invalid(field[:DETAIL_CHARS_MAX], f"{str(value)[:40]!r} is neither true nor false (yes nor no)")
    return _YES_OR_NO[value.lower()]


def _from_object(document: dict[str, Any]) -> User:
    if isinstance(preferences := document.get("preferences"), dict):
        document["preferences"] = {
            name: _preference(f"preferences.{name}", value) for name, value in preferences.items()
        }
    if isinstance(known := document.get("variables"), dict):
        for name in (name for name, value in known.items() if not isinstance(value, str)):
            raise Invalid(f"variables.{name[:80]}", "is not a string: write it in quotes")
    user_id = document.pop("id", None)
    if not isinstance(user_id, str):
        raise Invalid("id", "is missing or not a string: give the user's id")
    return user_of(user_id, convert(document, Profile))

"""Stores as a whole, without a server: brought up to date, and moved to another place."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.clock import SystemClock
from tidings.config import Config
from tidings.config.addresses import is_postgres
from tidings.config.settings import Store
from tidings.domain.errors import Invalid, NotFound
from tidings.edges.cli.program import program
from tidings.node.stores import MEMORY, CannotStart, check_address, file_of, open_store, shown
from tidings.timeline.carrying import Carrier, Kind, Move, Progress
from tidings.timeline.copying import Passage, Tell
from tidings.timeline.copying import take_back as take_back_from
from tidings.timeline.layouts import Done, Plan

if TYPE_CHECKING:
    from tidings.timeline.postgres.migration import Migration

SQLITE = "sqlite:"


class Copied(msgspec.Struct, frozen=True):
    """What came of a copy, and what it left behind."""

    source: str
    target: str
    progress: Progress
    cargo: dict[Kind, int]
    records: int
    groups: tuple[str, ...]


def migrate_store(store: str, schema: str, check: bool, tell: Callable[[Done], None]) -> Plan:
    """Bring a store up to the layout that is known here, or only say what would be done."""
    path = _address(store)
    if not is_postgres(path):
        return _migrate(path, check, tell)
    return asyncio.run(_migrate_postgres(path, schema, check, tell))


async def _migrate_postgres(path: str, schema: str, check: bool, tell: Callable[[Done], None]) -> Plan:
    migration = _migration(path, schema)
    return await migration.plan() if check else await migration.run(tell)


def _migration(path: str, schema: str) -> "Migration":
    try:
        from tidings.timeline.postgres.migration import Migration
    except ImportError:
        raise CannotStart("PostgreSQL needs its client: pip install 'tidings[postgres]'") from None
    return Migration(path, SystemClock(), schema=schema)


def _migrate(path: str, check: bool, tell: Callable[[Done], None]) -> Plan:
    from tidings.timeline.sqlite.database import plan, prepare

    file = _existing(path)
    found = plan(str(file))
    if not check:
        prepare(str(file), tell=tell, clock=SystemClock())
    return found


def copy_store(source: str, target: str, schema: str, leave_log: bool, tell: Tell) -> Copied:
    """Move everything from one store to another; may be run again after it was cut off."""
    return asyncio.run(_copy(_address(source), _address(target), schema, leave_log, tell))


async def _copy(source: str, target: str, schema: str, leave_log: bool, tell: Tell) -> Copied:
    await _check_source(source, schema)
    clock, config = SystemClock(), _config(schema)
    begin: Any = await open_store(source, config, clock, moved_too=True)
    try:
        end: Any = await open_store(target, config, clock)
        try:
            passage = Passage(begin.carrier(), end.carrier(), shown(target), clock, tell)
            done = await passage.run(leave_log=leave_log)
        finally:
            await end.close()
    finally:
        await begin.close()
    groups = tuple(f"{each.group} on {each.tenant}/{each.topic}" for each in done.rest.behind)
    return Copied(shown(source), shown(target), done.progress, done.cargo, done.rest.records, groups)


def take_back(source: str, schema: str) -> Move:
    """Let a store that has moved be served again."""

    async def run(path: str) -> Move:
        await _check_source(path, schema)
        store: Any = await open_store(path, _config(schema), SystemClock(), moved_too=True)
        try:
            carrier: Carrier = store.carrier()
            return await take_back_from(carrier, SystemClock())
        finally:
            await store.close()

    return asyncio.run(run(_address(source)))


def _address(store: str) -> str:
    """A store as `serve` names it: the file of `sqlite:tidings.db`, or the URL of a database."""
    path = store.removeprefix(SQLITE)
    if path == MEMORY:
        raise Invalid("store", "what is in memory ends with its server: name a file, or the URL of a database")
    check_address(path, Config())
    return path


def _config(schema: str) -> Config:
    return Config(store=Store(schema=schema))


async def _check_source(path: str, schema: str) -> None:
    """What is to be copied must be there: nothing is made just to find it empty."""
    if not is_postgres(path):
        _existing(path)
    elif (await _migration(path, schema).plan()).version == 0:
        raise NotFound(f"there is no store in the schema {schema} of {shown(path)}")


def _existing(path: str) -> Path:
    file = file_of(path)
    if not file.exists():
        raise NotFound(f"there is no store {path}: `{program()} serve --store {quote(path)}` makes it")
    return file

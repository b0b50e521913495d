"""Stores as a whole, without a server: brought up to date, and moved to another place."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.clock import SystemClock
from tidings.config import Config, load
from tidings.config.addresses import Place, is_postgres
from tidings.config.settings import Node
from tidings.domain.errors import Invalid, NotFound
from tidings.edges.cli.program import program
from tidings.node.stores import (
    MEMORY,
    address_of,
    client_missing,
    file_of,
    open_store,
    other_schema,
    shown,
)
from tidings.timeline.carrying import Carrier, Kind, Move, Progress
from tidings.timeline.copying import Passage, Tell, check_leaving
from tidings.timeline.copying import take_back as take_back_from
from tidings.timeline.layouts import Done, Plan

if TYPE_CHECKING:
    from tidings.timeline.postgres.migration import Migration


class Copied(msgspec.Struct, frozen=True):
    """What came of a copy, and what it left behind. `since` is when an earlier one had done all of it."""

    source: str
    source_schema: str | None
    target: str
    target_schema: str | None
    progress: Progress
    cargo: dict[Kind, int]
    records: int
    groups: tuple[str, ...]
    since: int | None


def migrate_store(place: Place, check: bool, tell: Callable[[Done], None]) -> Plan:
    """Bring a store up to the layout that is known here, or only say what would be done."""
    config = _settings(place, "--store", "--schema")
    path = config.store.path
    if not is_postgres(path):
        return _migrate(path, check, tell)
    return asyncio.run(_migrate_postgres(path, config.store.schema, check, tell))


async def _migrate_postgres(path: str, schema: str, check: bool, tell: Callable[[Done], None]) -> Plan:
    migration = _migration(path, schema)
    return await migration.plan() if check else await migration.run(tell)


def _migration(path: str, schema: str) -> "Migration":
    try:
        from tidings.timeline.postgres.migration import Migration
    except ImportError:
        raise client_missing("PostgreSQL", "postgres") from None
    return Migration(path, SystemClock(), schema=schema)


def _migrate(path: str, check: bool, tell: Callable[[Done], None]) -> Plan:
    from tidings.timeline.sqlite.database import plan, prepare

    file = _existing(path)
    found = plan(str(file))
    if not check:
        prepare(str(file), tell=tell, clock=SystemClock())
    return found


def copy_store(source: Place, target: Place, leave_log: bool, tell: Tell) -> Copied:
    """Move everything from one store to another; may be run again after it was cut off."""
    begin, end = _settings(source, "--from", "--from-schema"), _settings(target, "--to", "--to-schema")
    return asyncio.run(_copy(begin, end, leave_log, tell))


async def _copy(source: Config, target: Config, leave_log: bool, tell: Tell) -> Copied:
    await _check_source(source)
    clock, begin = SystemClock(), await _opened(source)
    try:
        if not await _is_there(target):
            await check_leaving(begin.carrier(), clock, leave_log=leave_log)
        to, schema = _told(target)
        end: Any = await open_store(target.store.path, target, clock)
        try:
            passage = Passage(begin.carrier(), end.carrier(), to, clock, tell, schema=schema)
            done = await passage.run(leave_log=leave_log)
        finally:
            await end.close()
    finally:
        await begin.close()
    groups = tuple(f"{each.group} on {each.tenant}/{each.topic}" for each in done.rest.behind)
    return Copied(*_told(source), to, schema, done.progress, done.cargo, done.rest.records, groups, done.since)


def take_back(source: Place) -> Move:
    """Let a store that has moved be served again."""

    async def run(config: Config) -> Move:
        await _check_source(config)
        store = await _opened(config)
        try:
            carrier: Carrier = store.carrier()
            return await take_back_from(carrier, SystemClock())
        finally:
            await store.close()

    return asyncio.run(run(_settings(source, "--from", "--from-schema")))


async def _opened(config: Config) -> Any:
    """A store to copy from, whether it has moved or not."""
    return await open_store(config.store.path, config, SystemClock(), moved_too=True)


def _settings(place: Place, store_flag: str, schema_flag: str) -> Config:
    """The settings with which `serve` would open this store; what a node does is of no matter to who moves it."""
    flags = {}
    if place.store is not None:
        flags["store.path"] = store_flag, address_of(place.store)
    if place.schema is not None:
        flags["store.schema"] = schema_flag, place.schema
    config = msgspec.structs.replace(load(None, os.environ, flags).config, node=Node())
    if config.store.path == MEMORY:
        raise Invalid("store", "what is in memory ends with its server: name a file, or the URL of a database")
    return config


def _told(config: Config) -> tuple[str, str | None]:
    """Where a store is, for people to read, and its schema if it must be told."""
    path = config.store.path
    return shown(path), other_schema(path, config.store.schema)


async def _is_there(config: Config) -> bool:
    path = config.store.path
    if not is_postgres(path):
        return file_of(path).exists()
    return (await _migration(path, config.store.schema).plan()).version > 0


async def _check_source(config: Config) -> None:
    """What is to be copied must be there: nothing is made just to find it empty."""
    path = config.store.path
    if not is_postgres(path):
        _existing(path)
    elif not await _is_there(config):
        raise NotFound(f"there is no store in the schema {config.store.schema} of {shown(path)}")


def _existing(path: str) -> Path:
    file = file_of(path)
    if not file.exists():
        raise NotFound(f"there is no store {path}: `{program()} serve --store {quote(path)}` makes it")
    return file

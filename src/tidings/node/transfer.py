"""Works on whole stores without a server: migrates one to the current schema version, or copies one to another."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.clock import SystemClock
from tidings.config import Config, load
from tidings.config.checks import StoreUrl, is_postgres
from tidings.config.settings import Node
from tidings.domain.errors import Invalid, NotFound
from tidings.edges.cli.exit_codes import program
from tidings.node.stores import MEMORY, address_of, client_missing, file_of, open_store, other_schema, shown
from tidings.timeline.migrations import Plan, StepDone
from tidings.timeline.transfer.protocol import Move
from tidings.timeline.transfer.run import OnProgress, Transfer, TransferResult, check_source, reopen

if TYPE_CHECKING:
    from tidings.timeline.postgres.migration import Migration


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a copy, and the stores as shown to people; a schema is None for a file and if it is the default."""

    source: str
    source_schema: str | None
    target: str
    target_schema: str | None
    result: TransferResult


def migrate_store(place: StoreUrl, check: bool, on_done: Callable[[StepDone], None]) -> Plan:
    """Migrate a store to the layout of this version, or only report the steps."""
    config = _settings(place, "--store", "--schema")
    path = config.store.path
    if not is_postgres(path):
        return _migrate(path, check, on_done)
    return asyncio.run(_migrate_postgres(path, config.store.schema, check, on_done))


async def _migrate_postgres(path: str, schema: str, check: bool, on_done: Callable[[StepDone], None]) -> Plan:
    migration = _migration(path, schema)
    return await migration.plan() if check else await migration.run(on_done)


def _migration(path: str, schema: str) -> "Migration":
    try:
        from tidings.timeline.postgres.migration import Migration
    except ImportError:
        raise client_missing("PostgreSQL", "postgres") from None
    return Migration(path, SystemClock(), schema=schema)


def _migrate(path: str, check: bool, on_done: Callable[[StepDone], None]) -> Plan:
    from tidings.timeline.sqlite.database import plan, prepare

    file = _existing(path)
    found = plan(str(file))
    if not check:
        prepare(str(file), on_step=on_done, clock=SystemClock())
    return found


def copy_store(source: StoreUrl, target: StoreUrl, leave_log: bool, on_progress: OnProgress) -> Copied:
    """Move everything from one store to another; run it again after an interruption."""
    source_config, target_config = (
        _settings(source, "--from", "--from-schema"),
        _settings(target, "--to", "--to-schema"),
    )
    return asyncio.run(_copy(source_config, target_config, leave_log, on_progress))


async def _copy(source: Config, target: Config, leave_log: bool, on_progress: OnProgress) -> Copied:
    clock, old_store = SystemClock(), await _open_source(source)
    try:
        if not await _exists(target):
            await check_source(old_store.transfer_endpoint(), clock, leave_log=leave_log)
        to, schema = _named(target)
        new_store: Any = await open_store(target.store.path, target, clock)
        try:
            transfer = Transfer(
                old_store.transfer_endpoint(),
                new_store.transfer_endpoint(),
                to=to,
                schema=schema,
                clock=clock,
                on_progress=on_progress,
            )
            result = await transfer.run(leave_log=leave_log)
        finally:
            await new_store.close()
    finally:
        await old_store.close()
    name, source_schema = _named(source)
    return Copied(source=name, source_schema=source_schema, target=to, target_schema=schema, result=result)


def take_back(source: StoreUrl) -> Move:
    """Let a store that has moved be served again; returns where it had moved to."""

    async def run(config: Config) -> Move:
        store = await _open_source(config)
        try:
            return await reopen(store.transfer_endpoint(), SystemClock())
        finally:
            await store.close()

    return asyncio.run(run(_settings(source, "--from", "--from-schema")))


async def _open_source(config: Config) -> Any:
    """Open a store to copy from, whether it has moved or not. It must exist: nothing is created to find it empty."""
    path = config.store.path
    if not is_postgres(path):
        _existing(path)
    elif not await _exists(config):
        raise NotFound(f"there is no store in the schema {config.store.schema} of {shown(path)}")
    return await open_store(path, config, SystemClock(), moved_too=True)


def _settings(place: StoreUrl, store_flag: str, schema_flag: str) -> Config:
    """The settings with which `serve` would open this store, without the roles of a node."""
    flags = {}
    if place.store is not None:
        flags["store.path"] = store_flag, address_of(place.store)
    if place.schema is not None:
        flags["store.schema"] = schema_flag, place.schema
    config = msgspec.structs.replace(load(None, os.environ, flags).config, node=Node())
    if config.store.path == MEMORY:
        raise Invalid("store", "a memory store does not outlive its server: name a file, or the URL of a database")
    return config


def _named(config: Config) -> tuple[str, str | None]:
    """A store as shown to people, and its schema unless it is the default."""
    path = config.store.path
    return shown(path), other_schema(path, config.store.schema)


async def _exists(config: Config) -> bool:
    path = config.store.path
    if not is_postgres(path):
        return file_of(path).exists()
    return (await _migration(path, config.store.schema).plan()).version > 0


def _existing(path: str) -> Path:
    file = file_of(path)
    if not file.exists():
        raise NotFound(f"there is no store {path}: `{program()} serve --store {quote(path)}` creates it")
    return file

"""Opens the store that an address names (PostgreSQL by URL, SQLite by file, or memory), and manages its API keys."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

from tidings.clock import Clock, SystemClock
from tidings.config import Config, load
from tidings.config.checks import check_store, is_postgres, without_password
from tidings.domain.errors import Invalid, NotFound, TidingsError
from tidings.domain.names import check_name
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.domain.schedules.iso8601 import format_instant
from tidings.edges.cli.exit_codes import program
from tidings.ports import ApiKey, KeyStore, Store
from tidings.timeline.migrations import OldLayout
from tidings.timeline.transfer.protocol import HasMoved

if TYPE_CHECKING:
    from tidings.timeline.postgres.store import PostgresStore

from typing import TYPE_CHECKING

import msgspec

from tidings.config.checks import StoreUrl
from tidings.config.settings import Node
from tidings.timeline.migrations import Plan, StepDone
from tidings.timeline.transfer.protocol import Move
from tidings.timeline.transfer.run import OnProgress, Transfer, TransferResult, check_source, reopen

if TYPE_CHECKING:
    from tidings.timeline.postgres.migration import Migration


MEMORY = ":memory:"
SCHEMA = Config().store.schema

logger = logging.getLogger("tidings")

T = TypeVar("T")


class CannotStart(TidingsError):
    """The node cannot start; the text says what to do."""


def client_missing(server: str, extra: str) -> CannotStart:
    """The error for a client that is not installed. Tidings is on no package index, so it is installed from a clone."""
    how = f"run `make setup`, or `pip install '.[{extra}]'`, in the clone of Tidings"
    return CannotStart(f"the client for {server} is not installed: {how}")


async def open_store(path: str, config: Config, clock: Clock, *, moved_too: bool = False) -> Store:
    """Open the store at a path; `:memory:` is lost at exit.

    A store that was moved elsewhere is opened only with `moved_too`, for the transfer itself.
    """
    path = address_of(path)
    check_address(path, config)
    options: dict[str, Any] = {
        "partitions": config.log.partitions,
        "id_retention_us": config.ids.retention_us,
        "retention_us": config.log.retention_us,
        "retention_bytes": config.log.retention_bytes,
        "idempotency_retention_us": config.ids.idempotency_retention_us,
        "created": clock.now(),
    }
    if path == MEMORY:
        from tidings.timeline.memory.store import MemoryStore

        return MemoryStore(**options)
    if is_postgres(path):
        options["moved_too"] = moved_too
        with _with_advice(path, config.store.schema):
            return await _open_postgres(path, config, clock, options)
    from tidings.timeline.sqlite.store import SqliteStore

    if file_of(path).is_dir():
        raise Invalid("store", f"{path} is a folder: give a file in it, such as {Path(path) / 'tidings.db'}")
    with _with_advice(path, SCHEMA):
        return await SqliteStore.open(file_of(path), clock, moved_too=moved_too, **options)


@contextlib.contextmanager
def _with_advice(path: str, schema: str) -> Iterator[None]:
    """Add what to do to the errors of a store that cannot be used as it is."""
    named, other = quote(shown(path)), other_schema(path, schema)
    source = named + ("" if other is None else f" --from-schema {other}")
    try:
        yield
    except OldLayout as old:
        raise CannotStart(
            f"{old}\nbring it up to date, while nodes of the older version run:  {program()} migrate --store {named}"
            + ("" if other is None else f" --schema {other}")
        ) from None
    except HasMoved as gone:
        move = gone.move
        to = quote(move.to)
        hidden = "\n(a password is not shown: add it)" if is_postgres(path) or is_postgres(move.to) else ""
        if not move.done:
            raise CannotStart(
                f"{gone} since {format_instant(move.at)}, and the copy is not complete\n"
                f"continue:      {program()} copy --from {source} --to {to}"
                + ("" if move.schema is None else f" --to-schema {move.schema}")
                + f"\nor reopen it:  {program()} copy --from {source} --take-back{hidden}"
            ) from None
        raise CannotStart(
            f"{gone} at {format_instant(move.at)}: serving both would send everything twice\n"
            f"serve the new store:                 {program()} serve --store {to}"
            + ("" if move.schema is None else f" --set store.schema={move.schema}")
            + f"\nor, after you have emptied the new:  {program()} copy --from {source} --take-back{hidden}"
        ) from None


def other_schema(path: str, schema: str) -> str | None:
    """The schema, if it is not the default and commands must name it."""
    return schema if is_postgres(path) and schema != SCHEMA else None


def address_of(store: str) -> str:
    """Check and normalise an address that a user wrote."""
    try:
        return check_store(store)
    except ValueError as error:
        raise Invalid("store", str(error)) from None


def check_processes(config: Config) -> None:
    """Check that several processes can share the store."""
    if config.node.processes > 1 and not is_postgres(address_of(config.store.path)):
        text = "a file or memory store is used by one process"
        raise Invalid("node.processes", f"{text}. Leave it out, or let several processes share a PostgreSQL")


def check_address(path: str, config: Config) -> None:
    """Check the roles and channels before anything is opened."""
    if not is_postgres(path) and "dispatch" not in config.node.roles:
        text = "without dispatch nothing would be released: a file or memory store is used by one process"
        raise Invalid("node.roles", f"{text}. Add dispatch, or let several nodes share a PostgreSQL")
    if not is_postgres(path) and (missing := [each for each in CHANNEL_NAMES if each not in config.node.channels]):
        text = f"nobody would deliver to {', '.join(missing)}: a file or memory store is used by one process"
        raise Invalid("node.channels", f"{text}. Leave it out, or let several nodes share a PostgreSQL")


async def _open_postgres(path: str, config: Config, clock: Clock, options: dict[str, Any]) -> "PostgresStore":
    try:
        from tidings.timeline.postgres.store import PostgresStore
    except ImportError:
        raise client_missing("PostgreSQL", "postgres") from None
    lanes, schema = config.store.lanes, config.store.schema
    count = config.node.processes
    store = await PostgresStore.open(path, clock, schema=schema, lanes=lanes, processes=count, **options)
    if count > 1 and (allowed := await store.connections_allowed()) < store.connections_max:
        await store.close()
        raise CannotStart(
            f"{count} processes need up to {store.connections_max} connections to PostgreSQL, which allows {allowed}"
            " (max_connections, without those reserved for superusers): start fewer processes, or raise max_connections"
        )
    wanted = lanes * -(-config.log.partitions // lanes)
    if (store.lanes_total, store.partitions) != (lanes, wanted):
        text = "this store was created with %d lanes and %d partitions; store.lanes and log.partitions are ignored"
        logger.info(text, store.lanes_total, store.partitions)
    return store


def file_of(path: str) -> Path:
    """The file of a path, with `~` expanded."""
    return Path(path).expanduser()


def is_there(path: str) -> bool:
    """Whether the store exists, as far as can be known without opening it."""
    return is_postgres(path) or (path != MEMORY and file_of(path).exists())


def shown(path: str) -> str:
    """The address of a store for display, without its password."""
    if not is_postgres(path):
        return path if path == MEMORY else str(file_of(path).resolve())
    return without_password(path)


def create_key(store: str, schema: str | None, name: str, tenant: str, admin: bool) -> str:
    """Create a key and return it; the store keeps only its digest."""
    from tidings.edges.http.auth import make_key

    check_name(name, "name")
    check_name(tenant, "tenant")
    key, stored = make_key(name, tenant, admin=admin, now=SystemClock().now())

    async def add(keys: KeyStore) -> None:
        await keys.add_key(stored)

    _with_keys(address_of(store), schema, add)
    return key


def list_keys(store: str, schema: str | None) -> list[ApiKey]:
    """The keys of a store, by name."""

    async def read(keys: KeyStore) -> list[ApiKey]:
        return await keys.keys()

    return _with_keys(_existing(store), schema, read)


def revoke_key(store: str, schema: str | None, name: str) -> bool:
    """Delete a key; False if there is none of that name."""

    async def revoke(keys: KeyStore) -> bool:
        return await keys.revoke_key(name)

    return _with_keys(_existing(store), schema, revoke)


def _with_keys(path: str, schema: str | None, act: Callable[[KeyStore], Awaitable[T]]) -> T:
    """Open the store with the schema and lanes of the settings; the flag takes precedence."""
    config = load(None, os.environ, {} if schema is None else {"store.schema": ("--schema", schema)}).config

    async def run() -> T:
        store = await open_store(path, config, SystemClock())
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _existing(store: str) -> str:
    path = address_of(store)
    if not is_there(path):
        name = program()
        raise NotFound(f"there is no store {path}: create it with `{name} serve` or `{name} keys create`")
    return path


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a copy, and the stores as shown to people; a schema is None for a file and if it is the default."""

    source: str
    source_schema: str | None
    target: str
    target_schema: str | None
    result: TransferResult


def migrate_store(store: StoreUrl, check: bool, on_done: Callable[[StepDone], None]) -> Plan:
    """Migrate a store to the layout of this version, or only report the steps."""
    config = _settings(store, "--store", "--schema")
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
    from tidings.timeline.sqlite.document_migration import migrate_file

    file = _existing_store(path)
    found = plan(str(file))
    if not check:
        prepare(str(file), on_step=on_done, clock=SystemClock())
        migrate_file(str(file))
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
        _existing_store(path)
    elif not await _exists(config):
        raise NotFound(f"there is no store in the schema {config.store.schema} of {shown(path)}")
    return await open_store(path, config, SystemClock(), moved_too=True)


def _settings(store: StoreUrl, store_flag: str, schema_flag: str) -> Config:
    """The settings with which `serve` would open this store, without the roles of a node."""
    flags = {}
    if store.store is not None:
        flags["store.path"] = store_flag, address_of(store.store)
    if store.schema is not None:
        flags["store.schema"] = schema_flag, store.schema
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


def _existing_store(path: str) -> Path:
    file = file_of(path)
    if not file.exists():
        raise NotFound(f"there is no store {path}: `{program()} serve --store {quote(path)}` creates it")
    return file

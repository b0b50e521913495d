"""Reads the database directly: the owner and writers of each lane, and how soon it is released again.

Triggers record every write of a lane: by which connection, and which node owned the lane then. Connections have the
name of their process as application name, so that a write of a zombie can be found.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.servers.postgres import Postgres
from tidings.testing import eventually

LOOK_S = 0.03
NOT_OWNER = "another node owns this lane"

_TABLES = """
CREATE SCHEMA audit;
CREATE TABLE audit.written (incarnation text, lane int, node uuid, at bigint, what text);
CREATE TABLE audit.released (lane int PRIMARY KEY, node uuid, times int);
CREATE TABLE audit.changed (lane int, former uuid, node uuid, at bigint);
CREATE TABLE audit.incarnation (incarnation text PRIMARY KEY, node uuid)
"""

_TRIGGERS = """
INSERT INTO audit.released SELECT lane, NULL, 0 FROM tidings.lane;
CREATE FUNCTION audit.note(lane_ int, node_ uuid, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.written VALUES (current_setting('application_name'), lane_, node_, tidings.now(), what);
    UPDATE audit.released SET node = node_, times = times + 1 WHERE lane = lane_ AND what <> 'lane';
END
$$;

CREATE FUNCTION audit.turned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit.note(NEW.lane, NEW.node, 'lane');
    RETURN NULL;
END
$$;
CREATE TRIGGER turned AFTER UPDATE ON tidings.lane FOR EACH ROW
WHEN (OLD.turns <> NEW.turns OR OLD.outbox_first <> NEW.outbox_first OR OLD.outbox_next <> NEW.outbox_next)
EXECUTE FUNCTION audit.turned();

CREATE FUNCTION audit.changed_hands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.changed VALUES (NEW.lane, OLD.node, NEW.node, tidings.now());
    RETURN NULL;
END
$$;
CREATE TRIGGER changed_hands AFTER UPDATE ON tidings.lane FOR EACH ROW WHEN (OLD.node IS DISTINCT FROM NEW.node)
EXECUTE FUNCTION audit.changed_hands();

CREATE FUNCTION audit.logged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit.note(l.lane, l.node, 'log') FROM tidings.lane l WHERE l.lane IN (
        SELECT p.lane FROM fresh JOIN tidings.partition p ON p.topic = fresh.topic AND p.part = fresh.part);
    RETURN NULL;
END
$$;
CREATE TRIGGER logged AFTER INSERT ON tidings.log REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION audit.logged();

CREATE FUNCTION audit.handed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit.note(l.lane, l.node, 'outbox') FROM tidings.lane l WHERE l.lane IN (SELECT lane FROM fresh);
    RETURN NULL;
END
$$;
CREATE TRIGGER handed AFTER INSERT ON tidings.outbox REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION audit.handed();
"""

_ZOMBIES = """
SELECT w.incarnation, w.lane, w.what, w.at FROM audit.written w LEFT JOIN audit.incarnation l USING (incarnation)
WHERE l.node IS DISTINCT FROM w.node ORDER BY w.at
"""

# Of the lanes of a node: when they were handed over or taken from it, and when another node got them. A lane that it
# gave away just before the fault was not taken from it.
_CHANGES = """
SELECT min(at) FILTER (WHERE former = %(node)s), min(at) FILTER (WHERE node <> %(node)s) FROM audit.changed
WHERE lane = ANY (%(lanes)s) AND at >= %(since)s GROUP BY lane HAVING count(*) FILTER (WHERE node <> %(node)s) > 0
"""

_NODE = "SELECT node::text FROM tidings.node WHERE report::json ->> 'name' = %s"


@dataclass(frozen=True)
class Owned:
    """A lane: its owner, the node that released from it last, and the number of releases."""

    node: str | None
    by: str | None
    times: int


@dataclass(frozen=True)
class Taken:
    """How long lanes had no owner: until all had another, and until all of them were released again.

    Ownership is measured by the clock of the server: `free_s` is how long a handed-over lane had no owner. `stall_s` is
    how long the slowest of the short queries took that this test made meanwhile: a node waits as long for its own.
    """

    kind: str
    lanes: int
    owned_s: float
    working_s: float
    free_s: float = 0.0
    stall_s: float = 0.0


class DatabaseMonitor:
    """Direct connections to the server."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    # What the test installs

    async def prepare(self) -> None:
        """Create the audit tables, before there is a store."""
        await self._run(_TABLES)

    async def install(self) -> None:
        """Record every write of a lane from now on."""
        await self._run(_TRIGGERS)

    async def register(self, incarnation: str, node: str) -> None:
        """Record the node id of a process."""
        await self._run("INSERT INTO audit.incarnation VALUES (%s, %s)", (incarnation, node))

    async def take_fences_away(self) -> int:
        """Let every function of the store accept any fencing token; returns how many checked it."""
        found = await self._run(
            "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
            " WHERE n.nspname = 'tidings' AND p.prosrc ~ 'AND token = token_'"
        )
        for (text,) in found:
            await self._run(re.sub(r" AND token = token_", "", str(text)))
        return len(found)

    # What it reads

    async def node_of(self, incarnation: str) -> str:
        """The node id of a process."""
        found: list[tuple[Any, ...]] = []

        async def is_there() -> bool:
            nonlocal found
            found = await self._run(_NODE, (incarnation,))
            return bool(found)

        await eventually(is_there, 60)
        return str(found[0][0])

    async def lanes(self) -> dict[int, Owned]:
        """The present owners."""
        found = await self._run(
            "SELECT l.lane, l.node::text, r.node::text, r.times FROM tidings.lane l JOIN audit.released r USING (lane)"
        )
        return {lane: Owned(*owned) for lane, *owned in found}

    async def zombie_writes(self) -> list[tuple[Any, ...]]:
        """Writes to a lane by a node that did not own it."""
        return await self._run(_ZOMBIES)

    async def writes(self) -> int:
        """The number of recorded writes."""
        return int((await self._run("SELECT count(*) FROM audit.written"))[0][0])

    def refusals(self) -> int:
        """How often the server refused a write because another node owns the lane, over all restarts."""
        logs = self._postgres.folder.glob("server*.log")
        return sum(path.read_text("utf-8", errors="replace").count(NOT_OWNER) for path in logs)

    async def backends(self, incarnation: str) -> list[int]:
        """The backends of the connections of a process."""
        found = await self._run("SELECT pid FROM pg_stat_activity WHERE application_name = %s", (incarnation,))
        return [pid for (pid,) in found]

    async def terminate(self, backends: Sequence[int]) -> int:
        """End them; returns how many there were."""
        found = await self._run("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", (list(backends),))
        return sum(bool(done) for (done,) in found)

    async def started(self) -> str:
        """When the server was started."""
        return str((await self._run("SELECT pg_postmaster_start_time()"))[0][0])

    async def taken_over(self, kind: str, node: str, before: dict[int, Owned], begun: float, within_s: float) -> Taken:
        """Wait until others own all that a node had before, and release it; `begun` is the time of the fault."""
        lost = {lane for lane, owned in before.items() if owned.node == node}
        had, since, working_s, stall_s = list(lost), await self._server_time(begun), 0.0, 0.0
        while lost:
            looked = time.monotonic()
            lanes = await self.lanes()
            gone, stall_s = time.monotonic() - begun, max(stall_s, time.monotonic() - looked)
            for lane in list(lost):
                owned = lanes[lane]
                if owned.by != node and owned.times > before[lane].times:
                    lost.discard(lane)
                    working_s = gone
            assert gone < within_s, f"{kind}: lanes {sorted(lost)} of {node} wait since {gone:.1f} s: {lanes}"
            await asyncio.sleep(LOOK_S)
        changes = await self._run(_CHANGES, {"node": node, "lanes": had, "since": since})
        owned_s = max((taken - since for _, taken in changes), default=0) / 1_000_000
        free_s = max((taken - freed for freed, taken in changes if freed), default=0) / 1_000_000
        return Taken(kind, len(had), owned_s, working_s, free_s, stall_s)

    async def _server_time(self, moment: float) -> int:
        """The clock of the server at a local monotonic time."""
        ((server_now,),) = await self._run("SELECT tidings.now()")
        return int(server_now) - int((time.monotonic() - moment) * 1_000_000)

    async def shared_evenly(self, nodes: Callable[[], int], timeout_s: float = 60.0) -> list[int]:
        """Wait until lanes are shared evenly; returns the number of lanes of each node."""
        shares: list[int] = []

        async def is_even() -> bool:
            nonlocal shares
            lanes = await self.lanes()
            owners = [owned.node for owned in lanes.values()]
            shares = sorted(owners.count(owner) for owner in set(owners))
            return None not in owners and len(shares) == nodes() and shares[-1] - shares[0] <= 1

        await eventually(is_even, timeout_s)
        return shares

    async def _run(
        self, statement: str, values: Sequence[object] | Mapping[str, object] | None = None
    ) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self._postgres.dsn, autocommit=True) as connection:
            cursor = await connection.execute(statement.encode(), values)
            return await cursor.fetchall() if cursor.description else []

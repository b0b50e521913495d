"""Ownership of the file: a lease whose token every write checks."""

import secrets
from pathlib import Path

import apsw
import msgspec

from tidings.domain.fleet import Node, Report, one_node
from tidings.timeline.sqlite.writer import Writer
from tidings.timeline.transfer.protocol import HasMoved, Move, decode_move

TOKEN_BYTES = 16
RESIGN_MS = 500


class Lease:
    """Taken when it is free or has run out; counted on the clock of this boot of the machine."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._boot = _boot()
        self._node: Node | None = None

    def acquire(self, elapsed: int, lease_us: int, report: Report, *, moved_too: bool = False) -> tuple[bool, bool]:
        """Take or renew it: (we own it, we did not before). If it is new, what is in memory is stale.

        `HasMoved` if the store has moved elsewhere, unless `moved_too`. A copy then takes the lease at once: another
        owner can only be another copy, and the target lets only one of them continue.
        """
        connection = self._writer.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            move = moved(connection)
            if move is not None and not moved_too:
                raise HasMoved(move)
            answer = self._take(connection, elapsed, lease_us, report, by_force=move is not None)
            self._writer.stale = self._writer.stale or answer == (True, True)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return answer

    def _take(
        self, connection: apsw.Connection, elapsed: int, lease_us: int, report: Report, *, by_force: bool
    ) -> tuple[bool, bool]:
        row = connection.execute("SELECT token, boot, until FROM lease").fetchone()
        mine = row is not None and row[0] is not None and row[0] == self._writer.token
        free = by_force or row is None or row[0] is None or row[1] != self._boot or row[2] <= elapsed
        if not mine and not free:
            self._writer.token = None
            return False, False
        token = self._writer.token if mine else secrets.token_bytes(TOKEN_BYTES)
        self._node = one_node(self._node if mine else None, report, lease_us)
        row = (token, self._boot, elapsed + lease_us, msgspec.json.encode(self._node))
        connection.execute("INSERT OR REPLACE INTO lease (one, token, boot, until, node) VALUES (1, ?, ?, ?, ?)", row)
        self._writer.token = token
        return True, not mine

    def resign(self) -> None:
        """Hand it over at once, if it is ours."""
        token, self._writer.token = self._writer.token, None
        if token is not None:
            self._writer.connection.set_busy_timeout(RESIGN_MS)
            self._writer.connection.execute("UPDATE lease SET token = NULL WHERE token = ?", (token,))


def owner(connection: apsw.Connection) -> Node | None:
    """Who owns the file, or did when it was last heard of; None if it was handed over."""
    found = connection.execute("SELECT node FROM lease WHERE token IS NOT NULL AND node IS NOT NULL").get
    return None if found is None else msgspec.json.decode(found, type=Node)


def _boot() -> str:
    """What tells this boot of the machine from another."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def moved(connection: apsw.Connection) -> Move | None:
    """The mark of a store that has moved."""
    row = connection.execute("SELECT move FROM moved").fetchone()
    return None if row is None else decode_move(row[0])

"""The tables of notifications: rows found by key or index, and changed with compare-and-set together with schedules.

Which tables there are, and their columns, is declared in `domain/notifications/tables.py`.
"""

from collections.abc import Awaitable, Sequence
from functools import cached_property
from typing import Protocol, overload

import msgspec

from tidings.domain.names import OutcomeWord
from tidings.domain.notifications.tables import Index, Value
from tidings.domain.schedules.command import Command, CommandBatch, Outcome, UniformAdds

ANY = -1  # as the expected version of a change: any version, or no row
KEY_BYTES_MAX = 2_400  # of a row's key in UTF-8, so that PostgreSQL can index it

RowPosition = tuple[
    int, str
]  # the value of an index's order column (0 without one) and the key: where a search continues


class RowKey(msgspec.Struct, frozen=True, gc=False):
    """The key of a row: its table, its tenant, and its name within them."""

    table: str
    tenant: str
    name: str


class Row(msgspec.Struct, frozen=True, gc=False):
    """A stored row. `version` grows with each change, and never repeats for the same key.

    After `until` a row is expired: reads do not return it, and it will be deleted. `order` is the value of the order
    column of the index by which it was found.
    """

    key: RowKey
    body: bytes
    version: int
    until: int | None = None
    order: int = 0


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write a row if it has the expected version; 0: if it does not exist. `values` are those of all its columns."""

    key: RowKey
    body: bytes
    expected: int
    values: tuple[Value, ...]
    until: int | None = None


class Remove(msgspec.Struct, frozen=True, gc=False):
    """Delete a row if it has the expected version."""

    key: RowKey
    expected: int = ANY


class Unchanged(msgspec.Struct, frozen=True, gc=False):
    """Require that a row has the expected version, without changing it; 0: that it does not exist."""

    key: RowKey
    expected: int


RowChange = Put | Remove | Unchanged

ON_TIMELINE: frozenset[OutcomeWord] = frozenset({"scheduled", "released", "replaced"})


class ChangeGroup(msgspec.Struct, frozen=True, gc=False):
    """Changes of rows, with at most one command for the timeline: all of it is done, or nothing.

    Nothing is done if a row does not have its expected version. Then the command is applied; unless its outcome is
    one of `accepts`, no row is written (a command with another outcome has changed nothing).
    """

    changes: tuple[RowChange, ...]
    command: Command | None = None
    accepts: frozenset[OutcomeWord] = ON_TIMELINE


class BulkGroups(Sequence[ChangeGroup]):
    """Many groups of one kind, by column: each requires that one row is unchanged, creates one, and adds a schedule.

    The new rows, of the table `table`, have these names and bodies. The column `own_column` of each names the row of
    `required_table` that must have the version in `versions`; the values of all other columns are the same for the
    groups of a part. A store may write them in bulk; to others they are groups like any others. `are_new` says that the
    names were made just now, so that no row can have them.
    """

    def __init__(self, *, table: str, required_table: str, own_column: int, tenant: str, are_new: bool = False) -> None:
        self.table = table
        self.required_table = required_table
        self.own_column = own_column
        self.tenant = tenant
        self.are_new = are_new
        self.names: list[str] = []
        self.bodies: list[bytes] = []
        self.own: list[str] = []
        self.versions: list[int] = []
        self.parts: list[tuple[tuple[Value, ...], UniformAdds]] = []  # values and schedules, in the order of the names

    @cached_property
    def commands(self) -> Sequence[Command]:
        """The commands in order. Those of several parts are one list, because the parts may be small."""
        if len(self.parts) == 1:
            return CommandBatch([self.parts[0][1]])
        return [add for _, adds in self.parts for add in adds]

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> ChangeGroup: ...
    @overload
    def __getitem__(self, index: slice) -> list[ChangeGroup]: ...
    def __getitem__(self, index: int | slice) -> ChangeGroup | list[ChangeGroup]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        start, part = 0, 0
        while index - start >= len(self.parts[part][1]):
            start, part = start + len(self.parts[part][1]), part + 1
        values, adds = self.parts[part]
        own, column = self.own[index], self.own_column
        required = Unchanged(RowKey(self.required_table, self.tenant, own), self.versions[index])
        values = (*values[:column], own, *values[column + 1 :])
        put = Put(RowKey(self.table, self.tenant, self.names[index]), self.bodies[index], 0, values)
        return ChangeGroup((required, put), adds[index - start])


class GroupResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a group. `version` is that of its last `Put` (1 if it has none); 0: nothing was done.

    `outcome` is that of its command; None if it has none, or a row did not have its expected version.
    """

    version: int
    outcome: Outcome | None = None


class Tables(Protocol):
    """Stores the rows, as durably as the timeline, and in the same transactions."""

    async def get(self, keys: Sequence[RowKey], now: int) -> list[Row | None]:
        """The row of each key, all from one snapshot; None where there is none."""
        ...

    async def find(
        self,
        index: Index,
        tenant: str,
        values: tuple[Value, ...],
        now: int,
        *,
        after: RowPosition | None = None,
        limit: int = 100,
        newest: bool = False,
    ) -> list[Row]:
        """The rows of a tenant with these values in the columns of an index, after a position, in its order.

        With `newest` in reverse order. An index without columns and order lists the table by key.
        """
        ...

    async def exist(self, index: Index, tenant: str, several: Sequence[tuple[Value, ...]], now: int) -> list[bool]:
        """For each of these values of the columns of an index, whether `find` finds a row; all in one look-up."""
        ...

    def commit(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> Awaitable[list[GroupResult]]:
        """Apply the groups in order in one durable transaction; a group sees the changes of those before it.

        It starts when it is called, not when it is awaited. A store that runs one transaction at a time runs an
        `urgent` call before those that wait. Raises `ValueError` at once, before anything is done, if a
        group has a key twice, a key is too long, `values` do not fit the columns of their table, an order column is
        NULL, or a key or a value has a NUL character or half of a surrogate pair, which PostgreSQL cannot store.
        """
        ...

    async def wipe(self) -> None:
        """Overwrite deleted data in the files that this store controls."""
        ...

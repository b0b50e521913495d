"""Commands (the changes that can be requested of the timeline), their outcomes, and the fair shares of a release."""

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.names import OutcomeWord, Policy, Priority, State
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.when import Once, When

__all__ = [
    "CONTENT_BYTES",
    "FINISHED",
    "NO_CONTENT",
    "Add",
    "Cancel",
    "Change",
    "Command",
    "CommandBatch",
    "Fire",
    "Outcome",
    "OutcomeWord",
    "Pause",
    "PlainAdds",
    "Policy",
    "Priority",
    "Replace",
    "Resume",
    "State",
    "UniformAdds",
    "address",
    "due_now",
    "refused",
]

FINISHED: frozenset[State] = frozenset({"released", "missed", "cancelled", "ended"})
CONTENT_BYTES = 16
WEIGHTS = {Priority.HIGH: 60, Priority.NORMAL: 30, Priority.LOW: 10}
NO_CONTENT = bytes(CONTENT_BYTES)  # of a schedule whose id Tidings makes: it is never sent twice


class Add(msgspec.Struct, frozen=True, gc=False):
    """A new schedule: validated, with its message packed.

    `id` None asks the store to make one. `content` is a digest of the request as it was sent. `jitter_us` is added to
    every due time and is never part of the anchor. `labels` is a compact JSON object, or None. `key_hash` selects the
    partition (None: there is no key, and the id selects it). `topic` is the destination. `reuse` starts a new
    generation if the id is finished with other content. A calendar must not move the first due time beyond `latest`.
    `note` tells the sender about its time, for example that it is in the past. `past_refusal` is the reason why it must
    not begin, because its time is in the past; a repeat of a schedule that has begun is still `unchanged`.
    `jitter_window_us` is the jitter of a recurring schedule as it was configured, for its readers.
    """

    tenant: str
    id: str | None
    topic: str
    when: When
    message: bytes
    content: bytes
    due: int
    priority: Priority = Priority.NORMAL
    lateness: Lateness = Lateness()
    labels: str | None = None
    jitter_us: int = 0
    key_hash: int | None = None
    reuse: bool = False
    latest: int | None = None
    note: str | None = None
    past_refusal: str | None = None
    jitter_window_us: int = 0

    def check_past(self) -> None:
        """Raise `Invalid` if this must not begin because its time is in the past."""
        if self.past_refusal is not None:
            raise Invalid("at", self.past_refusal)


def due_now(tenant: str, destination: str, message: bytes, now: int) -> Add:
    """A message from Tidings itself: a schedule that is due now, with an id made by the store."""
    return Add(
        tenant=tenant,
        id=None,
        topic=destination,
        when=Once(now),
        message=message,
        content=NO_CONTENT,
        due=now,
    )


class Replace(msgspec.Struct, frozen=True, gc=False):
    """Replace the schedule of this id, or create it. `reuse` starts a new generation of a finished id.

    With `keep_count` the numbering of a recurring schedule continues, so that its earlier occurrences count.
    `with_deliveries` is set by a caller that replaces the notification that the schedule belongs to as well. With
    `paused` a new generation begins paused. `generation_min` is the least generation to begin with: a caller that
    remembers an id for longer than the store does states it, so that no generation is used twice. With `zone` a
    pending schedule moves to the clocks of this time zone: what `add` says about its time and its jitter is not used.
    """

    add: Add
    reuse: bool = False
    keep_count: bool = False
    with_deliveries: bool = False
    paused: bool = False
    generation_min: int = 1
    zone: str | None = None


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Release nothing more of this schedule.

    `with_deliveries` is set by a caller that also stops the deliveries of the notification it belongs to.
    """

    tenant: str
    id: str
    with_deliveries: bool = False


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Hold a schedule until it is resumed."""

    tenant: str
    id: str


class Resume(msgspec.Struct, frozen=True, gc=False):
    """Resume a paused schedule. Its lateness policy, or `missed`, decides on the occurrences of the pause."""

    tenant: str
    id: str
    missed: Policy | None = None


class Fire(msgspec.Struct, frozen=True, gc=False):
    """Release now: a one-shot instead of at its due time, a recurring schedule in addition to its times."""

    tenant: str
    id: str


Change = Replace | Cancel | Pause | Resume | Fire
Command = Add | Change

_DEFAULT_LATENESS = Lateness()


# Id, topic, message, content, due time, priority, key hash and reuse of a plain command.
PlainRow = tuple[str | None, str, bytes, bytes, int, Priority, int | None, bool]


class Columns(NamedTuple):
    """The fields of plain commands, each as one sequence; `ids` are None where the store makes them."""

    ids: Sequence[str]
    topics: Sequence[str]
    messages: Sequence[bytes]
    contents: Sequence[bytes]
    dues: Sequence[int]
    priorities: Sequence[Priority]
    key_hashes: Sequence[int | None]
    reuses: Sequence[bool]


class PlainAdds(Sequence[Add]):
    """New one-shots of one tenant, all with ids or all without, to be stored as columns.

    Each is due at one instant that is not in the past, with the default lateness policy, no jitter and no labels. For
    readers that need commands, indexing builds them.
    """

    def __init__(self, tenant: str, rows: list[PlainRow], *, has_ids: bool) -> None:
        self.tenant = tenant
        self.has_ids = has_ids
        self.rows = rows

    @classmethod
    def of(cls, adds: Sequence[Add]) -> "PlainAdds":
        """The same fields of other commands of one tenant, all with ids or all without."""
        rows = [
            (add.id, add.topic, add.message, add.content, add.due, add.priority, add.key_hash, add.reuse)
            for add in adds
        ]
        return cls(adds[0].tenant, rows, has_ids=adds[0].id is not None)

    @cached_property
    def columns(self) -> Columns:
        """The rows as columns; no row may be added after this."""
        transposed: Any = zip(*self.rows, strict=True)
        return Columns(*transposed)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        schedule_id, topic, message, content, due, priority, key_hash, reuse = self.rows[index]
        return Add(
            self.tenant,
            schedule_id,
            topic,
            Once(due),
            message,
            content,
            due,
            priority,
            _DEFAULT_LATENESS,
            key_hash=key_hash,
            reuse=reuse,
        )


class UniformAdds(Sequence[Add]):
    """New schedules that differ only in id, message, content, key and labels; `shared` has everything else.

    For readers that need commands, indexing builds them.
    """

    has_ids = True

    def __init__(self, shared: Add) -> None:
        self.shared = shared
        self.tenant = shared.tenant
        self.ids: list[str] = []
        self.messages: list[bytes] = []
        self.contents: list[bytes] = []
        self.key_hashes: list[int] = []
        self.labels: list[bytes] = []

    @property
    def columns(self) -> Columns:
        """The fields of all of them, as those of plain commands."""
        shared, count = self.shared, len(self.ids)
        return Columns(
            self.ids,
            [shared.topic] * count,
            self.messages,
            self.contents,
            [shared.due] * count,
            [shared.priority] * count,
            self.key_hashes,
            [shared.reuse] * count,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return msgspec.structs.replace(
            self.shared,
            id=self.ids[index],
            message=self.messages[index],
            content=self.contents[index],
            key_hash=self.key_hashes[index],
            labels=self.labels[index].decode(),
        )


class CommandBatch(Sequence[Command]):
    """Commands in order, the plain ones apart. `parts` are sequences of commands, as long as possible."""

    def __init__(self, parts: "Sequence[PlainAdds | UniformAdds | list[Command]]" = ()) -> None:
        self.parts = [*parts]

    def append(self, command: Command) -> None:
        """Add a command that is not plain."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, list):
            last.append(command)
        else:
            self.parts.append([command])

    def append_plain(self, tenant: str, row: PlainRow) -> None:
        """Add a plain command."""
        has_ids = row[0] is not None
        last = self.parts[-1] if self.parts else None
        if type(last) is PlainAdds and last.has_ids is has_ids and last.tenant == tenant:
            last.rows.append(row)
        else:
            self.parts.append(PlainAdds(tenant, [row], has_ids=has_ids))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Command]:
        return chain.from_iterable(self.parts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        index = range(len(self))[index]
        for part in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)


def parts_of(commands: Sequence[Command]) -> Iterable[Sequence[Command]]:
    """The parts of a batch; any other sequence of commands is one part."""
    if isinstance(commands, CommandBatch):
        return commands.parts
    return (commands,) if commands else ()


def kinds_of(commands: Sequence[Command]) -> Iterator[type[Command]]:
    """The type of each command, without building those that are columns."""
    for part in parts_of(commands):
        yield from [Add] * len(part) if isinstance(part, PlainAdds | UniformAdds) else map(type, part)


def tenants_of(commands: Sequence[Command]) -> Iterator[str]:
    """The tenant of each command, likewise."""
    for part in parts_of(commands):
        if isinstance(part, PlainAdds | UniformAdds):
            yield from [part.tenant] * len(part)
        else:
            yield from (address(command)[0] for command in part)


class Outcome(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a command did. `state` is the state of the schedule where the outcome alone does not say it.

    `due` is the due time of the next occurrence that can be released, as far as is known; `note` is a remark on it for
    people. `field` is set if a field of the request is wrong; `reason` then begins with it.
    """

    id: str
    outcome: OutcomeWord
    due: int | None = None
    state: State | None = None
    reason: str | None = None
    in_flight: int | None = None
    remembered_since: int | None = None
    field: str | None = None
    note: str | None = None

    def invalid(self) -> Invalid:
        """This outcome as an error: a field of the request turned out to be wrong only in the store."""
        assert self.field is not None
        return Invalid(self.field, (self.reason or "").removeprefix(f"{self.field}: "))


def refused(schedule_id: str | None, invalid: Invalid) -> Outcome:
    """The outcome of a command with a field that is wrong."""
    return Outcome(schedule_id or "", "rejected", reason=str(invalid), field=invalid.field)


def address(command: Command) -> tuple[str, str | None]:
    """The tenant and the id of a command."""
    if isinstance(command, Replace):
        return command.add.tenant, command.add.id
    return command.tenant, command.id


def fair_shares(streams: Sequence[tuple[int, int]], rows: int) -> dict[int, int]:
    """How many rows of a batch each stream, given as (stream, priority), may use; at least one each.

    The shares of absent priorities go to the others. Example: a batch of 100 rows with one stream of high and two of
    normal priority. The weights are 60 and 30, so high gets 100 * 60 // 90 = 66 rows, and normal 33, 16 for each
    stream.
    """
    members: dict[int, list[int]] = {}
    for stream, priority in streams:
        members.setdefault(priority, []).append(stream)
    total = sum(WEIGHTS[Priority(priority)] for priority in members)
    quotas: dict[int, int] = {}
    for priority, names in members.items():
        share = rows * WEIGHTS[Priority(priority)] // total
        quotas.update(dict.fromkeys(names, max(1, share // len(names))))
    return quotas


def bounded_shares(streams: Sequence[tuple[int, int]], rows: int, narrow: Container[int], room: int) -> dict[int, int]:
    """The same where the streams in `narrow` have room for only so many rows together: those that go to the outbox.

    The room is divided among them by the same shares; without room they get nothing.
    """
    quotas = fair_shares(streams, rows)
    through = [(stream, priority) for stream, priority in streams if stream in narrow]
    if through and room < rows:
        for stream, share in fair_shares(through, room).items():
            quotas[stream] = min(quotas[stream], share, room)
    return quotas

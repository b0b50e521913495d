"""Commands: what can be asked of the timeline. Outcomes: the truthful answers."""

from collections.abc import Container, Sequence

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
    "Fire",
    "Outcome",
    "OutcomeWord",
    "Pause",
    "Policy",
    "Priority",
    "Replace",
    "Resume",
    "State",
    "address",
    "due_now",
    "refused",
]


FINISHED: frozenset[State] = frozenset({"released", "missed", "cancelled", "ended"})


CONTENT_BYTES = 16
NO_CONTENT = bytes(CONTENT_BYTES)  # an id that Tidings makes cannot come again with the same content


class Add(msgspec.Struct, frozen=True, gc=False):
    """An admitted schedule: validated, with its message packed.

    `id` None asks the store to make one. `content` is a digest of what was sent, as it was sent. `jitter_us` moves
    every due time later and is never part of the anchor. `labels` is a compact JSON object, or None. `key_hash`
    chooses the partition (None: no key, the id chooses). `topic` is the destination. `reuse` starts a new generation if
    the id is finished and its content was another. Behind `latest` its calendar may not move the first due time.
    `note` is what its sender should know about its time, such as that it has passed.
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


def due_now(tenant: str, destination: str, message: bytes, now: int) -> Add:
    """What Tidings itself has to tell: a schedule like any other, under an id that it makes."""
    return Add(tenant, None, destination, Once(now), message, NO_CONTENT, now)


class Replace(msgspec.Struct, frozen=True, gc=False):
    """Put this schedule in place of whatever its id holds. `reuse` starts a new generation of a finished id.

    With `keep_count` the numbers of a recurring schedule go on, so that what it gave before counts against its end.
    """

    add: Add
    reuse: bool = False
    keep_count: bool = False


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Nothing of this schedule leaves any more.

    `with_deliveries` is set by whoever also stops the deliveries of the notification that the schedule belongs to.
    """

    tenant: str
    id: str
    with_deliveries: bool = False


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Hold a schedule until it is resumed."""

    tenant: str
    id: str


class Resume(msgspec.Struct, frozen=True, gc=False):
    """Let a paused schedule go on; what it missed meanwhile follows its lateness policy, or the one given here."""

    tenant: str
    id: str
    missed: Policy | None = None


class Fire(msgspec.Struct, frozen=True, gc=False):
    """Release now: a one-shot instead of at its time, a recurring one in addition to its times."""

    tenant: str
    id: str


Change = Replace | Cancel | Pause | Resume | Fire
Command = Add | Change


class Outcome(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What really happened to a command. `state` is the schedule's state where the word alone does not say it.

    `due` is when the next occurrence that can leave is due, as far as is known; `note` says what people should know of
    it. `field` is set where something of the request itself is at fault; `reason` begins with it.
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

    def invalid(self) -> Invalid | None:
        """The refusal that this is, if it could only be known together with what the store holds."""
        if self.field is None:
            return None
        return Invalid(self.field, (self.reason or "").removeprefix(f"{self.field}: "))


def refused(schedule_id: str | None, invalid: Invalid) -> Outcome:
    """The outcome of what is wrong in itself."""
    return Outcome(schedule_id or "", "rejected", reason=str(invalid), field=invalid.field)


def address(command: Command) -> tuple[str, str | None]:
    """The tenant and id that a command speaks of."""
    if isinstance(command, Replace):
        return command.add.tenant, command.add.id
    return command.tenant, command.id


WEIGHTS = {Priority.HIGH: 60, Priority.NORMAL: 30, Priority.LOW: 10}


def deal(streams: Sequence[tuple[int, int]], rows: int) -> dict[int, int]:
    """How many rows of a batch each stream may take; streams are pairs (stream, priority). Each gets at least one.

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


def deal_bounded(streams: Sequence[tuple[int, int]], rows: int, narrow: Container[int], room: int) -> dict[int, int]:
    """The same if the `narrow` streams (those to Kafka) together may take at most `room` rows, the room in the outbox.

    The room is shared among them by the same weights; if there is none, they get nothing.
    """
    quotas = deal(streams, rows)
    through = [(stream, priority) for stream, priority in streams if stream in narrow]
    if through and room < rows:
        for stream, share in deal(through, room).items():
            quotas[stream] = min(quotas[stream], share, room)
    return quotas

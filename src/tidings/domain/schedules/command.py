"""Commands (the changes that can be requested of the timeline), their outcomes, and the fair shares of a release."""

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
    """

    add: Add
    reuse: bool = False
    keep_count: bool = False


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

    def invalid(self) -> Invalid | None:
        """This outcome as an error, if a field of the request turned out to be wrong only in the store."""
        if self.field is None:
            return None
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

"""Facts: what happened, told after it is durable. Logs and metrics listen to these and to nothing else."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.schedules.command import Command, Outcome


class Changed(msgspec.Struct, frozen=True, gc=False):
    """Commands were committed together; each outcome answers the command at its place."""

    at: int
    commands: Sequence[Command]
    outcomes: Sequence[Outcome]


class Released(msgspec.Struct, frozen=True, gc=False):
    """Occurrences left for the bus in one transaction: how late each was, in microseconds, and on which topics.

    `tenants` says how many were whose, if they left for Kafka.
    """

    at: int
    lateness_us: Sequence[int]
    topics: frozenset[tuple[str, str]]
    tenants: Mapping[str, int] = {}


class Handed(msgspec.Struct, frozen=True, gc=False):
    """Occurrences were put into the outbox of a lane, durably and for good; they are on their way to Kafka."""

    at: int
    count: int
    lane: int = 0


class Missed(msgspec.Struct, frozen=True, gc=False):
    """Occurrences that will never be released, by reason."""

    at: int
    counts: dict[str, int]


class Revised(msgspec.Struct, frozen=True, gc=False):
    """A new calendar or new rules of zones were applied to what is pending; so many occurrences moved."""

    at: int
    cause: str
    moved: int


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A request that was never admitted: the field at fault. Of a record of Kafka also why, and where it lies."""

    at: int
    tenant: str
    field: str
    reasons: tuple[str, ...] = ()
    source: tuple[str, int, int] | None = None


class OwnershipChanged(msgspec.Struct, frozen=True, gc=False):
    """This node began or ceased to take changes, or other lanes than before are its own: those that it releases now.

    A reason is told where something is amiss: the store does not answer, or this process stood still.
    """

    at: int
    owner: bool
    lanes: tuple[int, ...] = ()
    reason: str = ""


Fact = Changed | Released | Handed | Missed | Revised | Refused | OwnershipChanged
Listener = Callable[[Fact], None]


class Called(msgspec.Struct, frozen=True, gc=False):
    """A provider was called: what came of it (`accepted`, or the reason), how long it took, how late it began."""

    at: int
    channel: ChannelName
    provider: str
    outcome: str
    took_us: int
    late_us: int


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A worker has nothing left to do for a delivery."""

    at: int
    channel: ChannelName
    state: State
    reason: str


class Deferred(msgspec.Struct, frozen=True, gc=False):
    """A delivery went back onto the timeline, for a reason: an attempt that failed, quiet hours, a limit, a breaker."""

    at: int
    channel: ChannelName
    reason: str
    until: int


class Opened(msgspec.Struct, frozen=True, gc=False):
    """A provider is not called until a moment. `is_ours` says that our own settings are at fault: somebody must act."""

    at: int
    provider: str
    reason: str
    detail: str
    until: int
    is_ours: bool


class Closed(msgspec.Struct, frozen=True, gc=False):
    """A provider is called again."""

    at: int
    provider: str


class Poisoned(msgspec.Struct, frozen=True, gc=False):
    """A record on a topic of ours that says nothing we can do; it went to the dead letters."""

    at: int
    tenant: str
    topic: str
    partition: int
    offset: int
    reason: str


Telling = Called | Ended | Deferred | Opened | Closed | Poisoned
DeliveryListener = Callable[[Telling], None]

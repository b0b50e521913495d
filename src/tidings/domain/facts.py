"""Facts: what happened, published once it is durable. Logs and metrics are made from these and from nothing else."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidings.domain.names import PriorityName
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.schedules.command import Command, Outcome


class Changed(msgspec.Struct, frozen=True, gc=False):
    """Commands were committed together; each outcome answers the command at the same index."""

    at: int
    commands: Sequence[Command]
    outcomes: Sequence[Outcome]


class Released(msgspec.Struct, frozen=True, gc=False):
    """Occurrences were released in one transaction: how late each was, in microseconds, and to which topics.

    `tenants` is the number of each tenant's occurrences, if they were released to Kafka.
    """

    at: int
    lateness_us: Sequence[int]
    topics: frozenset[tuple[str, str]]
    tenants: Mapping[str, int] = {}


class Handed(msgspec.Struct, frozen=True, gc=False):
    """Occurrences were moved to the outbox of a lane, on their way to Kafka; they cannot be cancelled any more."""

    at: int
    count: int
    lane: int = 0


class Missed(msgspec.Struct, frozen=True, gc=False):
    """Occurrences will never be released; `counts` is by reason."""

    at: int
    counts: dict[str, int]


class Revised(msgspec.Struct, frozen=True, gc=False):
    """A new calendar or new time zone rules were applied; `moved` is how many pending occurrences moved."""

    at: int
    cause: str
    moved: int


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A request was refused: the field at fault. For a record of Kafka also the reasons, and its position."""

    at: int
    tenant: str
    field: str
    reasons: tuple[str, ...] = ()
    source: tuple[str, int, int] | None = None


class OwnershipChanged(msgspec.Struct, frozen=True, gc=False):
    """This node became or ceased to be an owner, or its lanes changed; `lanes` are those that it releases now.

    `reason` is set if something is wrong: the store does not answer, or this process was suspended.
    """

    at: int
    owner: bool
    lanes: tuple[int, ...] = ()
    reason: str = ""


Fact = Changed | Released | Handed | Missed | Revised | Refused | OwnershipChanged
Listener = Callable[[Fact], None]


class Called(msgspec.Struct, frozen=True, gc=False):
    """A provider was called: the outcome (`accepted`, or the reason), how long it took, how late it began.

    `took_us` is None for an inbox, whose entries are written with the result. `is_retry` says that there was an earlier
    attempt of the same delivery on this channel.
    """

    at: int
    channel: ChannelName
    provider: str
    outcome: str
    took_us: int | None
    late_us: int
    is_retry: bool = False


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Deliveries have ended in the same way: a worker has nothing left to do for them."""

    at: int
    channel: ChannelName
    state: State
    reason: str
    count: int = 1


class Deferred(msgspec.Struct, frozen=True, gc=False):
    """A delivery went back to the timeline, because of a failed attempt, quiet hours, a rate limit or a breaker."""

    at: int
    channel: ChannelName
    reason: str
    until: int
    priority: PriorityName = "normal"


class Failing(msgspec.Struct, frozen=True, gc=False):
    """A call failed because of its provider, and the one before did not. `failures_max` in a row open its breaker."""

    at: int
    provider: str
    reason: str
    detail: str
    failures_max: int


class Recovered(msgspec.Struct, frozen=True, gc=False):
    """A provider answers again, after so many failures in a row that did not open its breaker."""

    at: int
    provider: str
    failures: int


class Opened(msgspec.Struct, frozen=True, gc=False):
    """A circuit breaker opened. `is_ours` says that our own settings are at fault: an operator must act."""

    at: int
    provider: str
    reason: str
    detail: str
    until: int
    is_ours: bool


class Closed(msgspec.Struct, frozen=True, gc=False):
    """A circuit breaker closed: the provider is called again."""

    at: int
    provider: str


class Poisoned(msgspec.Struct, frozen=True, gc=False):
    """A record on an internal topic could not be processed; it became a dead letter."""

    at: int
    tenant: str
    topic: str
    partition: int
    offset: int
    reason: str


DeliveryFact = Called | Ended | Deferred | Failing | Recovered | Opened | Closed | Poisoned
DeliveryListener = Callable[[DeliveryFact], None]

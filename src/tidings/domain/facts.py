"""Facts: what happened, published once it is durable. Logs and metrics are made from these and from nothing else."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidings.domain.command import Command, Outcome


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


class Standing(msgspec.Struct, frozen=True, gc=False):
    """This node became or ceased to be an owner, or its lanes changed; `lanes` are those that it releases now.

    `reason` is set if something is wrong: the store does not answer, or this process was suspended.
    """

    at: int
    owner: bool
    lanes: tuple[int, ...] = ()
    reason: str = ""


Fact = Changed | Released | Handed | Missed | Revised | Refused | Standing
Listener = Callable[[Fact], None]

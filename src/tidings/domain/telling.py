"""Facts about deliveries, for logs and metrics. They contain no addresses."""

from collections.abc import Callable

import msgspec

from tidings.domain.delivery import State
from tidings.domain.rendered import ChannelName


class Called(msgspec.Struct, frozen=True, gc=False):
    """A provider was called: the outcome (`accepted`, or the reason), how long it took, how late it began."""

    at: int
    channel: ChannelName
    provider: str
    outcome: str
    took_us: int
    late_us: int


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A delivery has ended: a worker has nothing left to do for it."""

    at: int
    channel: ChannelName
    state: State
    reason: str


class Deferred(msgspec.Struct, frozen=True, gc=False):
    """A delivery went back to the timeline, because of a failed attempt, quiet hours, a rate limit or a breaker."""

    at: int
    channel: ChannelName
    reason: str
    until: int


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


DeliveryFact = Called | Ended | Deferred | Opened | Closed | Poisoned
Listener = Callable[[DeliveryFact], None]

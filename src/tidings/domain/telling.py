"""What happens while people are told: facts for logs and metrics, without anybody's address."""

from collections.abc import Callable

import msgspec

from tidings.domain.delivery import State
from tidings.domain.rendered import ChannelName


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
Listener = Callable[[Telling], None]

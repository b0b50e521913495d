"""The inbox inside the product: an entry under the id of its message, written together with its delivery."""

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Verdict
from tidings.domain.notifications.message import ChannelName, InApp, Rendered
from tidings.domain.notifications.user import InboxEntry
from tidings.ports import Address, ProviderContext, ProviderType

DAY_US = 86_400_000_000


class Settings(msgspec.Struct, frozen=True):
    """For how many days an entry is kept."""

    keep_days: int = 90


class InAppProvider:
    """Gives messages the form of inbox entries; workers write them."""

    deduplicates = True

    def __init__(self, settings: Settings) -> None:
        if settings.keep_days < 1:
            raise Invalid("keep_days", "keep entries for at least 1 day")
        self._keep_us = settings.keep_days * DAY_US

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        del address
        return channel == "in_app"

    def entry(self, message: InApp, now: int) -> tuple[InboxEntry, int]:
        return InboxEntry(message.id, message.to, message.title, message.body, now), now + self._keep_us

    async def send(self, message: Rendered) -> Verdict:
        raise NotImplementedError("a worker writes inbox entries together with the states of their deliveries")

    async def close(self) -> None:
        """Nothing is kept open."""


def _open(settings: Settings, context: ProviderContext) -> InAppProvider:
    del context
    return InAppProvider(settings)


PROVIDER = ProviderType(channels=("in_app",), settings=Settings, open=_open)

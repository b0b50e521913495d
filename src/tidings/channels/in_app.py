"""The inbox inside the product: a line among the documents, under the id of its message, so that it is there once.

It is written only while its user exists: a line that came after the user was erased would stay.
"""

import msgspec

from tidings.clock import Clock
from tidings.domain.errors import Invalid, NotOwner, StoreError
from tidings.domain.notifications.delivery import Accepted, Permanent, Temporary, Verdict, built
from tidings.domain.notifications.message import InApp, Rendered
from tidings.domain.notifications.user import INBOX_KIND, InboxEntry, entry_name, entry_tags
from tidings.domain.notifications.user import KIND as PERSON
from tidings.ports import DocumentStore, Key, Plugin, ProviderContext, Put, Unchanged

DAY_US = 86_400_000_000
TRIES_MAX = 20

_encode = msgspec.json.Encoder().encode


class Settings(msgspec.Struct, frozen=True):
    """For how many days a line is kept."""

    keep_days: int = 90


class InAppChannel:
    """A channel for inboxes."""

    deduplicates = True

    def __init__(self, settings: Settings, clock: Clock, cabinet: DocumentStore) -> None:
        if settings.keep_days < 1:
            raise Invalid("keep_days", "keep a line for at least 1 day")
        self._keep_us = settings.keep_days * DAY_US
        self._clock = clock
        self._cabinet = cabinet

    def takes(self, message: Rendered) -> bool:
        return isinstance(message, InApp)

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, InApp)
        now = self._clock.now()
        line = InboxEntry(message.id, message.to, message.title, message.body, now)
        key = Key(message.tenant, INBOX_KIND, entry_name(message.to, message.id))
        body = built(lambda: _encode(line))
        if isinstance(body, Permanent):
            return body
        put = Put(key, body, 0, entry_tags(line), now, now + self._keep_us)
        person = Key(message.tenant, PERSON, message.to)
        try:
            for _ in range(TRIES_MAX):
                user, there = await self._cabinet.get([person, key], now)
                if user is None:
                    return Permanent("address_refused", "unknown user: only a user has an inbox")
                if there is not None or any(await self._cabinet.change([[Unchanged(person, user.version), put]], now)):
                    return Accepted(message.id)
        except (StoreError, NotOwner):
            return Temporary("provider_error", "the store does not answer")
        return Temporary("address_deferred", "the user is being changed too often: it is tried again")

    async def close(self) -> None:
        """Nothing is kept open."""


def _open(settings: Settings, surroundings: ProviderContext) -> InAppChannel:
    if surroundings.documents is None:
        raise Invalid("provider", "in_app needs the store of a node, and there is none here")
    return InAppChannel(settings, surroundings.clock, surroundings.documents)


PLUGIN = Plugin(Settings, _open)

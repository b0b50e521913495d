"""A person who can be told something: where, when, in which language, and what she does not want to hear."""

from typing import Any, Literal

import msgspec

from tidings.domain.address import Device
from tidings.domain.rendered import ChannelName

InQuiet = Literal["defer", "drop"]

KIND = "user"  # of the documents that persons are
TRANSACTIONAL = "transactional"  # the category that nobody can be left out of: receipts, passwords


class Quiet(msgspec.Struct, frozen=True, gc=False):
    """Hours in which she is left alone: minutes of her day, from one to before the other, over midnight if it is less.

    What falls into them waits for their end or is dropped; `spares_high` lets through what has high priority.
    """

    start: int
    end: int
    then: InQuiet = "defer"
    spares_high: bool = True


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """Her addresses by channel, and her wishes.

    `preferences` says yes or no by channel (`sms`), by category (`news`), or by both (`sms/news`); the most particular
    one counts, and yes if there is none.
    """

    id: str
    name: str | None = None
    email: str | None = None
    phone: str | None = None
    devices: tuple[Device, ...] = ()
    webhook: str | None = None
    zone: str = "UTC"
    locale: str | None = None
    preferences: dict[str, bool] = {}
    quiet: Quiet | None = None
    variables: dict[str, str] = {}

    def addresses(self, channel: ChannelName) -> tuple[str | Device, ...]:
        """Where she is reached by a channel: several devices, else one place or none."""
        if channel == "push":
            return self.devices
        found = {"email": self.email, "sms": self.phone, "webhook": self.webhook, "in_app": self.id}[channel]
        return () if found is None else (found,)

    def known(self, variables: dict[str, Any]) -> dict[str, Any]:
        """What a template may use for her: her own variables and her name, unless others are given."""
        own: dict[str, Any] = dict(self.variables)
        if self.name is not None:
            own["name"] = self.name
        return own | variables

"""A user: addresses, time zone, language, preferences (opt-outs), quiet hours, and the entries of their inbox."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName

InQuiet = Literal["defer", "drop"]

TRANSACTIONAL = "transactional"  # the category that users cannot opt out of: receipts, passwords
PREFERENCES_MAX = 200

# Words that look like channels and are refused as categories, with the channel that is probably meant.
_LIKE_A_CHANNEL: dict[str, ChannelName | None] = {
    **dict.fromkeys(("e-mail", "mail", "emails", "e-mails"), "email"),
    **dict.fromkeys(("text", "texts", "mobile", "phone"), "sms"),
    **dict.fromkeys(("in-app", "inapp", "inbox"), "in_app"),
    **dict.fromkeys(("apns", "fcm", "pushes"), "push"),
    **dict.fromkeys(("webhooks", "hook"), "webhook"),
    **dict.fromkeys(("telegram", "whatsapp", "signal", "slack", "fax"), None),
}
_CATEGORY = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Quiet(msgspec.Struct, frozen=True, gc=False):
    """Quiet hours: minutes of the user's local day, from `start` up to `end`, across midnight if `end` is less.

    Notifications that fall into them are deferred to their end or dropped; `spares_high` exempts high priority.
    """

    start: int
    end: int
    then: InQuiet = "defer"
    spares_high: bool = True


class User(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A person who can be notified.

    `preferences` opts in or out by channel (`sms`), by category (`news`), or by both (`sms/news`). The most specific
    one decides; without one the user is opted in.
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
        """The addresses of the user on a channel: any number of devices, otherwise one address or none."""
        if channel == "push":
            return self.devices
        found = {"email": self.email, "sms": self.phone, "webhook": self.webhook, "in_app": self.id}[channel]
        return () if found is None else (found,)

    def known(self, variables: dict[str, Any]) -> dict[str, Any]:
        """The variables of a template: those given, and otherwise the user's own variables and name."""
        own: dict[str, Any] = dict(self.variables)
        if self.name is not None:
            own["name"] = self.name
        return own | variables


def accepts(user: User, category: str, channel: ChannelName) -> bool:
    """Whether the user has not opted out of a category on a channel. The most specific preference decides: channel and
    category, then the category, then the channel."""
    if category == TRANSACTIONAL:
        return True
    preferences = user.preferences
    for key in (f"{channel}/{category}", category, channel):
        if key in preferences:
            return preferences[key]
    return True


@lru_cache(maxsize=1_024)
def check_category(text: str, field: str = "category") -> str:
    """A valid category. It may not be the name of a channel, because a preference names either."""
    if not _CATEGORY.fullmatch(text):
        raise Invalid(field, f"{text[:40]!r} is not a valid category: use 1 to 63 of a-z, 0-9, '.', '_' and '-'")
    if text in CHANNEL_NAMES:
        raise Invalid(field, f"{text!r} is the name of a channel: choose another")
    if text in _LIKE_A_CHANNEL:
        meant = _LIKE_A_CHANNEL[text]
        hint = f"did you mean {meant}?" if meant else f"the channels are {', '.join(CHANNEL_NAMES)}"
        raise Invalid(field, f"{text!r} looks like a channel but is not one: {hint} Choose another category")
    return text


def check_preferences(preferences: Mapping[str, bool], field: str = "preferences") -> None:
    """Refuse preferences that name neither a channel nor a category, or opt out of transactional notifications."""
    if len(preferences) > PREFERENCES_MAX:
        raise Invalid(field, f"there are {len(preferences)}, at most {PREFERENCES_MAX} are accepted")
    for key, opted_in in preferences.items():
        channel, slash, category = key.partition("/")
        if slash and channel not in CHANNEL_NAMES:
            names = ", ".join(CHANNEL_NAMES)
            raise Invalid(f"{field}.{key[:80]}", f"names no channel before the slash: use one of {names}")
        if not slash and key in CHANNEL_NAMES:
            continue
        check_category(category if slash else key, f"{field}.{key[:80]}")
        if (category if slash else key) == TRANSACTIONAL and not opted_in:
            raise Invalid(f"{field}.{key[:80]}", "users cannot opt out of transactional notifications: leave it out")


class InboxEntry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One message in the inbox of a user: when it arrived, and when it was read."""

    id: str
    user: str
    title: str
    body: str
    at: int
    read: int | None = None

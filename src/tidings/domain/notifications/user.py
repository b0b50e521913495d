"""A person who can be told something: where, when, in which language, and what she does not want to hear."""

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName

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


PREFERENCES_MAX = 200

_LIKE_A_CHANNEL: dict[str, ChannelName | None] = {
    **dict.fromkeys(("e-mail", "mail", "emails", "e-mails"), "email"),
    **dict.fromkeys(("text", "texts", "mobile", "phone"), "sms"),
    **dict.fromkeys(("in-app", "inapp", "inbox"), "in_app"),
    **dict.fromkeys(("apns", "fcm", "pushes"), "push"),
    **dict.fromkeys(("webhooks", "hook"), "webhook"),
    **dict.fromkeys(("telegram", "whatsapp", "signal", "slack", "fax"), None),
}
_CATEGORY = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def may_tell(user: User, category: str, channel: ChannelName) -> bool:
    """The most particular wish counts: channel and category, then the category, then the channel; yes without one."""
    if category == TRANSACTIONAL:
        return True
    wishes = user.preferences
    for key in (f"{channel}/{category}", category, channel):
        if key in wishes:
            return wishes[key]
    return True


def check_category(text: str, field: str = "category") -> str:
    """The name of a category; it may not be that of a channel, for a preference names either."""
    if not _CATEGORY.fullmatch(text):
        raise Invalid(field, f"{text[:40]!r} is no category: use 1 to 63 of a-z, 0-9, '.', '_' and '-'")
    if text in CHANNEL_NAMES:
        raise Invalid(field, f"{text!r} is the name of a channel: choose another")
    if text in _LIKE_A_CHANNEL:
        meant = _LIKE_A_CHANNEL[text]
        hint = f"did you mean {meant}?" if meant else f"the channels are {', '.join(CHANNEL_NAMES)}"
        raise Invalid(field, f"{text!r} looks like a channel and is none: {hint} A category needs another name")
    return text


def check_preferences(wishes: Mapping[str, bool], field: str = "preferences") -> None:
    """Refuse what says yes or no to nothing that exists."""
    if len(wishes) > PREFERENCES_MAX:
        raise Invalid(field, f"are {len(wishes)}, more than {PREFERENCES_MAX}")
    for key, wanted in wishes.items():
        channel, slash, category = key.partition("/")
        if slash and channel not in CHANNEL_NAMES:
            names = ", ".join(CHANNEL_NAMES)
            raise Invalid(f"{field}.{key[:80]}", f"names no channel before the slash: use one of {names}")
        if not slash and key in CHANNEL_NAMES:
            continue
        check_category(category if slash else key, f"{field}.{key[:80]}")
        if (category if slash else key) == TRANSACTIONAL and not wanted:
            raise Invalid(f"{field}.{key[:80]}", "what is transactional cannot be opted out of: leave it out")


INBOX_KIND = "inbox"
UNREAD = "unread"


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """What she is told inside the product, when it came, and when she read it."""

    id: str
    user: str
    title: str
    body: str
    at: int
    read: int | None = None


def line_name(user: str, line: str) -> str:
    """Its name among the documents; a user's id has no slash."""
    return f"{user}/{line}"


def line_tags(line: Line) -> tuple[str, ...]:
    """All of hers, and what she has not read."""
    mine = f"user:{line.user}"
    return (mine,) if line.read is not None else (mine, f"{UNREAD}:{line.user}")

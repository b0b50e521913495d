"""A notification as it is asked for, and what is wrong with it whoever it is for."""

from hashlib import blake2b
from typing import Any, Literal

import msgspec

from tidings.delivery.profile import check_id
from tidings.delivery.templates.locales import check_locale
from tidings.delivery.templates.values import check_values
from tidings.domain.address import Device, check_line
from tidings.domain.errors import Invalid
from tidings.domain.iso8601 import parse_exact_duration
from tidings.domain.lateness import Policy
from tidings.domain.names import check_name
from tidings.domain.notification import Literally, Priority, Spread
from tidings.domain.place import check_place
from tidings.domain.preferences import check_category
from tidings.domain.recurrence.zones import check_zone
from tidings.domain.rendered import (
    BODY_BYTES_MAX,
    SMS_CHARACTERS_MAX,
    SUBJECT_CHARACTERS_MAX,
    ChannelName,
)
from tidings.domain.request import Past
from tidings.domain.user import TRANSACTIONAL

USERS_MAX = 1_000
ID_CHARS_MAX = 90  # a user's id, and the number of an occurrence, come behind it
DEDUPE_KEY_CHARS_MAX = 200
DEDUPE_WINDOW_US = 86_400_000_000
DEDUPE_WINDOW_MAX_US = 366 * 86_400_000_000
CONTENT_BYTES = 16

_encode = msgspec.json.Encoder(order="sorted").encode


class Notify(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What somebody is to be told: whom (`user`, `users` or `to`), what (`template` or `words`), how, and when.

    `channels` are tried in order until one works, or used all (`spread`, or "all" for every one that can be used).
    `version` None takes the latest version when it is sent, "current" the one that is the latest now. The fields about
    time are those of a schedule; local times are the user's own unless a `zone` is given.
    """

    id: str | None = None
    user: str | None = None
    users: tuple[str, ...] = ()
    to: str | Device | None = None
    channel: ChannelName | None = None
    channels: tuple[ChannelName, ...] | Literal["all"] | None = None
    spread: Spread | None = None
    template: str | None = None
    version: int | Literal["current"] | None = None
    variables: dict[str, Any] = {}
    words: Literally | None = None
    at: int | str | None = None
    scheduled_at: int | str | None = None
    every: str | None = None
    rrule: str | None = None
    cron: str | None = None
    zone: str | None = None
    start: str | None = None
    until: str | None = None
    count: int | None = None
    rdates: tuple[str, ...] = ()
    exdates: tuple[str, ...] = ()
    gap: str | None = None
    overlap: str | None = None
    calendar: str | None = None
    on_excluded: str | None = None
    late: Policy | None = None
    late_grace: str | None = None
    late_max: str | None = None
    jitter: str | None = None
    priority: Priority = "normal"
    category: str = TRANSACTIONAL
    dedupe_key: str | None = None
    dedupe_window: str | None = None
    expires_after: str | None = None
    locale: str | None = None
    collapse: str | None = None
    batch: str | None = None
    past: Past | None = None

    def asked_channels(self) -> tuple[ChannelName, ...]:
        """Those that are named; none if that is left to us."""
        if self.channel is not None:
            return (self.channel,)
        return () if self.channels == "all" else self.channels or ()

    def wanted_spread(self) -> Spread:
        """Whether all of the channels are used, or the first that works."""
        return "all" if self.channels == "all" else self.spread or "first"

    def content(self) -> str:
        """A digest of what was asked, as it was asked: the same twice is a repeat."""
        plain = msgspec.structs.replace(self, id=None, past=None)
        return blake2b(_encode(plain), digest_size=CONTENT_BYTES).hexdigest()


def check(ask: Notify) -> None:
    """Refuse what cannot be right for anybody."""
    _check_names(ask)
    _check_whom(ask)
    _check_channels(ask)
    _check_what(ask)
    if ask.at is not None and ask.scheduled_at is not None:
        raise Invalid("at", "give either 'at' or 'scheduled_at', not both")
    if ask.zone is not None:
        check_zone(ask.zone)


def dedupe_window_us(ask: Notify) -> int:
    """For how long a second one under the same key is a duplicate: a day, unless it is said."""
    if ask.dedupe_window is None:
        return DEDUPE_WINDOW_US
    window = parse_exact_duration(ask.dedupe_window, "dedupe_window")
    if window > DEDUPE_WINDOW_MAX_US:
        raise Invalid("dedupe_window", "is longer than 366 days, the most that is kept")
    return window


def _check_names(ask: Notify) -> None:
    if ask.id is not None:
        _check_text(ask.id, "id", ID_CHARS_MAX)
        if "~" in ask.id:
            raise Invalid("id", "has a '~', which stands for another try: choose another")
    if ask.batch is not None:
        check_name(ask.batch, "batch")
    if ask.dedupe_key is not None:
        _check_text(ask.dedupe_key, "dedupe_key", DEDUPE_KEY_CHARS_MAX)
        dedupe_window_us(ask)
    elif ask.dedupe_window is not None:
        raise Invalid("dedupe_window", "goes with 'dedupe_key': give it, or leave this out")
    check_category(ask.category)
    if ask.locale is not None:
        check_locale(ask.locale, "locale")
    if ask.collapse is not None and len(check_line(ask.collapse, "collapse").encode()) > 64:
        raise Invalid("collapse", "is longer than 64 bytes, the most that devices take")


def _check_text(text: str, field: str, chars_max: int) -> None:
    if not text or not text.isascii() or not text.isprintable() or len(text) > chars_max:
        raise Invalid(field, f"use 1 to {chars_max} printable ASCII characters")


def _check_whom(ask: Notify) -> None:
    given = [name for name in ("user", "users", "to") if getattr(ask, name)]
    if len(given) != 1:
        wanted = f"give either '{given[0]}' or '{given[1]}', not both" if given else "give 'user', 'users' or 'to'"
        raise Invalid(given[0] if given else "user", wanted)
    if len(ask.users) > USERS_MAX:
        raise Invalid("users", f"are {len(ask.users)}, at most {USERS_MAX} are taken at once: send several requests")
    if len(set(ask.users)) < len(ask.users):
        raise Invalid("users", "has somebody twice: name each once")
    for user in (ask.user,) if ask.user else ask.users:
        check_id(user, "user" if ask.user else "users")


def _check_channels(ask: Notify) -> None:
    if ask.channels == ():
        raise Invalid("channels", 'is empty: name some in order, write "all", or leave it out for what reaches her')
    if ask.channel is not None and ask.channels is not None:
        raise Invalid("channel", "give either 'channel' or 'channels', not both")
    named = ask.asked_channels()
    if len(set(named)) < len(named):
        raise Invalid("channels", "names one twice: name each once")
    if ask.to is not None:
        if len(named) != 1:
            raise Invalid("channel", "an address is of one channel: name it")
        check_place(named[0], ask.to, "to")


def _check_what(ask: Notify) -> None:
    if (ask.template is None) == (ask.words is None):
        raise Invalid("template", "give either 'template' or 'words', one of them")
    if ask.template is not None:
        check_name(ask.template, "template")
        if isinstance(ask.version, int) and ask.version < 1:
            raise Invalid("version", "counts from 1")
        return
    if ask.version is not None or ask.variables:
        raise Invalid("variables" if ask.variables else "version", "goes with 'template': words are sent as they are")
    assert ask.words is not None
    _check_words(ask.words, ask.asked_channels())


def _check_words(words: Literally, channels: tuple[ChannelName, ...]) -> None:
    if not words.text.strip() or "\0" in words.text:
        raise Invalid("words.text", "is empty or has a NUL: say something")
    if "\0" in (words.html or ""):
        raise Invalid("words.html", "has a NUL: leave it out")
    for name in ("text", "html"):
        if len((getattr(words, name) or "").encode("utf-8", "replace")) > BODY_BYTES_MAX:
            raise Invalid(f"words.{name}", f"has more than {BODY_BYTES_MAX} bytes")
    if len(check_line(words.title, "words.title")) > SUBJECT_CHARACTERS_MAX:
        raise Invalid("words.title", f"is longer than {SUBJECT_CHARACTERS_MAX} characters")
    if "sms" in channels and len(words.text) > SMS_CHARACTERS_MAX:
        raise Invalid("words.text", f"is longer than {SMS_CHARACTERS_MAX} characters, the most of a text message")
    check_values(words.data)

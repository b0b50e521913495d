"""Whether a person wants to hear of something on a channel."""

import re
from collections.abc import Mapping

from tidings.domain.errors import Invalid
from tidings.domain.rendered import CHANNEL_NAMES, ChannelName
from tidings.domain.user import TRANSACTIONAL, User

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

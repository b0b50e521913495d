"""A user's profile as clients send it: each field is checked, and errors name the field."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tidings.delivery.templates.locales import check_locale
from tidings.delivery.templates.values import check_values
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import check_email, check_line, check_phone, check_url
from tidings.domain.notifications.quiet_hours import format_hours, parse_hours
from tidings.domain.notifications.user import Quiet, User, check_preferences
from tidings.domain.recurrence.timezone import check_zone
from tidings.shapes.user import DEVICES_MAX, Profile, QuietHours

__all__ = ["DEVICES_MAX", "NAME_CHARS_MAX", "Profile", "QuietHours", "check_id", "merged", "profile_of", "user_of"]

NAME_CHARS_MAX = 200

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+:~=-]{0,99}")


def check_id(user_id: str, field: str = "id") -> None:
    """Ids stand in paths, names of documents and keys of records."""
    if not _ID.fullmatch(user_id):
        raise Invalid(
            field, f"{user_id[:60]!r} is not a valid user id: use 1 to 100 letters, digits and . _ @ + : ~ = -"
        )


def user_of(user_id: str, profile: Profile) -> User:
    """The user that a profile describes; `Invalid` by field."""
    check_id(user_id)
    if profile.name is not None and len(check_line(profile.name, "name")) > NAME_CHARS_MAX:
        raise Invalid("name", f"is longer than {NAME_CHARS_MAX} characters")
    if profile.email is not None:
        check_email(profile.email)
    if profile.phone is not None:
        check_phone(profile.phone)
    if profile.webhook is not None:
        check_url(profile.webhook, "webhook")
    if profile.zone is not None:
        check_zone(profile.zone)
    if profile.locale is not None:
        check_locale(profile.locale, "locale")
    if len(profile.devices) > DEVICES_MAX:
        raise Invalid("devices", f"are {len(profile.devices)}, more than {DEVICES_MAX}: remove those no longer used")
    check_preferences(profile.preferences)
    check_values(profile.variables)
    return User(
        user_id,
        profile.name,
        profile.email,
        profile.phone,
        tuple(dict.fromkeys(profile.devices)),
        profile.webhook,
        profile.zone or "UTC",
        profile.locale,
        profile.preferences,
        _quiet(profile.quiet),
        profile.variables,
    )


def profile_of(user: User) -> Profile:
    """The same the other way round, so that single fields can be changed and lists can be read."""
    quiet = user.quiet
    hours = None if quiet is None else QuietHours(format_hours(quiet), quiet.then, quiet.spares_high)
    return Profile(
        user.name,
        user.email,
        user.phone,
        user.devices,
        user.webhook,
        user.zone,
        user.locale,
        user.preferences,
        hours,
        user.variables,
    )


def merged(profile: Profile, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with these changes (RFC 7396)."""
    result = _merge(msgspec.to_builtins(profile), dict(changes))
    assert isinstance(result, dict)
    return result


def _merge(target: object, change: object) -> object:
    if not isinstance(change, dict):
        return change
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def _quiet(asked: str | QuietHours | None) -> Quiet | None:
    if asked is None:
        return None
    if isinstance(asked, str):
        return Quiet(*parse_hours(asked))
    return Quiet(*parse_hours(asked.hours, "quiet.hours"), asked.then, asked.spares_high)

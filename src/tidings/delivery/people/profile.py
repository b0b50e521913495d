"""A user's profile as clients send it: each field is checked, and errors name the field."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidings.delivery.templates.values import check_locale, check_values
from tidings.domain.errors import Invalid, check_all
from tidings.domain.notifications.address import check_email, check_line, check_phone, check_url
from tidings.domain.notifications.quiet_hours import format_hours, parse_hours
from tidings.domain.notifications.user import Quiet, User, check_preferences
from tidings.domain.recurrence.timezone import check_zone
from tidings.ports import WebhookCheck, any_webhook
from tidings.shapes.user import DEVICES_MAX, Profile, QuietHours

__all__ = ["DEVICES_MAX", "NAME_CHARS_MAX", "Profile", "QuietHours", "check_id", "merged", "profile_of", "user_of"]

NAME_CHARS_MAX = 200

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+:~=-]{0,99}")
_IDS = re.compile(rf"{_ID.pattern}(?:\n{_ID.pattern})*")


def check_id(user_id: str, field: str = "id") -> None:
    """Refuse an id that cannot stand in a path, in the id of a notification and in the key of a record."""
    if not _ID.fullmatch(user_id):
        raise Invalid(
            field, f"{user_id[:60]!r} is not a valid user id: use 1 to 100 letters, digits and . _ @ + : ~ = -"
        )


def check_ids(user_ids: Sequence[str], field: str) -> None:
    """Refuse the first id that `check_id` refuses. Most lists have none, so all ids are matched at once."""
    together = "\n".join(user_ids)
    if together.count("\n") >= len(user_ids) or not _IDS.fullmatch(together):
        for user_id in user_ids:
            check_id(user_id, field)


def user_of(user_id: str, profile: Profile, webhook_check: WebhookCheck = any_webhook) -> User:
    """The user that a profile describes; `Invalid` names all wrong fields."""
    check_all(
        lambda: check_id(user_id),
        lambda: None if profile.name is None else _check_name(profile.name),
        lambda: None if profile.email is None else check_email(profile.email),
        lambda: None if profile.phone is None else check_phone(profile.phone),
        lambda: None if profile.webhook is None else _check_webhook(profile.webhook, webhook_check),
        lambda: None if profile.zone is None else check_zone(profile.zone),
        lambda: None if profile.locale is None else check_locale(profile.locale, "locale"),
        lambda: _check_devices(profile),
        lambda: check_preferences(profile.preferences),
        lambda: check_values(profile.variables),
        lambda: _quiet(profile.quiet),
    )
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


def _check_webhook(url: str, webhook_check: WebhookCheck) -> None:
    check_url(url, "webhook")
    webhook_check(url, "webhook")


def _check_name(name: str) -> None:
    if len(check_line(name, "name")) > NAME_CHARS_MAX:
        raise Invalid("name", f"is longer than {NAME_CHARS_MAX} characters")


def _check_devices(profile: Profile) -> None:
    if len(profile.devices) > DEVICES_MAX:
        raise Invalid("devices", f"are {len(profile.devices)}, more than {DEVICES_MAX}: remove those no longer used")


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

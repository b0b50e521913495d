"""Users, their inboxes, and suppressed addresses."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.user import InQuiet
from tidings.shapes.fields import AlwaysTrue, Answer, Cursor, Instant, Sent, about

DEVICES_MAX = 20
MARKED_MAX = 1_000

Hours = Annotated[str, Meta(examples=["22:00-07:00"])]
Preferences = Annotated[
    dict[str, bool],
    about("Yes or no by channel, by category, or by `channel/category`.", {"sms": False, "sms/news": True}),
]
Variables = Annotated[dict[str, str], about("Values that templates may use for this user.", {"plan": "pro"})]


class QuietHours(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hours of the day, in the user's time zone, in which nothing is sent. They may span midnight."""

    hours: Annotated[Hours, about("Start and end.")]
    then: Annotated[
        InQuiet, about("What happens to a message in these hours: `defer` sends it at their end, `drop` never.")
    ] = "defer"
    spares_high: Annotated[bool, about("Whether messages of high priority are sent all the same.")] = True


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a user beside the id."""

    name: Annotated[str | None, about("Name of the user, available to templates as `name`.", "Ada")] = None
    email: Annotated[str | None, about("E-mail address of the user.", "ada@example.com")] = None
    phone: Annotated[str | None, about("Telephone number of the user, in international form.", "+15550100")] = None
    devices: Annotated[tuple[Device, ...], about(f"Devices for push messages, at most {DEVICES_MAX}.")] = ()
    webhook: Annotated[str | None, about("URL that is called for the user.", "https://example.com/hook")] = None
    zone: Annotated[str | None, about("IANA time zone of the user.", "America/New_York", absent="`UTC`")] = None
    locale: Annotated[str | None, about("Language of the user.", "pt-BR")] = None
    preferences: Preferences = {}
    quiet: Annotated[
        Hours | QuietHours | None,
        about("Hours in which the user gets no messages: the hours as text, or an object.", "22:00-07:00"),
    ] = None
    variables: Variables = {}


class NewUser(Profile, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A user as it is sent. The id may be left out, as it is part of the path."""

    id: Annotated[str | None, about("The id, as in the path.")] = None


class User(Answer, frozen=True, kw_only=True):
    """A user. Fields that are not set are left out."""

    id: Annotated[str, about("Id of the user.", "ada")]
    zone: Annotated[str, about("IANA time zone of the user.", "America/New_York")]
    name: Annotated[str | UnsetType, about("Name of the user.")] = UNSET
    email: Annotated[str | UnsetType, about("E-mail address of the user.")] = UNSET
    phone: Annotated[str | UnsetType, about("Telephone number of the user.")] = UNSET
    devices: Annotated[list[Device] | UnsetType, about("Devices for push messages.")] = UNSET
    webhook: Annotated[str | UnsetType, about("URL that is called for the user.")] = UNSET
    locale: Annotated[str | UnsetType, about("Language of the user.")] = UNSET
    preferences: Preferences | UnsetType = UNSET
    quiet: Annotated[QuietHours | UnsetType, about("Hours in which the user gets no messages.")] = UNSET
    variables: Variables | UnsetType = UNSET


class UserPage(Answer, frozen=True, kw_only=True):
    """A page of users, by id."""

    users: Annotated[list[User], about("The users.")]
    cursor: Cursor


class UserOutcome(Answer, frozen=True, kw_only=True):
    """What a change of a user did."""

    id: Annotated[str, about("Id of the user.")]
    outcome: Annotated[Literal["created", "replaced", "changed", "deleted"], about("What happened.")]


class Erased(Answer, frozen=True, kw_only=True):
    """What the erasure of a user removed."""

    id: Annotated[str, about("Id of the user.")]
    outcome: Annotated[Literal["erased"], about("What happened.")]
    removed: Annotated[dict[str, int], about("How many documents were removed, by kind.", {"user": 1})]
    cancelled: Annotated[int, about("How many pending schedules were cancelled.")]
    suppressions: Annotated[int, about("How many suppressed addresses were replaced by a digest.")]
    providers: Annotated[list[str], about("Providers that sent messages to the user and may keep them.", ["smtp"])]


class BadLine(Answer, frozen=True, kw_only=True):
    """A line of an import that was left out."""

    line: Annotated[int, about("Its number, from 1.")]
    field: Annotated[str, about("The field at fault.")]
    reason: Annotated[str, about("What is wrong, and what to change.")]


class Imported(Answer, frozen=True, kw_only=True):
    """Progress of an import. The last line has `done` and the totals."""

    lines: Annotated[int, about("Lines read.")]
    created: Annotated[int, about("Users created.")]
    replaced: Annotated[int, about("Users replaced.")]
    bad: Annotated[int, about("Lines left out.")]
    bad_lines: Annotated[list[BadLine], about("Lines left out since the previous report, at most 1,000 in all.")]
    done: Annotated[AlwaysTrue | UnsetType, about("Only on the last line.")] = UNSET


# --- inbox ---


class InboxLine(Answer, frozen=True, kw_only=True):
    """A message in an inbox."""

    id: Annotated[str, about("Its id.", "n_1/1")]
    title: Annotated[str, about("Its title.")]
    body: Annotated[str, about("Its text.")]
    at: Annotated[Instant, about("When it arrived.")]
    read_at: Annotated[Instant | UnsetType, about("When the user read it.")] = UNSET


class InboxPage(Answer, frozen=True, kw_only=True):
    """A page of an inbox, the latest first."""

    lines: Annotated[list[InboxLine], about("The messages.")]
    cursor: Cursor


class Unread(Answer, frozen=True, kw_only=True):
    """How many messages of an inbox are unread."""

    unread: Annotated[int, about("How many, counted up to 1,000.")]
    more: Annotated[bool, about("Whether there are more than that.")]


class MarkRead(Sent, frozen=True, kw_only=True):
    """Messages to mark as read: give one of the two."""

    ids: Annotated[
        Annotated[tuple[str, ...], Meta(max_length=MARKED_MAX)], about(f"Their ids, at most {MARKED_MAX:,}.", ["n_1/1"])
    ] = ()
    all: Annotated[bool, about("All that are in the inbox now.")] = False


class MarkedRead(Answer, frozen=True, kw_only=True):
    """What was marked as read."""

    user: Annotated[str, about("Id of the user.")]
    outcome: Annotated[Literal["read"], about("What happened.")]
    read: Annotated[int, about("How many were marked.")]
    unknown: Annotated[list[str] | UnsetType, about("Ids that are not in the inbox.")] = UNSET


# --- suppressions ---


class NewSuppression(Sent, frozen=True, kw_only=True):
    """Why an address is suppressed."""

    reason: Annotated[str, about("The reason, in one line of at most 200 characters.")] = "by hand"
    category: Annotated[str | None, about("Suppress only this category.", "news", absent="everything")] = None


class Suppression(Answer, frozen=True, kw_only=True):
    """An address that nothing is sent to."""

    channel: Annotated[ChannelName, about("The channel.")]
    reason: Annotated[str, about("Why.")]
    since: Annotated[Instant, about("Since when.")]
    address: Annotated[str | UnsetType, about("The address; gone once its user was erased.")] = UNSET
    category: Annotated[str | UnsetType, about("Only this category is suppressed.")] = UNSET
    user: Annotated[str | UnsetType, about("Id of the user that it belonged to.")] = UNSET


class SuppressionPage(Answer, frozen=True, kw_only=True):
    """A page of suppressions, the latest first."""

    suppressions: Annotated[list[Suppression], about("The suppressions.")]
    cursor: Cursor


class SuppressionOutcome(Answer, frozen=True, kw_only=True):
    """What a change of a suppression did."""

    channel: Annotated[ChannelName, about("The channel.")]
    address: Annotated[str, about("The address.")]
    outcome: Annotated[Literal["suppressed", "unchanged", "removed"], about("What happened.")]

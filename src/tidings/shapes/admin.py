"""Calendars, time zone rules, API keys, nodes and health."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from tidings.domain.names import DEFAULT_TENANT
from tidings.shapes.fields import AlwaysTrue, Answer, Instant, Sent, about

Dates = Annotated[tuple[str, ...], Meta(examples=[["2026-12-25", "2027-01-01"]])]


# --- calendars ---


class NewCalendar(Sent, frozen=True, kw_only=True):
    """The days of a calendar: give one of the two."""

    dates: Annotated[Dates | None, about("The days on which nothing is released.")] = None
    ics: Annotated[
        str | None,
        about("The text of an iCalendar file: every day on which an event takes place.", "BEGIN:VCALENDAR..."),
    ] = None


class Calendar(Answer, frozen=True, kw_only=True):
    """A calendar."""

    name: Annotated[str, about("Its name.", "holidays")]
    days: Annotated[int, about("How many days it has.")]
    changed_at: Annotated[Instant, about("When it was stored.")]
    dates: Annotated[Dates | UnsetType, about("Its days; not in lists.")] = UNSET


class Calendars(Answer, frozen=True, kw_only=True):
    """All calendars of a tenant."""

    calendars: Annotated[list[Calendar], about("The calendars, by name.")]


class CalendarKept(Answer, frozen=True, kw_only=True):
    """A calendar that was stored."""

    name: Annotated[str, about("Its name.")]
    days: Annotated[int, about("How many days it has.")]
    moved: Annotated[int, about("How many pending occurrences moved.")]
    note: Annotated[str | UnsetType, about("A remark, if it has no days at all.")] = UNSET


class CalendarDropped(Answer, frozen=True, kw_only=True):
    """A calendar that was deleted."""

    name: Annotated[str, about("Its name.")]
    dropped: Annotated[AlwaysTrue, about("It was deleted.")]
    moved: Annotated[int, about("How many pending occurrences moved.")]


class Zone(Answer, frozen=True, kw_only=True):
    """A time zone that pending schedules use, or used."""

    name: Annotated[str, about("Its IANA name.", "Europe/Berlin")]
    version: Annotated[str, about("Version of the time zone database by which it was last computed.", "2026b")]
    changed: Annotated[bool, about("Whether its rules have changed since.")]


class Moved(Answer, frozen=True, kw_only=True):
    """A pending occurrence that was moved."""

    at: Annotated[Instant, about("When it was moved.")]
    cause: Annotated[str, about("What moved it.", "tzdata 2026a to 2026b")]
    id: Annotated[str, about("Id of the schedule.")]
    occurrence: Annotated[int, about("Number of the occurrence.")]
    before: Annotated[Instant, about("When it was due before.")]
    after: Annotated[Instant | None, about("When it is due now; null if nothing is left.")]
    zone: Annotated[str | UnsetType, about("Its time zone, if new time zone rules moved it.")] = UNSET
    after_local: Annotated[str | UnsetType, about("`after` in that time zone.")] = UNSET


class Tzdata(Answer, frozen=True, kw_only=True):
    """The time zone rules in use."""

    version: Annotated[str, about("Version of the time zone database.", "2026b")]
    zones: Annotated[list[Zone], about("Time zones of pending schedules.")]
    moved: Annotated[list[Moved], about("What was moved recently, the latest first.")]


class TzdataApplied(Answer, frozen=True, kw_only=True):
    """What new time zone rules changed."""

    version: Annotated[str, about("Version of the time zone database.", "2026b")]
    changed: Annotated[list[str], about("Time zones whose rules had changed.")]
    moved: Annotated[int, about("How many pending occurrences moved.")]
    movements: Annotated[list[Moved], about("Those of this tenant, the latest first, at most 100.")]


# --- keys ---


class NewKey(Sent, frozen=True, kw_only=True):
    """An API key to create."""

    name: Annotated[str, about("Its name: 1 to 63 letters, digits, `.`, `_` and `-`.", "laptop")]
    tenant: Annotated[str, about("Tenant that it acts for.")] = DEFAULT_TENANT
    admin: Annotated[bool, about("Whether it may manage keys.")] = False


class Key(Answer, frozen=True, kw_only=True):
    """An API key. The key itself is shown only once, when it is created."""

    name: Annotated[str, about("Its name.", "laptop")]
    tenant: Annotated[str, about("Tenant that it acts for.", "default")]
    admin: Annotated[bool, about("Whether it may manage keys.")]
    created_at: Annotated[Instant, about("When it was created.")]
    key: Annotated[str | UnsetType, about("The key.", "tdk_4Hk2...")] = UNSET


class Keys(Answer, frozen=True, kw_only=True):
    """All API keys."""

    keys: Annotated[list[Key], about("The keys, without the keys themselves.")]


class Revoked(Answer, frozen=True, kw_only=True):
    """An API key that was revoked."""

    name: Annotated[str, about("Its name.")]
    revoked: Annotated[AlwaysTrue, about("It is no longer accepted.")]


# --- nodes ---


class OwnedLane(Answer, frozen=True, kw_only=True):
    """One lane of the store."""

    lane: Annotated[int, about("Its number.")]
    since: Annotated[Instant | None, about("Since when its owner has it; null if it has no owner.")]
    overdue_ms: Annotated[
        float, about("For how long its first pending schedule has been due, in milliseconds; 0 if none is.")
    ]


class NodeLateness(Answer, frozen=True, kw_only=True):
    """How late a node released in the last minute, in milliseconds; null if it released nothing."""

    released: Annotated[int, about("How many it released.")]
    p50_ms: Annotated[float | None, about("The median, in milliseconds.")]
    p99_ms: Annotated[float | None, about("The 99th percentile, in milliseconds.")]
    max_ms: Annotated[float | None, about("The maximum, in milliseconds.")]


class Node(Answer, frozen=True, kw_only=True):
    """One node, as it last reported."""

    id: Annotated[str, about("Unique id; empty if the store has only one node.")]
    name: Annotated[str, about("Its name: `node.name`, or host and process.", "north")]
    state: Annotated[Literal["alive", "gone"], about("`gone` if its lease has expired.")]
    roles: Annotated[list[str], about("What it does.", ["api", "dispatch"])]
    channels: Annotated[list[str], about("The channels that it delivers to, with the role `deliver`.", ["email"])]
    url: Annotated[str | None, about("Where it listens.")]
    version: Annotated[str, about("Version of Tidings.")]
    since: Annotated[Instant, about("When it started.")]
    lease_until: Annotated[Instant, about("When its lease expires unless it renews it.")]
    owns: Annotated[list[OwnedLane], about("The lanes that it releases.")]
    lateness: Annotated[NodeLateness, about("How late it released in the last minute.")]
    clock_ahead_ms: Annotated[
        float, about("How far its clock is ahead of the store's, in milliseconds; negative if it is behind.")
    ]


class Nodes(Answer, frozen=True, kw_only=True):
    """The nodes that share the store."""

    nodes: Annotated[list[Node], about("Nodes that are alive, and those that ended abruptly in the last minute.")]
    lanes: Annotated[int, about("How many lanes the store has.")]
    free_lanes: Annotated[list[OwnedLane], about("Lanes that no node owns at the moment.")]


# --- health ---


class Status(Answer, frozen=True, kw_only=True):
    """Health of the server."""

    status: Annotated[str, about("In one word.", "ok")]
    version: Annotated[str | UnsetType, about("Version of Tidings.")] = UNSET
    detail: Annotated[str | UnsetType, about("In words.")] = UNSET
    notices: Annotated[
        list[str] | UnsetType, about("What an operator must fix, such as a provider that refuses the credentials.")
    ] = UNSET

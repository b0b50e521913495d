"""From a request and a recipient to a notification, and to the request for its schedule."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from secrets import token_hex
from typing import Any, Literal

import msgspec

from tidings.delivery.accept.dry_run import DryRun
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.rows import new_notifications, notification_put, read, recipient
from tidings.delivery.templates import Compiled
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import CHANNEL_NAMES, SMS_CHARACTERS_MAX, ChannelName
from tidings.domain.notifications.notification import PRIORITIES, DeliveryJob, Notification, topic
from tidings.domain.notifications.user import User
from tidings.domain.recurrence.rrule import parse_moment
from tidings.domain.schedules import iso8601
from tidings.domain.schedules.iso8601 import parse_exact_duration, parse_instant
from tidings.domain.schedules.schedule import Request, Timing
from tidings.domain.schedules.when import SECOND_US
from tidings.ports.tables import BulkGroups, Row

_SAME = ("rrule", "cron", "start", "until", "count", "rdates", "exdates", "gap", "overlap", "calendar", "on_excluded")
_said = attrgetter(*_SAME)
_NONE = _said(Timing())
_encode = msgspec.json.Encoder().encode
_MEASURED = re.compile(r"[+P]|\d+[a-z]", re.IGNORECASE)  # a duration, or meant as one
_FORMS = "'tomorrow 09:00', 'monday 8:30' or '2026-11-20 09:00' for local time, 2026-11-20T09:00:00Z, or +5s"


def schedule_for(shared: Request, notification: Notification, whom: str) -> Request:
    """The schedule of one of several notifications that have the same time in the same zone."""
    labels = {"user": notification.user, "template": notification.template, "batch": notification.batch}
    return msgspec.structs.replace(
        shared,
        value=_encode(DeliveryJob(notification=notification.id)),
        key=whom.encode(),
        id=notification.id,
        labels={name: text for name, text in labels.items() if text is not None} or None,
    )


def request_for(
    ask: NotificationRequest, notification: Notification, zone: str, now: int, since: int | None = None
) -> Request:
    """What the schedules of all recipients with the same channel and time zone share.

    `zone` is that of the recipient, and is used unless the request has one. Days and durations count from `since` if
    it is given.
    """
    at, place = _at(ask, zone, now if since is None else since), ask.zone
    if place is None and _is_local(ask, at):
        place = zone
    said = _said(ask)
    timing = None
    if said != _NONE or place is not None:
        timing = Timing(zone=place, **dict(zip(_SAME, said, strict=True)))
    expires = notification.expires_after_us
    return Request(
        topic=topic(notification.channels[0], notification.priority),
        bus="log",
        at=at,
        every=ask.every,
        priority=PRIORITIES[notification.priority],
        expires_after=None if expires is None else f"PT{expires // SECOND_US}.{expires % SECOND_US:06}S",
        late=ask.late,
        late_grace=ask.late_grace,
        late_max=ask.late_max,
        jitter=ask.jitter,
        since=since,
        timing=timing,
        past=ask.past,
    )


def _at(ask: NotificationRequest, zone: str, now: int) -> int | str | None:
    field, at = ("at", ask.at) if ask.at is not None else ("scheduled_at", ask.scheduled_at)
    if not isinstance(at, str):
        return at
    if iso8601.is_relative_day(at):
        return iso8601.resolve_relative_day(at, ask.zone or zone, now)
    if not (_MEASURED.match(at) or _is_instant(at) or _is_moment(at)):
        raise Invalid(field, f"{at[:60]!r} is not a valid time: write {_FORMS}")
    return at


def _is_local(ask: NotificationRequest, at: int | str | None) -> bool:
    """Whether something that is asked is said by clocks, so that it matters whose they are."""
    if ask.rrule is not None:
        return "TZID" not in ask.rrule.upper()
    if ask.cron is not None:
        return True
    written: list[Any] = [at, ask.start, ask.until]
    return any(isinstance(text, str) and _is_wall_time(text) for text in written)


@lru_cache(maxsize=1_024)
def _is_wall_time(text: str) -> bool:
    return _is_moment(text) and parse_moment(text, "at").form == "local"


def _is_instant(text: str) -> bool:
    try:
        parse_instant(text)
    except Invalid:
        return False
    return True


def _is_moment(text: str) -> bool:
    try:
        parse_moment(text, "at")
    except Invalid:
        return False
    return True


UTC = "UTC"


class Draft(msgspec.Struct, frozen=True):
    """A notification for one person, ready to be kept, and its schedule."""

    notification: Notification
    request: Request
    whom: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for everybody: the request, its template, the version that is pinned, and its expiry.

    `name` is its id, or with several users that of the batch; `since` is when it was asked, where that is not now;
    `served` are the channels that a provider serves here, None if that is not known; `schedules` are what recipients of
    the same channel and time zone share.
    """

    request: NotificationRequest
    tenant: str
    now: int
    content: str
    name: str
    batch: str | None
    dry_run: DryRun
    template: Compiled | None = None
    pinned: int | None = None
    served: frozenset[ChannelName] | None = None
    since: int | None = None
    schedules: dict[tuple[ChannelName, str], Request] = msgspec.field(default_factory=dict)

    @property
    def users(self) -> Sequence[str | None]:
        """The user of each recipient; None for an address."""
        return self.request.users or (self.request.user,)

    @property
    def ids(self) -> Sequence[str]:
        """The id of the notification for each recipient."""
        name = self.name
        return [f"{name}:{user}" for user in self.request.users] or [name]

    @property
    def is_heavy(self) -> bool:
        """Whether its rendering may take longer than a few milliseconds."""
        return self.dry_run.is_heavy


def draft(plan: Plan, notification_id: str, user: User | None) -> Draft:
    """For a user, or for the address that is asked for; `Invalid` if it cannot be sent as it stands."""
    request = plan.request
    channels = _channels(plan, user)
    plan.dry_run.check(channels, user)
    notification = Notification(
        notification_id,
        plan.tenant,
        channels,
        None if user is None else user.id,
        request.to,
        request.template,
        plan.pinned,
        request.variables,
        request.inline(),
        request.wanted_spread(),
        request.priority,
        request.category,
        _expiry(plan),
        request.locale,
        request.collapse,
        plan.batch,
        plan.now,
        plan.content,
    )
    whom = recipient(notification)
    zone = UTC if user is None else user.zone
    shared = plan.schedules.get((channels[0], zone))
    if shared is None:
        shared = request_for(request, notification, zone, plan.now, plan.since)
        plan.schedules[channels[0], zone] = shared
    if user is not None and _follows_user(request, shared):
        notification = msgspec.structs.replace(notification, is_local=True)
    return Draft(notification, schedule_for(shared, notification, whom), whom)


def _follows_user(request: NotificationRequest, schedule: Request) -> bool:
    """Whether its time is local time, in the zone of whoever gets it."""
    return request.zone is None and schedule.timing is not None and schedule.timing.zone is not None


class Stencil:
    """The notifications of users with the same channels and time zone, made at once but for what is a user's own.

    A draft is made for a user and an id that stand in for all of them. Its row and its schedule are cut where those
    stand, and put together for each user, column by column.
    """

    def __init__(self, plan: Plan, engine: NotificationEngine, user: User) -> None:
        made = draft(plan, _ID, msgspec.structs.replace(user, id=_USER))
        form = engine.form(plan.tenant, made.request, plan.now, _USER)
        notification = made.notification
        if form is not None and form.expires_after_us != notification.expires_after_us:
            notification = msgspec.structs.replace(notification, expires_after_us=form.expires_after_us)
        if not plan.request.users:
            notification = msgspec.structs.replace(notification, content=_CONTENT)
        self.channels = notification.channels
        self.values = notification_put(notification, 0).values
        self.form = form
        self.kind = (notification, None if form is None else form.adds.shared)
        self._body = _BLANKS.split(_encode(notification))
        self._digest = None if plan.request.users else plan.request.digests(_USER)
        self.places: list[int] = []
        self.names: list[str] = []
        self.users: list[str] = []
        self.versions: list[int] = []
        self.bodies: list[bytes] = []

    def fill(self, chosen: "Sequence[_Chosen]") -> None:
        """Make the notifications of these users, unless one of them has to be drafted by itself."""
        places, ids, users, versions = zip(*chosen, strict=True)
        words, names = [*map(str.encode, users)], [_encode(each)[1:-1] for each in ids]
        if self.form is None or not self.form.fill(ids, words, [name.join(_JOB) for name in names]):
            return
        before, between, *rest = self._body
        ends: Iterable[bytes] = repeat(rest[0])
        if self._digest is not None:
            ends = [self._digest(word).join(rest) for word in words]
        rows = zip(names, words, ends, strict=False)
        self.bodies += [b"".join((before, name, between, word, end)) for name, word, end in rows]
        self.places += places
        self.names += ids
        self.users += users
        self.versions += versions


class _Reach(msgspec.Struct, frozen=True, gc=False):
    """The fields of a user by which a stencil is chosen; to decode all of them takes a third longer."""

    name: str | None = None
    email: str | None = None
    phone: str | None = None
    devices: tuple[msgspec.Raw, ...] = ()
    webhook: str | None = None
    zone: str = UTC
    locale: str | None = None
    variables: dict[str, str] = {}


_decode_reach = msgspec.json.Decoder(_Reach).decode
_Chosen = tuple[int, str, str, int]  # a place in the request, the id of the notification, the user, their row's version


class Recipient(msgspec.Struct):
    """A recipient of a request before it is drafted: the id of the notification, the user and their row."""

    plan: Plan
    id: str
    user: str | None = None
    row: Row | None = None


class Bulk:
    """Notifications of one request for many users, by column."""

    def __init__(self, plan: Plan, engine: NotificationEngine) -> None:
        self.plan = plan
        self._engine = engine
        self.stencils: list[Stencil] = []
        self._by_reach: dict[object, Stencil] = {}  # by the time zone and the kinds of addresses
        self._by_kind: dict[object, Stencil] = {}  # by everything that counts for a dry run as well

    def groups(self) -> BulkGroups:
        """What is to be committed, in the order of the stencils."""
        groups = new_notifications(self.plan.tenant, are_new=self.plan.request.id is None)
        for each in self.stencils:
            if each.form is None or not each.places:
                continue
            groups.names += each.names
            groups.own += each.users
            groups.versions += each.versions
            groups.bodies += each.bodies
            groups.parts.append((each.values, each.form.adds))
        return groups

    def add_all(self, recipients: Iterable[tuple[int, str, Row | None]]) -> None:
        """Add the notifications for users, given by place, id and row, but for those that have to be drafted alone."""
        chosen: dict[Stencil, list[_Chosen]] = {}
        for place, notification_id, row in recipients:
            if row is not None:
                stencil = self._stencil(_decode_reach(row.body), row)
                if stencil is not None:
                    chosen.setdefault(stencil, []).append((place, notification_id, row.key.name, row.version))
        for stencil, some in chosen.items():
            stencil.fill(some)

    def _stencil(self, user: _Reach, row: Row) -> Stencil | None:
        """The stencil for a user; None if they have to be drafted alone."""
        dry_run = self.plan.dry_run
        kind = (
            dry_run.short_names(user),
            user.locale,
            user.zone,
            user.email is None,
            user.phone is None,
            user.webhook is None,
            not user.devices,
        )
        found = self._by_kind.get(kind)
        if found is not None:
            return found
        try:
            whole = read(row, User)
            found = self._reaching(kind[2:], whole)
            if dry_run.check(found.channels, whole):
                self._by_kind[kind] = found
        except Invalid:
            return None
        return found

    def _reaching(self, reach: object, user: User) -> Stencil:
        """The stencil for users with the same addresses and time zone, and for others for whom it is the same."""
        if reach not in self._by_reach:
            made = Stencil(self.plan, self._engine, user)
            found = next((each for each in self.stencils if each.kind == made.kind), made)
            if found is made:
                self.stencils.append(made)
            self._by_reach[reach] = found
        return self._by_reach[reach]


# They stand for an id, a user and a digest of content. Nobody can guess them, and so nothing else contains them.
_ID, _USER, _CONTENT = (token_hex(16) for _ in range(3))
_BLANKS = re.compile(f"{_ID}|{_USER}|{_CONTENT}".encode())
_JOB = _encode(DeliveryJob(notification=_ID)).split(_ID.encode())


def _channels(plan: Plan, user: User | None) -> tuple[ChannelName, ...]:
    """The channels asked for, else those that have a part and an address; one of them must reach the user."""
    named, field = plan.request.asked_channels(), "channels"
    if plan.request.channel is not None:
        field = "channel"
    spoken = _spoken(plan)
    for channel in named:
        if channel not in spoken:
            raise Invalid(
                field,
                f"the template {plan.request.template} has no part for {channel}: "
                "leave the channel out, or add the part",
            )
    served = CHANNEL_NAMES if plan.served is None else tuple(each for each in CHANNEL_NAMES if each in plan.served)
    for channel in named:
        if channel not in served:
            raise Invalid(
                field, f"no provider for {channel} is configured: choose one of {', '.join(served)}, or configure one"
            )
    if user is None:
        return named
    wanted = named or tuple(channel for channel in served if channel in spoken)
    reached = tuple(channel for channel in wanted if user.addresses(channel))
    if not reached:
        means = ", ".join(wanted) or "any channel"
        raise Invalid("user", f"{user.id!r} has no address for {means}: add one, or choose another channel")
    return named or reached


def _spoken(plan: Plan) -> tuple[ChannelName, ...]:
    """The channels that there are words for."""
    if plan.template is not None:
        return plan.template.channels
    content = plan.request.inline()
    assert content is not None, "without a template there is content"
    if plan.request.asked_channels():
        return CHANNEL_NAMES
    long: tuple[Literal["sms"], ...] = ("sms",) if len(content.text) > SMS_CHARACTERS_MAX else ()
    return tuple(channel for channel in CHANNEL_NAMES if channel not in long)


def _expiry(plan: Plan) -> int | None:
    if plan.request.expires_after is not None:
        return parse_exact_duration(plan.request.expires_after, "expires_after")
    return None if plan.template is None else plan.template.template.stale_after_us

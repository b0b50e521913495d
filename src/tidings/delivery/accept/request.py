"""A notification as it is asked for, what is wrong with it whoever it is for, and what became of it."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from typing import Literal, overload

import msgspec

from tidings.delivery.people.profile import check_id, check_ids
from tidings.delivery.templates.values import check_locale, check_values
from tidings.domain.errors import Invalid, StoreError, check_all
from tidings.domain.names import check_name, encoded
from tidings.domain.notifications.address import check_line
from tidings.domain.notifications.address_key import check_channel_address
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import BODY_BYTES_MAX, SMS_CHARACTERS_MAX, SUBJECT_CHARACTERS_MAX, ChannelName
from tidings.domain.notifications.notification import InlineContent, Notification, Spread
from tidings.domain.notifications.user import check_category
from tidings.domain.recurrence.timezone import check_zone
from tidings.domain.schedules.command import Outcome
from tidings.domain.schedules.iso8601 import parse_exact_duration
from tidings.shapes.notification import USERS_MAX, NewNotification

ID_CHARS_MAX = 90  # a user's id, and the number of an occurrence, come behind it
DEDUPE_KEY_CHARS_MAX = 200
DEDUPE_WINDOW_US = 86_400_000_000
DEDUPE_WINDOW_MAX_US = 366 * 86_400_000_000
CONTENT_BYTES = 16
OTHER_CONTENT = "the id belongs to a notification with other content"

_encode = msgspec.json.Encoder(order="sorted").encode

AcceptOutcome = Literal["scheduled", "unchanged", "skipped", "rejected", "conflict"]


class NotificationRequest(NewNotification, frozen=True, kw_only=True):
    """A notification as it is sent, with what follows from several of its fields."""

    def asked_channels(self) -> tuple[ChannelName, ...]:
        """Those that are named; none if that is left to us."""
        if self.channel is not None:
            return (self.channel,)
        return () if self.channels == "all" else self.channels or ()

    def wanted_spread(self) -> Spread:
        """Whether all of the channels are used, or the first that works."""
        return "all" if self.channels == "all" else self.spread or "first"

    def inline(self) -> InlineContent | None:
        """The content, if there is no template."""
        return self.words if self.content is None else self.content

    def digest(self) -> str:
        """A digest of the request as it was sent: a second one with the same digest is a repeat.

        The content counts under its name in version 0.1, whose stores keep such digests.
        """
        return blake2b(self._digested(), digest_size=CONTENT_BYTES).hexdigest()

    def digests(self, blank: str) -> Callable[[bytes], bytes]:
        """The digest of the same request for any user; `blank` is a text that it does not contain."""
        before, after = msgspec.structs.replace(self, user=blank)._digested().split(blank.encode())
        begun = blake2b(before, digest_size=CONTENT_BYTES)

        def digest(user: bytes) -> bytes:
            digest = begun.copy()
            digest.update(user + after)
            return digest.hexdigest().encode()

        return digest

    def _digested(self) -> bytes:
        plain = self
        if self.id is not None or self.past is not None or self.content is not None:
            plain = msgspec.structs.replace(self, id=None, past=None, content=None, words=self.inline())
        return _encode(plain)


class AcceptResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a request for one recipient. `first` is the notification that a duplicate would repeat.

    `rejected` names the `field` at fault; `conflict` is an id that belongs to something else. `note` is a remark on
    its time, for example that clocks skip it. `state` is that of the notification that an `unchanged` one repeats.
    """

    id: str
    outcome: AcceptOutcome
    user: str | None = None
    due: int | None = None
    channels: tuple[ChannelName, ...] = ()
    reason: str | None = None
    field: str | None = None
    first: str | None = None
    zone: str | None = None  # the time zone that its time is in
    batch: str | None = None
    note: str | None = None
    state: State | None = None


class AcceptedColumns(msgspec.Struct, frozen=True):
    """Results that differ only in the id and the user, by column; `places` are those of the recipients."""

    shared: AcceptResult
    places: Sequence[int]
    ids: Sequence[str]
    users: Sequence[str]

    def results(self) -> Iterator[tuple[int, AcceptResult]]:
        """Each result with its place."""
        shared = self.shared
        rest = (shared.due, shared.channels, shared.reason, shared.field, shared.first, shared.zone, shared.batch)
        for place, own_id, user in zip(self.places, self.ids, self.users, strict=True):
            yield place, AcceptResult(own_id, shared.outcome, user, *rest, shared.note, shared.state)


class AcceptResults(Sequence[AcceptResult]):
    """The results of a request for its recipients, in order: in columns if they were accepted in bulk, others alone."""

    def __init__(self, count: int, columns: Sequence[AcceptedColumns] = ()) -> None:
        self.columns = columns
        self.alone: dict[int, AcceptResult] = {}
        self._count = count

    @property
    def batch(self) -> str | None:
        """The batch that they belong to, if any was accepted."""
        shared = (each.shared for each in self.columns)
        return next((each.batch for each in (*shared, *self.alone.values()) if each.batch), None)

    @property
    def left(self) -> list[int]:
        """The places without a result."""
        done = {place for each in self.columns for place in each.places} | self.alone.keys()
        return [place for place in range(self._count) if place not in done]

    @cached_property
    def _results(self) -> list[AcceptResult]:
        found = dict(self.alone)
        for each in self.columns:
            found.update(each.results())
        return [found[place] for place in range(self._count)]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> AcceptResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[AcceptResult]: ...
    def __getitem__(self, index: int | slice) -> AcceptResult | list[AcceptResult]:
        return self._results[index]


class PreparedResults:
    """The results of requests that differ only in their user: in columns if accepted in bulk, others by place."""

    def __init__(
        self, columns: Sequence[AcceptedColumns], others: dict[int, AcceptResults | Invalid | StoreError]
    ) -> None:
        self.columns = columns
        self.others = others

    def each(self, count: int) -> list[Sequence[AcceptResult] | Invalid | StoreError]:
        """The results of all of them, one by one."""
        found: dict[int, Sequence[AcceptResult] | Invalid | StoreError] = dict(self.others)
        for columns in self.columns:
            found.update((place, [result]) for place, result in columns.results())
        return [found[place] for place in range(count)]


def taken(own: Notification, state: State) -> AcceptResult:
    """The id belongs to a notification with other content, in this state."""
    reason = f"{OTHER_CONTENT} (its state is {state}): PUT it with ?reuse=true to use its id again, or choose another"
    if state == "pending":
        reason = f"{OTHER_CONTENT}: replace it (PUT), cancel it, or choose another id"
    return AcceptResult(own.id, "conflict", own.user, reason=reason)


def skipped(own: Notification, first: str) -> AcceptResult:
    """It is a duplicate of the first one with its dedupe key."""
    return AcceptResult(own.id, "skipped", own.user, reason="duplicate", first=first, batch=own.batch)


def rejected(notification_id: str, user: str | None, invalid: Invalid) -> AcceptResult:
    """It cannot be sent to this recipient as it stands."""
    detail = invalid.detail.removeprefix(f"{invalid.field}: ")
    return AcceptResult(notification_id, "rejected", user, reason=detail, field=invalid.field)


def scheduled(own: Notification, outcome: Outcome) -> AcceptResult:
    """What follows from the outcome of its schedule."""
    match outcome.outcome:
        case "scheduled" | "released":
            due, note = outcome.due, outcome.note
            return AcceptResult(own.id, "scheduled", own.user, due, own.channels, batch=own.batch, note=note)
        case _ if outcome.field is not None:
            return rejected(own.id, own.user, Invalid(outcome.field, outcome.reason or ""))
        case _:
            reason = (
                outcome.reason or f"the id belongs to a schedule that is {outcome.state} already: choose another id"
            )
            return AcceptResult(own.id, "conflict", own.user, reason=reason)


def check(ask: NotificationRequest) -> None:
    """Refuse what is wrong for every recipient; the error names all wrong fields."""
    try:
        for each in _CHECKS:
            each(ask)
    except Invalid:
        check_all(*(partial(each, ask) for each in _CHECKS))
        raise


def without_known(ask: NotificationRequest, stored: Notification) -> NotificationRequest:
    """A change of a notification without its own id and batch: those of a list's members have forms of their own."""
    return msgspec.structs.replace(ask, id=None, batch=None if ask.batch == stored.batch else ask.batch)


def _check_zone(ask: NotificationRequest) -> None:
    if ask.zone is not None:
        check_zone(ask.zone)


def _check_at(ask: NotificationRequest) -> None:
    if ask.at is not None and ask.scheduled_at is not None:
        raise Invalid("at", "give either 'at' or 'scheduled_at', not both")


def dedupe_window_us(ask: NotificationRequest) -> int:
    """For how long a second one under the same key is a duplicate: a day, unless it is said."""
    if ask.dedupe_window is None:
        return DEDUPE_WINDOW_US
    window = parse_exact_duration(ask.dedupe_window, "dedupe_window")
    if window > DEDUPE_WINDOW_MAX_US:
        raise Invalid("dedupe_window", "is longer than 366 days, the maximum")
    return window


def _check_id(ask: NotificationRequest) -> None:
    if ask.id is not None:
        _check_text(ask.id, "id", ID_CHARS_MAX)
        if "~" in ask.id:
            raise Invalid("id", "contains '~', which is reserved for retries: choose another id")


def _check_batch(ask: NotificationRequest) -> None:
    if ask.batch is not None:
        check_name(ask.batch, "batch")


def _check_dedupe(ask: NotificationRequest) -> None:
    if ask.dedupe_key is not None:
        _check_text(ask.dedupe_key, "dedupe_key", DEDUPE_KEY_CHARS_MAX)
        dedupe_window_us(ask)
    elif ask.dedupe_window is not None:
        raise Invalid("dedupe_window", "needs 'dedupe_key': give it, or leave this out")


def _check_category(ask: NotificationRequest) -> None:
    check_category(ask.category)


def _check_locale(ask: NotificationRequest) -> None:
    if ask.locale is not None:
        check_locale(ask.locale, "locale")


def _check_collapse(ask: NotificationRequest) -> None:
    if ask.collapse is not None and len(check_line(ask.collapse, "collapse").encode()) > 64:
        raise Invalid("collapse", "is longer than 64 bytes, the maximum that devices accept")


def _check_text(text: str, field: str, chars_max: int) -> None:
    if not text or not text.isascii() or not text.isprintable() or len(text) > chars_max:
        raise Invalid(field, f"use 1 to {chars_max} printable ASCII characters")


def _check_whom(ask: NotificationRequest) -> None:
    if ask.user and not ask.users and ask.to is None:
        check_id(ask.user, "user")
        return
    given = [name for name in ("user", "users", "to") if getattr(ask, name)]
    if len(given) != 1:
        if not given:
            raise Invalid("user", "it has no recipient: give 'user', 'to', or 'users' with at least one user in it")
        raise Invalid(given[0], f"give either '{given[0]}' or '{given[1]}', not both")
    if len(ask.users) > USERS_MAX:
        raise Invalid("users", f"has {len(ask.users):,} users: send at most {USERS_MAX:,} in one request")
    if len(set(ask.users)) < len(ask.users):
        twice = next(user for number, user in enumerate(ask.users) if user in ask.users[:number])
        raise Invalid("users", f"names {twice[:60]!r} twice: name each once")
    check_ids(ask.users, "users")


def _check_channels(ask: NotificationRequest) -> None:
    if ask.channels == ():
        raise Invalid(
            "channels", 'is empty: name some in order, write "all", or leave it out to use the channels the user has'
        )
    if ask.channel is not None and ask.channels is not None:
        raise Invalid("channel", "give either 'channel' or 'channels', not both")
    named = ask.asked_channels()
    if len(set(named)) < len(named):
        raise Invalid("channels", "names one twice: name each once")
    if ask.to is not None:
        if len(named) != 1:
            raise Invalid("channel", "a bare address needs a channel: name exactly one")
        check_channel_address(named[0], ask.to, "to")


def _check_what(ask: NotificationRequest) -> None:
    if ask.content is not None and ask.words is not None:
        raise Invalid("words", "is the former name of 'content': give only 'content'")
    content = ask.inline()
    if ask.template is None and content is None:
        raise Invalid("template", "is missing, and so is 'content': give one of the two")
    if ask.template is not None and content is not None:
        raise Invalid("template", "give either 'template' or 'content', not both")
    if ask.template is not None:
        check_name(ask.template, "template")
        if isinstance(ask.version, int) and ask.version < 1:
            raise Invalid("version", "must be at least 1")
        return
    if ask.version is not None or ask.variables:
        raise Invalid("variables" if ask.variables else "version", "needs 'template': content is sent as it is")
    assert content is not None
    _check_content(content, "words" if ask.content is None else "content", ask.asked_channels())


def _check_content(content: InlineContent, field: str, channels: tuple[ChannelName, ...]) -> None:
    if not content.text.strip():
        raise Invalid(f"{field}.text", "is empty: give some text")
    for name, text in (("text", content.text), ("html", content.html or "")):
        if "\0" in text:
            raise Invalid(f"{field}.{name}", "contains a NUL character: remove it")
        if len(encoded(text, f"{field}.{name}")) > BODY_BYTES_MAX:
            raise Invalid(f"{field}.{name}", f"has more than {BODY_BYTES_MAX} bytes")
    encoded(content.title, f"{field}.title")
    if len(check_line(content.title, f"{field}.title")) > SUBJECT_CHARACTERS_MAX:
        raise Invalid(f"{field}.title", f"is longer than {SUBJECT_CHARACTERS_MAX} characters")
    if "sms" in channels and len(content.text) > SMS_CHARACTERS_MAX:
        raise Invalid(f"{field}.text", f"is longer than {SMS_CHARACTERS_MAX} characters, the maximum for SMS")
    check_values(content.data, f"{field}.data")


_CHECKS = (
    _check_id,
    _check_batch,
    _check_dedupe,
    _check_category,
    _check_locale,
    _check_collapse,
    _check_whom,
    _check_channels,
    _check_what,
    _check_at,
    _check_zone,
)

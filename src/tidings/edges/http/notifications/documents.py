"""The JSON documents of users, templates, notifications and deliveries. Fields without a value are left out."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from secrets import token_hex
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tidings.delivery.accept.change import ChangeOutcome
from tidings.delivery.accept.request import AcceptedColumns, AcceptResult
from tidings.delivery.limits.provider_status import ProviderStatus, Receiver
from tidings.delivery.notifications.history import HistoryLine as StoryLine
from tidings.delivery.notifications.status import Status
from tidings.delivery.people.profile import profile_of
from tidings.delivery.people.suppressions import Suppression
from tidings.delivery.templates import Content, Template
from tidings.delivery.templates.repository import StoredTemplate
from tidings.domain.notifications.delivery import Attempt, Delivery, Part, ProviderEvent
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.notifications.user import InboxEntry, User
from tidings.domain.recurrence.preview import local_text
from tidings.domain.schedules.command import Outcome
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.schedule import Schedule
from tidings.shapes import notification as shapes
from tidings.shapes import user as user_shapes
from tidings.wires.answers import Document, encode, format_iso_duration, outcome_document, timing_document

_BREAKERS: dict[str, Literal["closed", "open", "half_open"]] = {"closed": "closed", "open": "open", "due": "half_open"}


def user_document(user: User) -> Document:
    """A user in the form in which it is sent, so that the answer to a GET can be PUT again."""
    found: Document = msgspec.to_builtins(profile_of(user))
    return {"id": user.id} | found


def template_document(template: Template) -> Document:
    """One version of a template, its parts by channel and language."""
    parts = msgspec.to_builtins(template.parts)
    shown = {channel: languages for channel, languages in parts.items() if languages}
    document: Document = {"name": template.name, "version": template.version, "locale": template.locale}
    if template.urgency is not None:
        document["urgency"] = template.urgency
    if template.expires_after_us is not None:
        document["expires_after"] = format_iso_duration(template.expires_after_us)
    return document | {"parts": shown}


def stored_document(stored: StoredTemplate) -> Document:
    """A version with the variables that it needs, and whether it is the latest."""
    about = {"latest": stored.latest, "needs": stored.needs, "channels": stored.channels}
    return template_document(stored.template) | about | {"changed_at": format_instant(stored.changed)}


def content_document(content: Content) -> Document:
    """A rendered template."""
    document = _given({"title": content.title, "text": content.text, "html": content.html, "data": content.data})
    if content.json:
        document["body"] = msgspec.Raw(content.json)
    if content.segments is not None:
        document["segments"] = msgspec.to_builtins(content.segments)
    return {"locale": content.locale} | document


class AcceptedDocument(msgspec.Struct, gc=False, omit_defaults=True):
    """The outcome of a notification for one recipient. It is positional because many are built for each batch."""

    id: str
    outcome: str
    user: str | None = None
    channels: tuple[ChannelName, ...] = ()
    reason: str | None = None
    first: str | None = None
    batch: str | None = None
    note: str | None = None
    state: str | None = None
    due_at: str | None = None
    due_at_local: str | None = None
    errors: list[dict[str, str]] | None = None
    line: int | None = None


_due_text = lru_cache(256)(format_instant)  # those of a batch are mostly the same
_local_due_text = lru_cache(256)(local_text)


def accepted_document(accepted: AcceptResult, line: int | None = None) -> AcceptedDocument:
    """An outcome with its time as text, and in a batch with the number of its line."""
    due, zone, field = accepted.due, accepted.zone, accepted.field
    return AcceptedDocument(
        accepted.id,
        accepted.outcome,
        accepted.user,
        accepted.channels,
        None if field is not None else accepted.reason or None,
        accepted.first,
        accepted.batch,
        accepted.note,
        accepted.state,
        None if due is None else _due_text(due),
        None if due is None or zone is None else _local_due_text(zone, due),
        None if field is None else [{"field": field, "detail": accepted.reason or ""}],
        line,
    )


# They stand for an id and a user. Nobody can guess them, and so nothing else contains them.
_ID, _USER = token_hex(16), token_hex(16)
_BLANKS = re.compile(f"{_ID}|{_USER}".encode())


def encoded_columns(columns: AcceptedColumns, lines: Sequence[int] | None = None) -> list[bytes]:
    """The documents of outcomes that differ only in id and user: one is encoded, and filled in for each of them.

    In a batch, `lines` are the numbers of their lines.
    """
    one = accepted_document(msgspec.structs.replace(columns.shared, id=_ID, user=_USER))
    before, between, after = _BLANKS.split(encode(one))
    ends: Iterable[bytes] = repeat(b"")
    if lines is not None:
        after, ends = after.removesuffix(b"}"), [b',"line":%d}' % line for line in lines]
    own = zip(columns.ids, columns.users, ends, strict=False)
    return [b"".join((before, encode(own_id)[1:-1], between, user.encode(), after, end)) for own_id, user, end in own]


def changed_document(outcome: Outcome) -> Document:
    """The outcome of a change, with the recipient, the channels and the local time as in that of a new notification."""
    document: Document = msgspec.to_builtins(outcome_document(outcome))
    if isinstance(outcome, ChangeOutcome):
        document |= _given({"user": outcome.user, "channels": outcome.channels or None})
        if outcome.zone is not None and outcome.due is not None:
            document["due_at_local"] = local_text(outcome.zone, outcome.due)
    return document


def status_document(status: Status, *, whole: bool = True, schedule: Schedule | None = None) -> Document:
    """A notification and its state, with its rule while it is pending; in lists without its variables and content."""
    document: Document = {"id": status.notification.id, "state": status.state}
    if status.reason:
        document["reason"] = status.reason
    if status.due is not None:
        document["due_at"] = format_instant(status.due)
    if schedule is not None:
        zone = zone_of(schedule.when)
        document |= {} if zone is None else {"due_at_local": local_text(zone, schedule.due)}
        document |= timing_document(schedule)
    if status.occurrence > 1:
        document["occurrence"] = status.occurrence
    document |= _notification(status.notification, whole=whole)
    return document | {"deliveries": [delivery_document(each) for each in status.deliveries]}


def _notification(notification: Notification, *, whole: bool) -> Document:
    plain: Document = msgspec.to_builtins(notification)
    for name in ("id", "tenant", "content", "created", "cancelled", "expires_after_us", "generation", "is_local"):
        plain.pop(name, None)
    if "words" in plain:
        plain["content"] = plain.pop("words")
    if not whole:
        plain.pop("variables", None)
        plain.pop("content", None)
    plain |= {"priority": notification.priority, "category": notification.category, "spread": notification.spread}
    if notification.expires_after_us is not None:
        plain["expires_after"] = format_iso_duration(notification.expires_after_us)
    plain["accepted_at"] = format_instant(notification.created)
    if notification.cancelled is not None:
        plain["cancelled_at"] = format_instant(notification.cancelled)
    return plain


def delivery_document(delivery: Delivery) -> shapes.Delivery:
    """A delivery with its provider, lateness, attempts, and what the provider reported later."""
    sent, due = delivery.sent, delivery.was_due
    return shapes.Delivery(
        name=delivery.name,
        notification=delivery.notification,
        state=delivery.state,
        reason=delivery.reason or UNSET,
        channel=delivery.channel or UNSET,
        user=delivery.user or UNSET,
        address=delivery.address or UNSET,
        provider=delivery.provider or UNSET,
        provider_id=delivery.provider_id or UNSET,
        due_at=format_instant(due),
        next_try_at=_instant(delivery.next_try),
        sent_at=_instant(sent),
        late_ms=UNSET if sent is None else max(0, sent - due) / 1000,
        changed_at=_instant(delivery.changed or None),
        attempts=[_attempt(each) for each in delivery.attempts],
        devices=[_device(each) for each in delivery.parts] or UNSET,
        news=[_event(each) for each in delivery.news] or UNSET,
    )


def _attempt(attempt: Attempt) -> shapes.Attempt:
    return shapes.Attempt(
        number=attempt.number,
        channel=attempt.channel,
        provider=attempt.provider,
        begun_at=format_instant(attempt.begun),
        ended_at=_instant(attempt.ended),
        outcome=attempt.outcome or UNSET,
        detail=attempt.detail or UNSET,
        provider_id=attempt.provider_id or UNSET,
        may_have_arrived=attempt.may_have_arrived or UNSET,
    )


def _device(part: Part) -> shapes.DevicePart:
    return shapes.DevicePart(number=part.number, outcome=part.outcome or UNSET, provider_id=part.provider_id or UNSET)


def _event(event: ProviderEvent) -> shapes.ProviderEvent:
    return shapes.ProviderEvent(at=format_instant(event.at), state=event.state, reason=event.reason or UNSET)


def story_document(line: StoryLine) -> shapes.NotificationEvent:
    """One entry of a notification's history."""
    return shapes.NotificationEvent(
        at=format_instant(line.at),
        event=line.event,
        delivery=line.delivery or UNSET,
        attempt=line.attempt or UNSET,
        channel=line.channel or UNSET,
        provider=line.provider or UNSET,
        provider_id=line.provider_id or UNSET,
        reason=line.reason or UNSET,
        due_at=_instant(line.due),
        late_ms=UNSET if line.late_us is None else line.late_us / 1000,
    )


def line_document(line: InboxEntry) -> user_shapes.InboxLine:
    """A message in an inbox."""
    return user_shapes.InboxLine(
        id=line.id, title=line.title, body=line.body, at=format_instant(line.at), read_at=_instant(line.read)
    )


def suppression_document(kept: Suppression) -> user_shapes.Suppression:
    """A suppression."""
    return user_shapes.Suppression(
        channel=kept.channel,
        address=kept.address or UNSET,
        reason=kept.reason,
        category=kept.category or UNSET,
        user=kept.user or UNSET,
        since=format_instant(kept.since),
    )


def provider_document(status: ProviderStatus) -> shapes.Provider:
    """A provider and its state."""
    return shapes.Provider(
        name=status.provider.name,
        provider=status.provider.provider,
        channels=list(status.provider.channels),
        breaker=_BREAKERS[status.breaker],
        until=_instant(status.until if status.breaker == "open" else None),
        reason=status.reason or UNSET,
        limit=_rate(status.rate),
        tenant_limit=_rate(status.tenant_rate),
        receivers=[_receiver(each) for each in status.receivers] or UNSET,
        more_receivers=status.has_more or UNSET,
    )


def _receiver(receiver: Receiver) -> shapes.Receiver:
    return shapes.Receiver(
        receiver=receiver.receiver,
        breaker="open" if receiver.breaker == "open" else "half_open",
        reason=receiver.reason,
        until=_instant(receiver.until if receiver.breaker == "open" else None),
    )


def _rate(rate: Rate | None) -> shapes.Rate | UnsetType:
    return UNSET if rate is None else shapes.Rate(per_s=rate.per_s, burst=rate.burst)


def _instant(at: int | None) -> str | UnsetType:
    return UNSET if at is None else format_instant(at)


def _given(fields: dict[str, Any]) -> Document:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value not in (None, "", {}, ())}

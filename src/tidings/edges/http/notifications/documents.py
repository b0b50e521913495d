"""The JSON documents of users, templates, notifications and deliveries. Fields without a value are left out."""

from typing import Any

import msgspec

from tidings.delivery.explaining import Line as StoryLine
from tidings.delivery.notifying import Accepted
from tidings.delivery.profile import profile_of
from tidings.delivery.status import Status
from tidings.delivery.suppressions import Suppression
from tidings.delivery.templates import Content, Template
from tidings.delivery.versions import StoredTemplate
from tidings.delivery.ways import Receiver, WayStanding
from tidings.domain.notifications.delivery import Attempt, Delivery
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.notifications.user import InboxEntry, User
from tidings.domain.recurrence.preview import local_text
from tidings.domain.schedules.iso8601 import format_instant
from tidings.wires.answers import Document, format_iso_duration

_BREAKERS = {"closed": "closed", "open": "open", "due": "half_open"}


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


def accepted_document(accepted: Accepted) -> Document:
    """The outcome of a notification for one recipient."""
    document = _given(msgspec.to_builtins(accepted))
    document.pop("zone", None)
    if accepted.due is not None:
        document.pop("due")
        document["due_at"] = format_instant(accepted.due)
        if accepted.zone is not None:
            document["due_at_local"] = local_text(accepted.zone, accepted.due)
    if accepted.field is not None:
        document["errors"] = [{"field": document.pop("field"), "detail": document.pop("reason")}]
    return document


def status_document(status: Status, *, whole: bool = True, local: str | None = None) -> Document:
    """A notification and its state; in lists without its variables and content."""
    document: Document = {"id": status.notification.id, "state": status.state}
    if status.reason:
        document["reason"] = status.reason
    if status.due is not None:
        document["due_at"] = format_instant(status.due)
    if local is not None:
        document["due_at_local"] = local
    if status.occurrence > 1:
        document["occurrence"] = status.occurrence
    document |= _notification(status.notification, whole=whole)
    return document | {"deliveries": [delivery_document(each) for each in status.deliveries]}


def _notification(notification: Notification, *, whole: bool) -> Document:
    plain: Document = msgspec.to_builtins(notification)
    for name in ("id", "tenant", "content", "created", "cancelled", "expires_after_us"):
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


def delivery_document(delivery: Delivery) -> Document:
    """A delivery with its provider, lateness, attempts, and what the provider reported later."""
    names = ("name", "notification", "state", "reason", "channel", "user", "address", "provider", "provider_id")
    document = _given({name: getattr(delivery, name) for name in names})
    document["due_at"] = format_instant(delivery.was_due)
    if delivery.next_try is not None:
        document["next_try_at"] = format_instant(delivery.next_try)
    if delivery.sent is not None:
        document["sent_at"] = format_instant(delivery.sent)
        document["late_ms"] = max(0, delivery.sent - delivery.was_due) / 1000
    if delivery.changed:
        document["changed_at"] = format_instant(delivery.changed)
    document["attempts"] = [_attempt(each) for each in delivery.attempts]
    if delivery.parts:
        document["devices"] = [
            _given({"number": part.number, "outcome": part.outcome, "provider_id": part.provider_id})
            for part in delivery.parts
        ]
    if delivery.news:
        document["news"] = [
            _given({"at": format_instant(news.at), "state": news.state, "reason": news.reason})
            for news in delivery.news
        ]
    return document


def _attempt(attempt: Attempt) -> Document:
    document: Document = {"number": attempt.number, "channel": attempt.channel, "provider": attempt.provider}
    document["begun_at"] = format_instant(attempt.begun)
    if attempt.ended is not None:
        document["ended_at"] = format_instant(attempt.ended)
    answer = {"outcome": attempt.outcome, "detail": attempt.detail, "provider_id": attempt.provider_id}
    document |= _given(answer)
    return document | {"may_have_arrived": True} if attempt.may_have_arrived else document


def story_document(line: StoryLine) -> Document:
    """One line of a notification's history."""
    document: Document = {"at": format_instant(line.at), "event": line.event}
    names = ("delivery", "attempt", "channel", "provider", "provider_id", "reason")
    document |= _given({name: getattr(line, name) for name in names})
    if line.due is not None:
        document["due_at"] = format_instant(line.due)
    if line.late_us is not None:
        document["late_ms"] = line.late_us / 1000
    return document


def line_document(line: InboxEntry) -> Document:
    """A line of an inbox."""
    document: Document = {"id": line.id, "title": line.title, "body": line.body, "at": format_instant(line.at)}
    return document if line.read is None else document | {"read_at": format_instant(line.read)}


def suppression_document(kept: Suppression) -> Document:
    """A suppression."""
    document = _given({"channel": kept.channel, "address": kept.address, "reason": kept.reason})
    document |= _given({"category": kept.category, "user": kept.user})
    return document | {"since": format_instant(kept.since)}


def way_document(standing: WayStanding) -> Document:
    """A provider and its state."""
    way = standing.way
    document: Document = {"name": way.name, "provider": way.provider, "channels": way.channels}
    document["breaker"] = _BREAKERS[standing.breaker]
    if standing.breaker == "open" and standing.until is not None:
        document["until"] = format_instant(standing.until)
    limits = {"limit": _rate(standing.rate), "tenant_limit": _rate(standing.own)}
    document |= _given({"reason": standing.reason} | limits)
    if standing.receivers:
        document["receivers"] = [_receiver(each) for each in standing.receivers]
    return document | {"more_receivers": True} if standing.more else document


def _receiver(receiver: Receiver) -> Document:
    document: Document = {"receiver": receiver.receiver, "breaker": _BREAKERS[receiver.breaker]}
    if receiver.breaker == "open":
        document["until"] = format_instant(receiver.until)
    return document | {"reason": receiver.reason}


def _rate(rate: Rate | None) -> Document | None:
    return None if rate is None else {"per_s": rate.per_s, "burst": rate.burst}


def _given(fields: dict[str, Any]) -> Document:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value not in (None, "", {}, ())}

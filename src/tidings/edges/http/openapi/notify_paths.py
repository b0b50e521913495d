"""The paths of templates, notifications, deliveries, the ways out, and of those who come without a key."""

from typing import get_args

from tidings.domain.delivery import State
from tidings.domain.notification import Priority
from tidings.edges.http.openapi.operations import JSON, answer, content, header, in_path, operation, query, sent
from tidings.edges.http.openapi.people import CHANNEL, CURSOR, LIMIT
from tidings.edges.http.openapi.shapes import INSTANT, Schema, number, ref

_NAME = in_path("name", "The template's name.")
_ID = in_path("id", "The notification's id, percent-encoded.")
_DELIVERY = in_path("name", "The delivery's name, percent-encoded or as it is.")
_FORCE = query("force", "Though something pending needs what it takes away.", {"type": "boolean", "default": False})
_IDEMPOTENCY = header("Idempotency-Key", "Kept for 24 h: a repeat is answered like the first.")
_PARTS = {"email": {"en": {"subject": "Hi {{ name }}", "text": "It is {{ what }}."}}}
_VERSION = {"name": "reminder", "version": 1, "locale": "en", "parts": _PARTS}
_ABOUT = {"needs": ["name", "what"], "channels": ["email"]}
_STORED = {"name": "reminder", "outcome": "stored", "version": 1} | _ABOUT
_LINE = {"name": "reminder", "latest": 1, "changed_at": INSTANT}
_SAID = {"name": "reminder", "channel": "email", "locale": "en", "title": "Hi Ada", "text": "It is nine."}
_ASK = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}, "at": "tomorrow 09:00"}
_WALL = "2026-11-20T09:00:00-05:00"
_ACCEPTED: Schema = {"id": "n_1", "outcome": "scheduled", "user": "ada", "channels": ["email"]}
_ACCEPTED |= {"due_at": INSTANT, "due_at_local": _WALL}
_ATTEMPT = {"number": 1, "channel": "email", "provider": "smtp", "begun_at": INSTANT, "ended_at": INSTANT}
_SENT: Schema = {
    "name": "n_1/1",
    "notification": "n_1",
    "state": "sent",
    "channel": "email",
    "user": "ada",
    "due_at": INSTANT,
}
_SENT |= {"address": "ada@example.com", "provider": "smtp", "provider_id": "<n_1/1@example.com>", "sent_at": INSTANT}
_SENT |= {"due_at": INSTANT, "late_ms": 3.2, "changed_at": INSTANT, "attempts": [_ATTEMPT | {"outcome": "accepted"}]}
_NOTIFICATION: Schema = {"id": "n_1", "state": "sent", "due_at": INSTANT, "channels": ["email"], "user": "ada"}
_NOTIFICATION |= {"template": "reminder", "variables": {"what": "nine"}, "priority": "normal", "spread": "first"}
_NOTIFICATION |= {"category": "transactional", "accepted_at": INSTANT, "deliveries": [_SENT]}
_HISTORY = [{"at": INSTANT, "event": "accepted", "due_at": INSTANT}]
_STATE = query("state", "Only in this state.", {"type": "string", "enum": list(get_args(State))})
_TIMES = [
    query("since", "Accepted (of deliveries: due) at or after: an instant, or a duration before now such as `-1h`."),
    query("until", "Before."),
]
_OF = [query("user", "Only hers."), _STATE, query("channel", "Only by this channel.", CHANNEL)]


def template_paths() -> dict[str, Schema]:
    """Templates."""
    page = answer("A page.", "TemplatePage", {"templates": [_LINE], "cursor": None})
    shown = answer("The version.", "Template", _VERSION | _ABOUT | {"latest": 1, "changed_at": INSTANT})
    versions = answer("The latest first.", "TemplateVersions", {"versions": [_VERSION], "cursor": None})
    stored = {
        201: answer("A new version.", "TemplateOutcome", _STORED, Location="Where it is found."),
        200: answer("It is the same as the latest.", "TemplateOutcome", _STORED | {"outcome": "unchanged"}),
    }
    gone = answer("All versions are gone.", "TemplateOutcome", {"name": "reminder", "outcome": "deleted"})
    said = answer("What it would say; nothing is sent.", "TemplateSaid", _SAID)
    which = query("version", "Which version; the latest without it.", number("", minimum=1))
    asked = sent("TemplatePreview", {"channel": "email", "variables": {"name": "Ada", "what": "nine"}})
    tag, one = "Templates", "/v1/templates/{name}"
    body = sent("NewTemplate", {"parts": _PARTS})
    named, forced = [_NAME], [_NAME, _FORCE]
    below = [_NAME, CURSOR, LIMIT]
    return {
        "/v1/templates": {"get": operation(tag, "listTemplates", "List", {200: page}, parameters=[CURSOR, LIMIT])},
        one: {
            "get": operation(tag, "showTemplate", "Show one", {200: shown}, "404", parameters=[_NAME, which]),
            "put": operation(
                tag, "putTemplate", "Put a new version", stored, "409 413 415", parameters=forced, body=body
            ),
            "delete": operation(tag, "deleteTemplate", "Remove it", {200: gone}, "404 409", parameters=forced),
        },
        f"{one}/versions": {
            "get": operation(tag, "listVersions", "Its versions", {200: versions}, "404", parameters=below)
        },
        f"{one}/preview": {
            "post": operation(
                tag, "previewTemplate", "What it says", {200: said}, "404 413 415", parameters=named, body=asked
            )
        },
    }


def notification_paths() -> dict[str, Schema]:
    """Notifications."""
    shown = answer("The notification with its deliveries.", "Notification", _NOTIFICATION)
    story = answer("The same with its story.", "Story", _NOTIFICATION | {"history": _HISTORY})
    gone = answer("Nothing of it leaves any more.", "Outcome", {"id": "n_1", "outcome": "cancelled"})
    page = answer("A page.", "NotificationPage", {"notifications": [_NOTIFICATION], "cursor": None})
    several = answer("It was there already, or is a duplicate; of `users` one for each.", "Accepted", _ACCEPTED)
    several["content"][JSON]["schema"] = {"oneOf": [ref("Accepted"), ref("AcceptedAll")]}
    taken = {201: answer("Accepted, and on disk.", "Accepted", _ACCEPTED, Location="Where it is found."), 200: several}
    names = [
        query("to", "Only to this bare address; a device is `apns:<token>` or `fcm:<token>`."),
        query("template", "Only of this template."),
        query("batch", "Only of this batch."),
        query("category", "Only of this category."),
        query("priority", "Only of this priority.", {"type": "string", "enum": list(get_args(Priority))}),
    ]
    tag, one = "Notifications", "/v1/notifications/{id}"
    return {
        "/v1/notifications": {
            "post": operation(
                tag,
                "notify",
                "Tell somebody something, at a time",
                taken,
                "409 413 415 422 429",
                parameters=[_IDEMPOTENCY],
                body=sent("NewNotification", _ASK),
            ),
            "get": operation(
                tag,
                "listNotifications",
                "List and search",
                {200: page},
                parameters=[*_OF, *names, *_TIMES, CURSOR, LIMIT],
            ),
        },
        one: {
            "get": operation(tag, "showNotification", "Show one", {200: shown}, "404", parameters=[_ID]),
            "delete": operation(tag, "cancelNotification", "Cancel", {200: gone}, "404 409", parameters=[_ID]),
        },
        f"{one}/explain": {
            "get": operation(tag, "explainNotification", "Its story", {200: story}, "404", parameters=[_ID])
        },
    }


def delivery_paths() -> dict[str, Schema]:
    """Deliveries, and the ways out."""
    shown = answer("The delivery.", "Delivery", _SENT)
    page = answer("A page.", "DeliveryPage", {"deliveries": [_SENT], "cursor": None})
    again = {"id": "n_1/1", "outcome": "retried", "state": "pending", "due_at": INSTANT}
    retried = answer("It goes again.", "Retried", again)
    smtp = {"name": "smtp", "provider": "smtp", "channels": ["email"], "breaker": "closed"}
    served = {"email": ["smtp"], "sms": [], "push": [], "webhook": [], "in_app": []}
    ways = answer("Never a secret.", "Channels", {"providers": [smtp], "channels": served})
    closed = answer("It is called again.", "BreakerClosed", {"name": "smtp", "outcome": "closed"})
    whom = [in_path("name", "The provider's name."), query("receiver", "Of webhooks: one of your receivers.")]
    of = query("notification", "Only of this notification.")
    tag, one = "Deliveries", "/v1/deliveries/{name}"
    filters = [*_OF, of, *_TIMES, CURSOR, LIMIT]
    return {
        "/v1/deliveries": {"get": operation(tag, "listDeliveries", "List", {200: page}, parameters=filters)},
        one: {"get": operation(tag, "showDelivery", "Show one", {200: shown}, "404", parameters=[_DELIVERY])},
        f"{one}/retry": {
            "post": operation(
                tag, "retryDelivery", "Send it again", {200: retried}, "404 409 413", parameters=[_DELIVERY]
            )
        },
        "/v1/channels": {"get": operation(tag, "listChannels", "Providers and how they stand", {200: ways})},
        "/v1/channels/{name}/close": {
            "post": operation(tag, "closeBreaker", "Call it again", {200: closed}, "404 413", parameters=whom)
        },
    }


def callback_paths() -> dict[str, Schema]:
    """Who comes without a key: providers by their signature, people by a link that is signed."""
    counts = {"received": 1, "applied": 1, "unchanged": 0, "unknown": 0}
    taken = {200: answer("Taken.", "ReceiptsTaken", counts)}
    body: Schema = {
        "required": True,
        "content": {
            JSON: content("", '{"state":"delivered","message":"n_1/1"}'),
            "application/x-www-form-urlencoded": content("", "MessageSid=SM1&MessageStatus=delivered"),
        },
    }
    provider = in_path("provider", "The provider, as it is called in the settings.")
    tenant = in_path("tenant", "Whose messages they are about, where the provider gives only our own id back.")
    token = [in_path("token", "From the link.")]
    page = "<!doctype html>"
    ask = {200: answer("A page with one button.", "", page, "text/html"), 404: _page("The link is not ours.")}
    done = {200: answer("It has ended.", "", page, "text/html"), 404: _page("The link is not ours.")}
    done[400] = _page("It cannot be ended so, or the body is not `List-Unsubscribe=One-Click`.")
    click: Schema = {
        "required": True,
        "content": {"application/x-www-form-urlencoded": content("", "List-Unsubscribe=One-Click")},
    }
    return {
        "/receipts/{provider}": {"post": _receipts("takeReceipts", taken, [provider], body)},
        "/receipts/{provider}/{tenant}": {"post": _receipts("takeTenantReceipts", taken, [provider, tenant], body)},
        "/unsubscribe/{token}": {
            "get": operation("Callbacks", "showUnsubscribe", "Ask", ask, parameters=token, guarded=False),
            "post": operation(
                "Callbacks", "unsubscribe", "One click", done, "413", parameters=token, body=click, guarded=False
            ),
        },
    }


def _receipts(name: str, taken: dict[int, Schema], parameters: list[Schema], body: Schema) -> Schema:
    summary = "News of a provider, by its signature"
    return operation(
        "Callbacks", name, summary, taken, "401 404 413 503", parameters=parameters, body=body, guarded=False
    )


def _page(description: str) -> Schema:
    return answer(description, "", "<!doctype html>", "text/html")

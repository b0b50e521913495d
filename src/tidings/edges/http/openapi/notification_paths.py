"""The paths of users, templates, notifications, deliveries, inboxes, suppressions and callbacks."""

from typing import get_args

from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.notification import Priority
from tidings.edges.http.openapi.operations import (
    CHANNEL,
    CURSOR,
    ETAG,
    IDEMPOTENCY,
    IF_MATCH,
    IF_NONE_MATCH,
    JSON,
    LIMIT,
    LOCATION,
    MISSED,
    NDJSON,
    Schema,
    answer,
    choice,
    content,
    header,
    in_path,
    operation,
    patch,
    query,
    ref,
    sent,
    switch,
)
from tidings.shapes.fields import INSTANT

_USER = in_path("id", "Id of the user: 1 to 100 letters, digits and `. _ @ + : ~ = -`.")
_OWNER = in_path("user", "Id of the user.")
_TEMPLATE = in_path("name", "Name of the template.")
_NOTIFICATION = in_path("id", "Id of the notification, percent-encoded.")
_DELIVERY = in_path("name", "Name of the delivery, percent-encoded or as it is.")
_REUSE = switch("reuse", "Begin again with an id whose notification was cancelled or has ended.")
_FORCE = switch("force", "Even if pending notifications need what it removes.")
_FILTERS = [query("user", "Only this user."), choice("state", "Only this state.", get_args(State)), CHANNEL]
_TIMES = [
    query("since", "Accepted (of deliveries: due) at or after: an instant, or a duration before now such as `-1h`."),
    query("until", "Before."),
]

_ADA = {"name": "Ada", "email": "ada@example.com", "phone": "+15550100", "zone": "America/New_York"}
_ADA_SHOWN = {"id": "ada"} | _ADA | {"quiet": {"hours": "22:00-07:00"}}
_PARTS = {"email": {"en": {"subject": "Hi {{ name }}", "text": "It is {{ what }}."}}}
_VERSION = {"name": "reminder", "version": 1, "locale": "en", "parts": _PARTS}
_NEEDS = {"needs": ["name", "what"], "channels": ["email"]}
_STORED = {"name": "reminder", "outcome": "stored", "version": 1} | _NEEDS
_NEW = {"user": "ada", "template": "reminder", "variables": {"what": "nine"}, "at": "tomorrow 09:00"}
_ACCEPTED: Schema = {
    "id": "n_1",
    "outcome": "scheduled",
    "user": "ada",
    "channels": ["email"],
    "due_at": INSTANT,
    "due_at_local": "2026-11-20T09:00:00-05:00",
}
_ATTEMPT = {
    "number": 1,
    "channel": "email",
    "provider": "smtp",
    "begun_at": INSTANT,
    "ended_at": INSTANT,
    "outcome": "accepted",
}
_SENT: Schema = {
    "name": "n_1/1",
    "notification": "n_1",
    "state": "sent",
    "channel": "email",
    "user": "ada",
    "address": "ada@example.com",
    "provider": "smtp",
    "provider_id": "<n_1/1@example.com>",
    "due_at": INSTANT,
    "sent_at": INSTANT,
    "late_ms": 3.2,
    "changed_at": INSTANT,
    "attempts": [_ATTEMPT],
}
_SHOWN: Schema = {
    "id": "n_1",
    "state": "sent",
    "due_at": INSTANT,
    "channels": ["email"],
    "user": "ada",
    "template": "reminder",
    "variables": {"what": "nine"},
    "priority": "normal",
    "spread": "first",
    "category": "transactional",
    "accepted_at": INSTANT,
    "deliveries": [_SENT],
}
_HTML = "<!doctype html>"


def notification_paths() -> dict[str, Schema]:
    """Everything about people and the messages to them."""
    return {
        **_user_paths(),
        **_template_paths(),
        **_notification_paths(),
        **_delivery_paths(),
        **_inbox_paths(),
        **_suppression_paths(),
        **_callback_paths(),
    }


# --- users ---


def _user_paths() -> dict[str, Schema]:
    page = {200: answer("A page.", "UserPage", {"users": [_ADA_SHOWN], "cursor": None})}
    counts = {"removed": {"user": 1}, "cancelled": 0, "suppressions": 0, "providers": ["smtp"]}
    erased = {200: answer("Erased everywhere.", "Erased", {"id": "ada", "outcome": "erased"} | counts)}
    totals = {"lines": 3, "created": 1, "replaced": 0, "bad": 1, "bad_lines": [], "done": True}
    lines = {200: answer("Progress after each batch; the last line has the totals.", "Imported", totals, NDJSON)}
    file = {
        "text/csv": content("", "id,email\nada,ada@example.com\n"),
        NDJSON: content("", '{"id":"ada","email":"ada@example.com"}\n'),
    }
    body: Schema = {"required": True, "content": file}
    listing = [query("prefix", "Only ids that start with this."), CURSOR, LIMIT]
    return {
        "/v1/users": {"get": operation("Users", "listUsers", "List", page, parameters=listing)},
        "/v1/users/{id}": _one_user(),
        "/v1/users/{id}/erase": {
            "post": operation("Users", "eraseUser", "Erase all data", erased, "404 413", parameters=[_USER])
        },
        "/v1/users/import": {"post": operation("Users", "importUsers", "Import a file", lines, "415", body=body)},
    }


def _one_user() -> Schema:
    created = {"id": "ada", "outcome": "created"}
    put = {
        201: answer("Created.", "UserOutcome", created, ETag=ETAG, Location=LOCATION),
        200: answer("Replaced.", "UserOutcome", created | {"outcome": "replaced"}, ETag=ETAG),
    }
    patched = {200: answer("Changed.", "UserOutcome", created | {"outcome": "changed"}, ETag=ETAG)}
    deleted = {200: answer("Deleted.", "UserOutcome", created | {"outcome": "deleted"})}
    shown = {200: answer("The user.", "User", _ADA_SHOWN, ETag=ETAG)}
    changing, few = [_USER, IF_MATCH], "404 409 412"
    new = sent("NewUser", _ADA | {"quiet": "22:00-07:00"})
    changes = sent("UserChanges", {"phone": None, "locale": "en"})
    return {
        "get": operation("Users", "showUser", "Show one", shown, "404", parameters=[_USER]),
        "put": operation(
            "Users",
            "putUser",
            "Create or replace",
            put,
            "409 412 413 415",
            parameters=[*changing, IF_NONE_MATCH],
            body=new,
        ),
        "patch": operation(
            "Users", "changeUser", "Change some fields", patched, f"{few} 413 415", parameters=changing, body=changes
        ),
        "delete": operation("Users", "deleteUser", "Delete only the profile", deleted, few, parameters=changing),
    }


# --- templates ---


def _template_paths() -> dict[str, Schema]:
    tag, one = "Templates", "/v1/templates/{name}"
    line = {"name": "reminder", "latest": 1, "changed_at": INSTANT}
    page = {200: answer("A page.", "TemplatePage", {"templates": [line], "cursor": None})}
    shown = {200: answer("The version.", "Template", _VERSION | _NEEDS | {"latest": 1, "changed_at": INSTANT})}
    versions = {200: answer("The latest first.", "TemplateVersions", {"versions": [_VERSION], "cursor": None})}
    stored = {
        201: answer("A new version.", "TemplateOutcome", _STORED, Location=LOCATION),
        200: answer("The same as the latest version.", "TemplateOutcome", _STORED | {"outcome": "unchanged"}),
    }
    gone = {200: answer("All versions are deleted.", "TemplateOutcome", {"name": "reminder", "outcome": "deleted"})}
    text = {"name": "reminder", "channel": "email", "locale": "en", "title": "Hi Ada", "text": "It is nine."}
    rendered = {200: answer("The text; nothing is sent.", "RenderedTemplate", text)}
    which = query("version", "The version; the latest if it is left out.", {"type": "integer", "minimum": 1})
    asked = sent("TemplatePreview", {"channel": "email", "variables": {"name": "Ada", "what": "nine"}})
    named, forced, body = [_TEMPLATE], [_TEMPLATE, _FORCE], sent("NewTemplate", {"parts": _PARTS})
    return {
        "/v1/templates": {"get": operation(tag, "listTemplates", "List", page, parameters=[CURSOR, LIMIT])},
        one: {
            "get": operation(tag, "showTemplate", "Show one", shown, "404", parameters=[_TEMPLATE, which]),
            "put": operation(
                tag, "putTemplate", "Store a new version", stored, "409 413 415", parameters=forced, body=body
            ),
            "delete": operation(tag, "deleteTemplate", "Delete it", gone, "404 409", parameters=forced),
        },
        f"{one}/versions": {
            "get": operation(
                tag, "listVersions", "Its versions", versions, "404", parameters=[_TEMPLATE, CURSOR, LIMIT]
            )
        },
        f"{one}/preview": {
            "post": operation(
                tag, "previewTemplate", "Render it", rendered, "404 413 415", parameters=named, body=asked
            )
        },
    }


# --- notifications and deliveries ---


def _notification_paths() -> dict[str, Schema]:
    tag = "Notifications"
    page = {200: answer("A page.", "NotificationPage", {"notifications": [_SHOWN], "cursor": None})}
    several = answer("It exists already, or is a duplicate; of `users` one for each.", "Accepted", _ACCEPTED)
    several["content"][JSON]["schema"] = {"oneOf": [ref("Accepted"), ref("AcceptedAll")]}
    several["content"][NDJSON] = {"schema": ref("AcceptedLine"), "example": _ACCEPTED | {"line": 1}}
    lines = sent("NewNotification", _NEW)
    lines["content"][NDJSON] = content("", "{...}\n{...}\n")
    new = answer("Accepted and stored durably.", "Accepted", _ACCEPTED, Location=LOCATION)
    names = [
        query("to", "Only this address; a device is `apns:<token>` or `fcm:<token>`."),
        query("template", "Only this template."),
        query("batch", "Only this batch."),
        query("category", "Only this category."),
        choice("priority", "Only this priority.", get_args(Priority)),
    ]
    paused = choice("state", "Only this state.", (*get_args(State), "paused"))
    listing = [_FILTERS[0], paused, CHANNEL, *names, *_TIMES, CURSOR, LIMIT]
    return {
        "/v1/notifications": {
            "post": operation(
                tag,
                "notify",
                "Notify one or several users",
                {201: new, 200: several},
                "409 413 415 422 429",
                parameters=[IDEMPOTENCY],
                body=lines,
            ),
            "get": operation(tag, "listNotifications", "List and search", page, parameters=listing),
        },
        **_one_notification_paths(),
    }


def _one_notification_paths() -> dict[str, Schema]:
    tag, one = "Notifications", "/v1/notifications/{id}"
    shown = {200: answer("The notification with its deliveries.", "Notification", _SHOWN, ETag=ETAG)}
    history = {"history": [{"at": INSTANT, "event": "accepted", "due_at": INSTANT}]}
    story = {200: answer("The notification with its history.", "NotificationExplanation", _SHOWN | history)}
    gone = {200: answer("Nothing more is sent.", "Outcome", {"id": "n_1", "outcome": "cancelled"})}
    outcome = {"id": "n_1", "outcome": "replaced", "due_at": INSTANT}
    about = outcome | {"user": "ada", "channels": ["email"]}
    changed = {
        201: answer(
            "Accepted and stored durably.",
            "NotificationOutcome",
            about | {"outcome": "scheduled"},
            Location=LOCATION,
            ETag=ETAG,
        ),
        200: answer("Replaced, or unchanged.", "NotificationOutcome", about, ETag=ETAG),
    }
    paused = {200: answer("It is held.", "Outcome", outcome | {"outcome": "paused"})}
    resumed = {200: answer("It continues.", "Outcome", outcome | {"outcome": "resumed"})}
    held = [_NOTIFICATION, IF_MATCH]
    return {
        one: {
            "get": operation(tag, "showNotification", "Show one", shown, "404", parameters=[_NOTIFICATION]),
            "put": operation(
                tag,
                "replaceNotification",
                "Add a notification, or replace the pending one with this id",
                changed,
                "409 412 413 415 429",
                parameters=[_NOTIFICATION, _REUSE, IF_MATCH, IF_NONE_MATCH],
                body=sent("NewNotification", _NEW),
            ),
            "patch": operation(
                tag,
                "patchNotification",
                "Change the given fields; null removes one, `at` alone reschedules",
                {200: changed[200]},
                "404 409 412 413 415",
                parameters=[_NOTIFICATION, IF_MATCH],
                body=patch("NewNotification", {"at": "tomorrow 10:00"}),
            ),
            "delete": operation(tag, "cancelNotification", "Cancel", gone, "404 409 412", parameters=held),
        },
        f"{one}/pause": {
            "post": operation(tag, "pauseNotification", "Pause it", paused, "404 409 412 413", parameters=held)
        },
        f"{one}/resume": {
            "post": operation(
                tag, "resumeNotification", "Resume it", resumed, "404 409 412 413", parameters=[*held, MISSED]
            )
        },
        f"{one}/explain": {
            "get": operation(
                tag, "explainNotification", "What happened to it", story, "404", parameters=[_NOTIFICATION]
            )
        },
    }


def _delivery_paths() -> dict[str, Schema]:
    tag, one = "Deliveries", "/v1/deliveries/{name}"
    shown = {200: answer("The delivery.", "Delivery", _SENT)}
    page = {200: answer("A page.", "DeliveryPage", {"deliveries": [_SENT], "cursor": None})}
    again = {"id": "n_1/1", "outcome": "retried", "state": "pending", "due_at": INSTANT}
    retried = {200: answer("It is sent again.", "Retried", again)}
    smtp = {"name": "smtp", "provider": "smtp", "channels": ["email"], "breaker": "closed"}
    served = {"email": ["smtp"], "sms": [], "push": [], "webhook": [], "in_app": []}
    ways = {200: answer("The providers, without secrets.", "Channels", {"providers": [smtp], "channels": served})}
    closed = {200: answer("It is called again.", "BreakerClosed", {"name": "smtp", "outcome": "closed"})}
    whom = [in_path("name", "Name of the provider."), query("receiver", "Of webhooks: one of your receivers.")]
    listing = [*_FILTERS, query("notification", "Only this notification."), *_TIMES, CURSOR, LIMIT]
    retry = operation(tag, "retryDelivery", "Send it again", retried, "404 409 413", parameters=[_DELIVERY])
    close = operation(tag, "closeBreaker", "Close its circuit breaker", closed, "404 413", parameters=whom)
    return {
        "/v1/deliveries": {"get": operation(tag, "listDeliveries", "List", page, parameters=listing)},
        one: {"get": operation(tag, "showDelivery", "Show one", shown, "404", parameters=[_DELIVERY])},
        f"{one}/retry": {"post": retry},
        "/v1/channels": {"get": operation(tag, "listChannels", "Providers and their state", ways)},
        "/v1/channels/{name}/close": {"post": close},
    }


# --- inbox, suppressions, callbacks ---


def _inbox_paths() -> dict[str, Schema]:
    tag, one = "Inbox", "/v1/inbox/{user}"
    line = {"id": "n_1/1", "title": "It is nine", "body": "Good morning, Ada.", "at": INSTANT}
    page = {200: answer("A page.", "InboxPage", {"lines": [line], "cursor": None})}
    count = {200: answer("How many.", "Unread", {"unread": 3, "more": False})}
    marked = {200: answer("Marked.", "MarkedRead", {"user": "ada", "outcome": "read", "read": 3})}
    data = 'id: 1795165200000000.ada/n_1/1\ndata: {"id":"n_1/1",...}\n\n'
    description = "Server-sent events: `data` is a message, `id` the cursor behind it."
    events = {200: answer(description, "", data, "text/event-stream")}
    last = header("Last-Event-ID", "Continue after this event; takes precedence over `cursor`.")
    listing = [_OWNER, switch("unread", "Only unread messages."), CURSOR, LIMIT]
    following = [_OWNER, query("cursor", "Position to start at; now if it is left out."), last]
    read = sent("MarkRead", {"all": True})
    mark = operation(tag, "markRead", "Mark as read", marked, "413 415", parameters=[_OWNER], body=read)
    return {
        one: {"get": operation(tag, "listInbox", "The messages of a user", page, parameters=listing)},
        f"{one}/unread": {"get": operation(tag, "countUnread", "How many are unread", count, parameters=[_OWNER])},
        f"{one}/read": {"post": mark},
        f"{one}/stream": {"get": operation(tag, "followInbox", "Follow", events, parameters=following)},
    }


def _suppression_paths() -> dict[str, Schema]:
    tag, address = "Suppressions", {"channel": "email", "address": "ada@example.com"}
    one = address | {"reason": "bounced: 550", "since": INSTANT}
    page = {200: answer("A page.", "SuppressionPage", {"suppressions": [one], "cursor": None})}
    put = {
        201: answer("Nothing is sent there from now on.", "SuppressionOutcome", address | {"outcome": "suppressed"}),
        200: answer("It was suppressed already.", "SuppressionOutcome", address | {"outcome": "unchanged"}),
    }
    gone = {200: answer("Messages are sent there again.", "SuppressionOutcome", address | {"outcome": "removed"})}
    where = [in_path("channel", "The channel."), in_path("address", "The address, percent-encoded.")]
    of = query("category", "The suppression of one category; that of the whole address if it is left out.")
    body = sent("NewSuppression", {"reason": "asked by telephone"}, required=False)
    return {
        "/v1/suppressions": {
            "get": operation(tag, "listSuppressions", "List", page, parameters=[CHANNEL, CURSOR, LIMIT])
        },
        "/v1/suppressions/{channel}/{address}": {
            "put": operation(tag, "addSuppression", "Suppress it", put, "413", parameters=where, body=body),
            "delete": operation(tag, "removeSuppression", "Send there again", gone, "404", parameters=[*where, of]),
        },
    }


def _callback_paths() -> dict[str, Schema]:
    """Calls without a key: providers are known by a signature, people by a signed link."""
    form = "application/x-www-form-urlencoded"
    counts = {"received": 1, "applied": 1, "unchanged": 0, "kept": 0, "unknown": 0}
    taken = {200: answer("Accepted.", "ReceiptsTaken", counts)}
    receipts = {
        JSON: content("", '{"state":"delivered","message":"n_1/1"}'),
        form: content("", "MessageSid=SM1&MessageStatus=delivered"),
    }
    provider = in_path("provider", "Name of the provider in the settings.")
    tenant = in_path("tenant", "Tenant of the messages, if the provider returns only our own id.")
    token = [in_path("token", "From the link.")]
    foreign = _page("The link is not valid.")
    ask = {200: _page("A page with one button."), 404: foreign}
    done = {200: _page("Unsubscribed."), 404: foreign}
    done[400] = _page("This cannot be unsubscribed from, or the body is not `List-Unsubscribe=One-Click`.")
    click: Schema = {"required": True, "content": {form: content("", "List-Unsubscribe=One-Click")}}
    show = operation("Callbacks", "showUnsubscribe", "Confirm", ask, parameters=token, guarded=False)
    post = operation("Callbacks", "unsubscribe", "One click", done, "413", parameters=token, body=click, guarded=False)
    return {
        "/receipts/{provider}": {"post": _receipts("takeReceipts", taken, [provider], receipts)},
        "/receipts/{provider}/{tenant}": {"post": _receipts("takeTenantReceipts", taken, [provider, tenant], receipts)},
        "/unsubscribe/{token}": {"get": show, "post": post},
    }


def _receipts(name: str, taken: dict[int, Schema], parameters: list[Schema], media: Schema) -> Schema:
    body: Schema = {"required": True, "content": media}
    summary = "Receipts of a provider, with its signature"
    return operation(
        "Callbacks", name, summary, taken, "401 404 413 503", parameters=parameters, body=body, guarded=False
    )


def _page(description: str) -> Schema:
    return answer(description, "", _HTML, "text/html")

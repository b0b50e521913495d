"""The tables of notifications: their columns and indexes, declared once for every store and for the reference page.

Each row has the columns below, and beside them `tenant`, its key, `version` (grows with each change, for
compare-and-set), `until` (when it expires, or NULL) and `body` (the whole value as JSON, which the code reads; the
columns repeat what is searched for, and what an operator may want to query).
"""

from typing import Literal

import msgspec

Value = str | int | None
SHARED = ""  # the tenant of rows that belong to a provider, which knows no tenants; no tenant can have this name


class Column(msgspec.Struct, frozen=True):
    """A column; `kind` is its SQL type. Times are microseconds since 1970, in UTC."""

    name: str
    kind: Literal["text", "integer"]
    about: str


class Index(msgspec.Struct, frozen=True):
    """Finds the rows of a tenant with equal values in `columns`, sorted by `order` (a column of integers) and key.

    With `present`, it has only the rows in which that column is not NULL.
    """

    table: str
    name: str
    columns: tuple[str, ...] = ()
    order: str | None = None
    present: str | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table; `key` is the name of the column that identifies a row within its tenant."""

    name: str
    key: str
    about: str
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...] = ()


def _text(name: str, about: str) -> Column:
    return Column(name, "text", about)


def _integer(name: str, about: str) -> Column:
    return Column(name, "integer", about)


USERS = Index("app_user", "app_user_all")
USERS_BY_EMAIL = Index("app_user", "app_user_email", ("email_key",), present="email_key")
USERS_BY_PHONE = Index("app_user", "app_user_phone", ("phone_key",), present="phone_key")

USER = Table(
    name="app_user",
    key="id",
    about="The people who can be notified.",
    columns=(
        _text("name", "Their name."),
        _text("email", "Their e-mail address."),
        _text("phone", "Their telephone number."),
        _text("webhook", "The URL of their webhook."),
        _text("zone", "Their time zone."),
        _text("locale", "Their language."),
        _text("email_key", "A digest of the normalised e-mail address, by which it is found."),
        _text("phone_key", "A digest of the normalised telephone number, by which it is found."),
    ),
    indexes=(USERS_BY_EMAIL, USERS_BY_PHONE),
)

NOTIFICATIONS = Index("notification", "notification_created", (), "created")
NOTIFICATIONS_BY_USER = Index("notification", "notification_user", ("user_id",), "created", present="user_id")
NOTIFICATIONS_BY_ADDRESS = Index(
    "notification", "notification_address", ("address_key",), "created", present="address_key"
)
NOTIFICATIONS_BY_TEMPLATE = Index("notification", "notification_template", ("template",), "created", present="template")
NOTIFICATIONS_BY_GROUP = Index("notification", "notification_group", ("batch",), "created", present="batch")

NOTIFICATIONS_BY_LOCAL_TIME = Index("notification", "notification_local", ("user_id",), "created", present="is_local")

NOTIFICATION = Table(
    name="notification",
    key="id",
    about="Accepted notifications. When one is due is in its schedule, which has the same id.",
    columns=(
        _text("user_id", "The user that it is for; NULL if it is for an address."),
        _text("address_key", "A digest of the address that it is for, if it is for no user."),
        _text("channels", "The channels that it may leave through, in order, separated by commas."),
        _text("template", "Its template; NULL if it has its own content."),
        _integer("template_version", "The version of the template that it is bound to; NULL: the latest one."),
        _text("category", "Its category, for preferences and unsubscribing."),
        _text("priority", "high, normal or low."),
        _text("batch", "The batch that it belongs to."),
        _integer("created", "When it was accepted."),
        _integer("cancelled", "When it was cancelled."),
        _text("duplicate_of", "The notification whose dedupe key it repeats: it is not sent."),
        _integer("is_local", "1 if its time is local time in the user's time zone; NULL otherwise."),
    ),
    indexes=(
        NOTIFICATIONS,
        NOTIFICATIONS_BY_USER,
        NOTIFICATIONS_BY_ADDRESS,
        NOTIFICATIONS_BY_TEMPLATE,
        NOTIFICATIONS_BY_GROUP,
        NOTIFICATIONS_BY_LOCAL_TIME,
    ),
)

DELIVERIES = Index("delivery", "delivery_due", (), "due")
DELIVERIES_BY_NOTIFICATION = Index("delivery", "delivery_notification", ("notification",), "due")
DELIVERIES_BY_USER = Index("delivery", "delivery_user", ("user_id",), "due", present="user_id")
DELIVERIES_BY_ADDRESS = Index("delivery", "delivery_address", ("address_key",), "due", present="address_key")
DELIVERIES_BY_TROUBLE = Index("delivery", "delivery_trouble", ("trouble",), "due", present="trouble")

DELIVERIES_HELD = Index("delivery", "delivery_held", ("held_for",), "due", present="held_for")

DELIVERY = Table(
    name="delivery",
    key="name",
    about="One occurrence of a notification on its way to its recipient: its state, its attempts and its result.",
    columns=(
        _text("notification", "The notification that it belongs to."),
        _text("user_id", "The user that it is for; NULL if it is for an address."),
        _text("address_key", "A digest of the address that it is for, if it is for no user."),
        _text("channel", "The channel that it leaves through."),
        _text(
            "state", "pending, processing, sent, delivered, bounced, complained, failed, cancelled, expired, skipped."
        ),
        _text("reason", "Why it is in this state."),
        _text("trouble", "The state again if it is failed, bounced, complained or expired; NULL otherwise."),
        _integer("due", "When it was due."),
        _integer("next_try", "When it is tried again."),
        _integer("turn", "How often it was put on the timeline."),
        _integer("attempts", "How often a provider was called."),
        _text("claim_worker", "The worker that has claimed it."),
        _integer("claim_until", "When that claim ends."),
        _text("provider", "The provider that accepted it."),
        _text("provider_id", "The id that the provider gave it."),
        _integer("sent", "When the provider accepted it."),
        _integer("changed", "When the row was last changed."),
        _text("held_for", "The user for the end of whose quiet hours it waits."),
    ),
    indexes=(
        DELIVERIES,
        DELIVERIES_BY_NOTIFICATION,
        DELIVERIES_BY_USER,
        DELIVERIES_BY_ADDRESS,
        DELIVERIES_BY_TROUBLE,
        DELIVERIES_HELD,
    ),
)

SUPPRESSIONS = Index("suppression", "suppression_since", (), "since")
SUPPRESSIONS_BY_CHANNEL = Index("suppression", "suppression_channel", ("channel",), "since")
SUPPRESSIONS_BY_ADDRESS = Index("suppression", "suppression_address", ("address_key",), "since")
SUPPRESSIONS_BY_USER = Index("suppression", "suppression_user", ("user_id",), "since", present="user_id")

SUPPRESSION = Table(
    name="suppression",
    key="id",
    about="Addresses that nothing may be sent to. The id is the channel, the digest of the address, and the category.",
    columns=(
        _text("channel", "The channel of the address."),
        _text("address_key", "The channel and the digest of the normalised address."),
        _text("address", "The address; NULL once its owner was erased."),
        _text("category", "The category that is not sent; NULL: nothing is."),
        _text("user_id", "The user whose address it is, if that is known."),
        _text("reason", "Why."),
        _integer("since", "Since when."),
    ),
    indexes=(SUPPRESSIONS, SUPPRESSIONS_BY_CHANNEL, SUPPRESSIONS_BY_ADDRESS, SUPPRESSIONS_BY_USER),
)

DEDUPE_KEYS_BY_USER = Index("dedupe_key", "dedupe_key_user", ("user_id",), "created", present="user_id")

DEDUPE_KEY = Table(
    name="dedupe_key",
    key="digest",
    about="Dedupe keys in use, as digests of the key and the recipient.",
    columns=(
        _text("notification", "The notification that has the key."),
        _text("user_id", "The user that it is for."),
        _integer("created", "When it was accepted."),
    ),
    indexes=(DEDUPE_KEYS_BY_USER,),
)

TEMPLATES = Index("template", "template_all")

TEMPLATE = Table(
    name="template",
    key="name",
    about="Templates, each with the number of its latest version.",
    columns=(
        _integer("latest", "Its latest version."),
        _integer("changed", "When that version was stored."),
        _integer("deleted", "1 if it was deleted."),
    ),
)

TEMPLATE_VERSION = Table(
    name="template_version",
    key="id",
    about="The versions of templates, which never change. The id is the name, a slash and the number.",
    columns=(_text("template", "The template."), _integer("number", "The number of the version.")),
)

INBOX_BY_USER = Index("inbox", "inbox_user", ("user_id",), "created")
INBOX_UNREAD = Index("inbox", "inbox_unread", ("unread_by",), "created", present="unread_by")

INBOX = Table(
    name="inbox",
    key="id",
    about="The in-app messages of users. The id is the user, a slash and the id of the message.",
    columns=(
        _text("user_id", "The user."),
        _text("unread_by", "The user again while it is unread; NULL otherwise."),
        _text("title", "The title."),
        _integer("created", "When it arrived."),
        _integer("read", "When it was read."),
    ),
    indexes=(INBOX_BY_USER, INBOX_UNREAD),
)

PROVIDER_MESSAGES_BY_USER = Index(
    "provider_message", "provider_message_user", ("user_key",), "created", present="user_key"
)
PROVIDER_MESSAGES_KEPT = Index(
    "provider_message", "provider_message_kept", ("kept_for",), "created", present="kept_for"
)

PROVIDER_MESSAGE = Table(
    name="provider_message",
    key="id",
    about="The ids that providers gave to messages, and receipts that wait for their message; the tenant is empty.",
    columns=(
        _text("owner", "The tenant that the message belongs to."),
        _text("delivery", "Its delivery."),
        _text("user_key", "The tenant and the user."),
        _integer("created", "When the provider accepted it, or its first receipt came."),
        _text("kept_for", "The provider, and the tenant if it is known, while receipts wait for their message."),
    ),
    indexes=(PROVIDER_MESSAGES_BY_USER, PROVIDER_MESSAGES_KEPT),
)

RATE_LIMIT = Table(
    name="rate_limit",
    key="provider",
    about="The token buckets of rate limits, of a provider (the tenant is empty) or of a tenant at a provider.",
    columns=(
        _integer("parts", "What is left, in millionths of a token."),
        _integer("at", "When that was computed."),
    ),
)

CIRCUIT_BREAKERS = Index("circuit_breaker", "circuit_breaker_all")

CIRCUIT_BREAKER = Table(
    name="circuit_breaker",
    key="name",
    about="Circuit breakers that are not closed, of a provider or of one receiver of webhooks.",
    columns=(
        _text("reason", "Why it was opened."),
        _integer("open_until", "When it becomes half-open."),
        _integer("times", "How often in a row it was opened."),
        _text("worker", "The worker that makes the trial call."),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        USER,
        NOTIFICATION,
        DELIVERY,
        SUPPRESSION,
        DEDUPE_KEY,
        TEMPLATE,
        TEMPLATE_VERSION,
        INBOX,
        PROVIDER_MESSAGE,
        RATE_LIMIT,
        CIRCUIT_BREAKER,
    )
}

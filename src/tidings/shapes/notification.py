"""Templates, notifications, their deliveries, and the providers that send them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tidings.domain.names import PriorityName
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import InlineContent, Spread
from tidings.domain.notifications.user import TRANSACTIONAL
from tidings.shapes.fields import AlwaysTrue, Answer, Cursor, Duration, Instant, Sent, about
from tidings.shapes.schedule import Error, Outcome, Timed, TimeShown

Urgency = Literal["asap", "time_sensitive", "digest"]
TemplateVariables = Annotated[dict[str, Any], Meta(examples=[{"what": "nine"}])]

USERS_MAX = 1_000

_URGENCY = (
    "How long after its due time a message is still sent: `asap` always, `time_sensitive` 30 minutes, `digest` a day."
)
_SPREAD = "Of several channels use the first that works, or all of them."
_CONTENT = "What it says, instead of a template: sent as it is."


# --- templates ---


class EmailPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An e-mail in Liquid: a subject, and a body as HTML, as text, or both."""

    subject: Annotated[str, about("The subject.", "Hi {{ name }}")]
    html: Annotated[str | None, about("The body as HTML.")] = None
    text: Annotated[str | None, about("The body as text.", absent="derived from the HTML")] = None


class SmsPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text message in Liquid."""

    text: Annotated[str, about("The text.")]


class PushPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A push message in Liquid."""

    title: Annotated[str, about("The title that the device shows.")]
    body: Annotated[str, about("The text below it.")]
    data: Annotated[dict[str, str], about("Values for the app.", {"screen": "orders"})] = {}


class WebhookPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON document; every text in it is Liquid."""

    body: Annotated[dict[str, Any], about("The document.")]


class InAppPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message for the inbox, in Liquid."""

    title: Annotated[str, about("The title.")]
    body: Annotated[str, about("The text.")]


class Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts by channel and language."""

    email: Annotated[dict[str, EmailPart], about("E-mails, by language.")] = {}
    sms: Annotated[dict[str, SmsPart], about("Text messages, by language.")] = {}
    push: Annotated[dict[str, PushPart], about("Push messages, by language.")] = {}
    webhook: Annotated[dict[str, WebhookPart], about("Webhook documents, by language.")] = {}
    in_app: Annotated[dict[str, InAppPart], about("Messages for the inbox, by language.")] = {}


class NewTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new version of a template."""

    parts: Annotated[Parts, about("What it says, by channel and language.")]
    locale: Annotated[str, about("The language for users whose own language it does not have.")] = "en"
    urgency: Annotated[Urgency | None, about(_URGENCY)] = None
    expires_after: Annotated[
        Duration | None, about("The same as an exact duration: give one of the two.", "2h", absent="as `urgency` says")
    ] = None


class TemplatePreview(Sent, frozen=True, kw_only=True):
    """A template to render."""

    channel: Annotated[ChannelName, about("The channel to render it for.")]
    variables: Annotated[TemplateVariables, about("Values that the template uses, at most 64 KiB.")] = msgspec.field(
        default_factory=dict
    )
    locale: Annotated[str | None, about("The language.", "de", absent="that of the template")] = None
    version: Annotated[int | None, about("The version.", absent="the latest", minimum=1)] = None


# --- responses ---


class Template(Answer, frozen=True, kw_only=True):
    """One version of a template."""

    name: Annotated[str, about("Name of the template.")]
    version: Annotated[int, about("Number of the version, from 1.")]
    locale: Annotated[str, about("The language for users whose own language it does not have.")]
    parts: Annotated[Parts, about("What it says, by channel and language.")]
    urgency: Annotated[Urgency | UnsetType, about(_URGENCY)] = UNSET
    expires_after: Annotated[Duration | UnsetType, about("The same as an exact duration.")] = UNSET
    latest: Annotated[int | UnsetType, about("Number of the latest version.")] = UNSET
    needs: Annotated[list[str] | UnsetType, about("Variables that it requires.")] = UNSET
    channels: Annotated[list[ChannelName] | UnsetType, about("Channels that it has parts for.")] = UNSET
    changed_at: Annotated[Instant | UnsetType, about("When the latest version was stored.")] = UNSET


class TemplateLine(Answer, frozen=True, kw_only=True):
    """A template in a list."""

    name: Annotated[str, about("Name of the template.")]
    latest: Annotated[int, about("Number of the latest version.")]
    changed_at: Annotated[Instant, about("When that was stored.")]


class TemplatePage(Answer, frozen=True, kw_only=True):
    """A page of templates, by name."""

    templates: Annotated[list[TemplateLine], about("The templates.")]
    cursor: Cursor


class TemplateVersions(Answer, frozen=True, kw_only=True):
    """A page of the versions of a template, the latest first."""

    versions: Annotated[list[Template], about("The versions.")]
    cursor: Cursor


class TemplateOutcome(Answer, frozen=True, kw_only=True):
    """What a change of a template did."""

    name: Annotated[str, about("Name of the template.")]
    outcome: Annotated[Literal["stored", "unchanged", "deleted"], about("What happened.")]
    version: Annotated[int | UnsetType, about("Number of the version that is the latest now.")] = UNSET
    needs: Annotated[list[str] | UnsetType, about("Variables that it requires.")] = UNSET
    channels: Annotated[list[ChannelName] | UnsetType, about("Channels that it has parts for.")] = UNSET


class Segments(Answer, frozen=True, kw_only=True):
    """The segments of a text message."""

    encoding: Annotated[str, about("GSM-7 or UCS-2.")]
    units: Annotated[int, about("How many units of that encoding.")]
    count: Annotated[int, about("How many segments.")]


class RenderedTemplate(Answer, frozen=True, kw_only=True):
    """A template as it would be sent."""

    name: Annotated[str, about("Name of the template.")]
    channel: Annotated[ChannelName, about("The channel.")]
    locale: Annotated[str, about("The language that was found.")]
    title: Annotated[str | UnsetType, about("The subject or title.")] = UNSET
    text: Annotated[str | UnsetType, about("The text.")] = UNSET
    html: Annotated[str | UnsetType, about("The text as HTML.")] = UNSET
    data: Annotated[dict[str, str] | UnsetType, about("Values for the app.")] = UNSET
    body: Annotated[msgspec.Raw | UnsetType, about("Of a webhook: the document.")] = UNSET
    segments: Annotated[Segments | UnsetType, about("Of a text message: its segments.")] = UNSET


# --- notifications ---


class NewNotification(Timed, frozen=True, kw_only=True):
    """A notification as it is sent. Unknown fields are refused by name.

    The fields that say when are those of a schedule; local times are in the user's time zone unless a `zone` is given.
    """

    id: Annotated[
        str | None,
        about(
            "Your id for it: 1 to 90 printable ASCII characters without `~`. For several users, the id of the batch.",
            absent="one is generated",
            send="text, or leave it out and one is generated",
        ),
    ] = None
    user: Annotated[str | None, about("Id of the user to notify.", "ada")] = None
    users: Annotated[
        tuple[str, ...],
        about(f"Ids of at most {USERS_MAX:,} users, each notified in their own time zone.", ["ada", "bob"]),
    ] = ()
    to: Annotated[
        str | Device | None,
        about("An address instead of a user, with its `channel`.", "ada@example.com"),
    ] = None
    channel: Annotated[
        ChannelName | None,
        about("Channel to use.", absent="those that the template has and that reach the user"),
    ] = None
    channels: Annotated[
        Annotated[tuple[ChannelName, ...], Meta(extra_json_schema={"minItems": 1})] | Literal["all"] | None,
        about('Several channels in order of preference, or `"all"`.', ["email", "sms"]),
    ] = None
    spread: Annotated[Spread | None, about(_SPREAD, absent="`first`")] = None
    template: Annotated[str | None, about("Name of the template.", "reminder")] = None
    version: Annotated[
        int | Literal["current"] | None,
        about(
            'Version of the template: a number, or `"current"` for the latest now.',
            "current",
            absent="the latest when it is sent",
        ),
    ] = None
    variables: Annotated[
        TemplateVariables,
        about("Values that the template uses, at most 64 KiB. A variable that is missing in any language is refused."),
    ] = msgspec.field(default_factory=dict)
    content: Annotated[InlineContent | None, about(_CONTENT, {"title": "Tea", "text": "Tea is ready."})] = None
    words: Annotated[InlineContent | None, about("Deprecated: the former name of `content`.", deprecated=True)] = None
    at: Annotated[
        int | str | None,
        about(
            "When it is due: an instant with an offset, a duration from now, or a local time such as "
            "`2026-11-20T09:00:00`, `tomorrow 09:00` or `monday 8:30`.",
            "tomorrow 09:00",
            "2026-11-20T09:00:00Z",
            absent="now",
        ),
    ] = None  # type: ignore[assignment]
    scheduled_at: Annotated[
        int | str | None, about("Another name for `at`: give only one of them.", "tomorrow 09:00")
    ] = None  # type: ignore[assignment]
    zone: Annotated[
        str | None,
        about(
            "The IANA time zone in which local times, rules and cron expressions are read.",
            "Europe/Berlin",
            absent="that of the user",
        ),
    ] = None
    rdates: Annotated[tuple[str, ...], about("Additional moments.", ["2026-12-25T09:00:00"], absent="none")] = ()
    exdates: Annotated[tuple[str, ...], about("Moments and dates to leave out.", ["2026-12-25"], absent="none")] = ()
    expires_after: Annotated[
        Duration | None,
        about("How long after its due time it is still sent.", absent="as the template says"),
    ] = None
    priority: Annotated[
        PriorityName, about("Priority: `high` is never queued behind the others, and passes quiet hours.")
    ] = "normal"
    category: Annotated[
        str, about("Category that users' preferences refer to. Users cannot opt out of `transactional`.")
    ] = TRANSACTIONAL
    dedupe_key: Annotated[
        str | None,
        about("A second notification with this key to the same recipient is skipped, unless the first was cancelled."),
    ] = None
    dedupe_window: Annotated[
        Duration | None,
        about("How long a second notification with the same `dedupe_key` is skipped.", "PT1H", absent="`P1D`"),
    ] = None
    locale: Annotated[str | None, about("Language to use.", "de", absent="that of the user")] = None
    collapse: Annotated[
        str | None, about("Collapse key: a device shows only the latest of the messages with the same key.")
    ] = None
    batch: Annotated[str | None, about("A name to find several notifications by.")] = None


class Accepted(Answer, frozen=True, kw_only=True):
    """What happened to a notification for one recipient."""

    id: Annotated[str, about("Id of the notification.", "n_1")]
    outcome: Annotated[Literal["scheduled", "unchanged", "skipped", "rejected", "conflict"], about("What happened.")]
    user: Annotated[str | UnsetType, about("Id of the user.")] = UNSET
    due_at: Annotated[Instant | UnsetType, about("When it is due.")] = UNSET
    due_at_local: Annotated[
        str | UnsetType, about("`due_at` in its time zone, with the offset from UTC.", "2026-11-20T09:00:00-05:00")
    ] = UNSET
    channels: Annotated[list[ChannelName] | UnsetType, about("Channels, in the order in which they are tried.")] = UNSET
    reason: Annotated[str | UnsetType, about("Why.")] = UNSET
    first: Annotated[str | UnsetType, about("Of a duplicate: the notification that it would repeat.")] = UNSET
    batch: Annotated[str | UnsetType, about("Its batch.")] = UNSET
    note: Annotated[
        str | UnsetType,
        about("A remark: its time has passed, does not exist that day, or its e-mail has no unsubscribe link."),
    ] = UNSET
    state: Annotated[State | UnsetType, about("Of one that is `unchanged`: its state. It may have been cancelled.")] = (
        UNSET
    )
    errors: Annotated[list[Error] | UnsetType, about("Of one that is `rejected`: what is wrong, by field.")] = UNSET


class AcceptedLine(Accepted, frozen=True, kw_only=True):
    """The outcome of one line. A refused one has `errors`.

    If the rest of the body could not be accepted, the last line is a problem.
    """

    id: Annotated[str | UnsetType, about("Id of the notification, if it is known.")] = UNSET  # type: ignore[assignment]
    line: Annotated[int, about("Number of the line (empty ones count), from 1.", minimum=1)]
    type: Annotated[str | UnsetType, about("The kind of problem.")] = UNSET
    title: Annotated[str | UnsetType, about("Title of the problem.")] = UNSET
    status: Annotated[int | UnsetType, about("Status of the problem.")] = UNSET
    detail: Annotated[str | UnsetType, about("What the problem is.")] = UNSET


class NotificationOutcome(Outcome, frozen=True, kw_only=True):
    """What a change of a notification did."""

    id: Annotated[str, about("Id of the notification.", "n_1")]
    user: Annotated[str | UnsetType, about("Id of the user.")] = UNSET
    due_at_local: Annotated[
        str | UnsetType, about("`due_at` in its time zone, with the offset from UTC.", "2026-11-20T09:00:00-05:00")
    ] = UNSET
    channels: Annotated[list[ChannelName] | UnsetType, about("Channels, in the order in which they are tried.")] = UNSET


class AcceptedAll(Answer, frozen=True, kw_only=True):
    """What happened to a notification for each of several users."""

    batch: Annotated[
        str | None, about("Batch that they belong to; null if none was accepted, and neither `id` nor `batch` given.")
    ]
    notifications: Annotated[list[Accepted], about("One for each, in the order of `users`.")]


# --- deliveries ---


class Attempt(Answer, frozen=True, kw_only=True):
    """One call of a provider. Without `ended_at` it is in progress, or was interrupted."""

    number: Annotated[int, about("Its number, from 1.")]
    channel: Annotated[ChannelName, about("The channel.")]
    provider: Annotated[str, about("Name of the provider.")]
    begun_at: Annotated[Instant, about("When it was recorded, before the call.")]
    ended_at: Annotated[Instant | UnsetType, about("When the provider answered.")] = UNSET
    outcome: Annotated[str | UnsetType, about("`accepted`, or why it failed.")] = UNSET
    detail: Annotated[str | UnsetType, about("What the provider said.")] = UNSET
    provider_id: Annotated[str | UnsetType, about("The provider's id for the message.")] = UNSET
    may_have_arrived: Annotated[
        AlwaysTrue | UnsetType, about("It failed, and it is not known whether the provider accepted the message.")
    ] = UNSET


class DevicePart(Answer, frozen=True, kw_only=True):
    """One of several devices of a push message."""

    number: Annotated[int, about("Its number.")]
    outcome: Annotated[Literal["accepted", "refused"] | UnsetType, about("What happened.")] = UNSET
    provider_id: Annotated[str | UnsetType, about("The provider's id for the message.")] = UNSET


class ProviderEvent(Answer, frozen=True, kw_only=True):
    """What a provider reported after it had accepted a message."""

    at: Annotated[Instant, about("When it happened.")]
    state: Annotated[str, about("What happened.", "delivered")]
    reason: Annotated[str | UnsetType, about("Why.")] = UNSET


class Delivery(Answer, frozen=True, kw_only=True):
    """One occurrence of a notification, on its way or finished."""

    name: Annotated[
        str,
        about(
            "Its name: id of the notification, a slash, number of the occurrence; after a change with the generation "
            "before it (`n_1/2.1`).",
            "n_1/1",
        ),
    ]
    notification: Annotated[str, about("Id of the notification.")]
    state: Annotated[State, about("Its state.")]
    due_at: Annotated[Instant, about("When it was due.")]
    attempts: Annotated[list[Attempt], about("Every call of a provider.")]
    reason: Annotated[str | UnsetType, about("Why it is in that state.")] = UNSET
    channel: Annotated[ChannelName | UnsetType, about("The channel.")] = UNSET
    user: Annotated[str | UnsetType, about("Id of the user.")] = UNSET
    address: Annotated[str | UnsetType, about("Address that it was sent to.")] = UNSET
    provider: Annotated[str | UnsetType, about("Name of the provider.")] = UNSET
    provider_id: Annotated[str | UnsetType, about("The provider's id for the message.")] = UNSET
    next_try_at: Annotated[Instant | UnsetType, about("When it is tried again.")] = UNSET
    sent_at: Annotated[Instant | UnsetType, about("When a provider accepted it.")] = UNSET
    late_ms: Annotated[float | UnsetType, about("How long after `due_at` that was, in milliseconds.")] = UNSET
    changed_at: Annotated[Instant | UnsetType, about("When it last changed.")] = UNSET
    devices: Annotated[list[DevicePart] | UnsetType, about("Of a push message: each device.")] = UNSET
    news: Annotated[list[ProviderEvent] | UnsetType, about("What the provider reported later.")] = UNSET


class DeliveryPage(Answer, frozen=True, kw_only=True):
    """A page of deliveries, the last due first."""

    deliveries: Annotated[list[Delivery], about("The deliveries.")]
    cursor: Cursor


class Retried(Answer, frozen=True, kw_only=True):
    """A delivery that is sent again."""

    id: Annotated[str, about("Name of the delivery.")]
    outcome: Annotated[Literal["retried"], about("What happened.")]
    state: Annotated[State, about("Its state.")]
    due_at: Annotated[Instant | UnsetType, about("When it is sent.")] = UNSET


# --- notifications as they are shown ---


class Notification(TimeShown, frozen=True, kw_only=True):
    """A notification and its state. While it is pending, one by itself has the fields that say when."""

    id: Annotated[str, about("Its id.", "n_1")]
    state: Annotated[State, about("Its state.")]
    channels: Annotated[list[ChannelName], about("Channels, in the order in which they are tried.")]
    spread: Annotated[Spread, about(_SPREAD)]
    priority: Annotated[PriorityName, about("Its priority.")]
    category: Annotated[str, about("Its category.")]
    accepted_at: Annotated[Instant, about("When it was accepted.")]
    deliveries: Annotated[list[Delivery], about("Its deliveries, the latest last; in lists only the last ones.")]
    reason: Annotated[str | UnsetType, about("Why it is in that state.")] = UNSET
    due_at: Annotated[Instant | UnsetType, about("When it is due, or was.")] = UNSET
    due_at_local: Annotated[
        str | UnsetType, about("`due_at` in its time zone, with the offset from UTC.", "2026-11-20T09:00:00-05:00")
    ] = UNSET
    occurrence: Annotated[int | UnsetType, about("Number of the occurrence, if it recurs.")] = UNSET
    user: Annotated[str | UnsetType, about("Id of the user.")] = UNSET
    to: Annotated[str | Device | UnsetType, about("Address that it is sent to, instead of a user.")] = UNSET
    template: Annotated[str | UnsetType, about("Name of the template.")] = UNSET
    version: Annotated[int | UnsetType, about("Version of the template, if one was given.")] = UNSET
    variables: Annotated[dict[str, Any] | UnsetType, about("Values that the template uses.")] = UNSET
    content: Annotated[InlineContent | UnsetType, about(_CONTENT)] = UNSET
    expires_after: Annotated[Duration | UnsetType, about("How long after its due time it is still sent.")] = UNSET
    locale: Annotated[str | UnsetType, about("Its language.")] = UNSET
    collapse: Annotated[str | UnsetType, about("Its collapse key.")] = UNSET
    batch: Annotated[str | UnsetType, about("Its batch.")] = UNSET
    cancelled_at: Annotated[Instant | UnsetType, about("When it was cancelled.")] = UNSET
    first: Annotated[str | UnsetType, about("Of a duplicate: the notification that it would repeat.")] = UNSET


class NotificationEvent(Answer, frozen=True, kw_only=True):
    """One entry of the history of a notification."""

    at: Annotated[Instant, about("When it happened.")]
    event: Annotated[str, about("What happened.", "accepted")]
    delivery: Annotated[str | UnsetType, about("Name of the delivery.")] = UNSET
    attempt: Annotated[int | UnsetType, about("Number of the attempt.")] = UNSET
    channel: Annotated[ChannelName | UnsetType, about("The channel.")] = UNSET
    provider: Annotated[str | UnsetType, about("Name of the provider.")] = UNSET
    provider_id: Annotated[str | UnsetType, about("The provider's id for the message.")] = UNSET
    due_at: Annotated[Instant | UnsetType, about("When it is due, or is tried again.")] = UNSET
    reason: Annotated[str | UnsetType, about("Why.")] = UNSET
    late_ms: Annotated[float | UnsetType, about("How long after its due time, in milliseconds.")] = UNSET


class NotificationExplanation(Notification, frozen=True, kw_only=True):
    """A notification and its history."""

    history: Annotated[list[NotificationEvent], about("What happened to it, oldest first.")]


class NotificationPage(Answer, frozen=True, kw_only=True):
    """A page of notifications, the latest first, without their variables and content."""

    notifications: Annotated[list[Notification], about("The notifications.")]
    cursor: Cursor


# --- providers ---


class Rate(Answer, frozen=True, kw_only=True):
    """A rate limit."""

    per_s: Annotated[float, about("Messages a second.")]
    burst: Annotated[int, about("Messages at once.")]


class Receiver(Answer, frozen=True, kw_only=True):
    """A receiver of webhooks whose circuit breaker is not closed."""

    receiver: Annotated[str, about("Scheme, host and port.", "https://example.com")]
    breaker: Annotated[Literal["open", "half_open"], about("State of its circuit breaker.")]
    reason: Annotated[str, about("Why it is not called.")]
    until: Annotated[Instant | UnsetType, about("Of an open one: when it is called again.")] = UNSET


class Provider(Answer, frozen=True, kw_only=True):
    """A provider and its state. Secrets are never shown."""

    name: Annotated[str, about("Its name in the settings.", "smtp")]
    provider: Annotated[str, about("Its kind.", "smtp")]
    channels: Annotated[list[ChannelName], about("Channels that it serves.")]
    breaker: Annotated[Literal["closed", "open", "half_open"], about("State of its circuit breaker.")]
    until: Annotated[Instant | UnsetType, about("Of an open one: when it is called again.")] = UNSET
    reason: Annotated[str | UnsetType, about("Why it is not called.")] = UNSET
    limit: Annotated[Rate | UnsetType, about("Rate limit for all tenants together.")] = UNSET
    tenant_limit: Annotated[Rate | UnsetType, about("Rate limit for your tenant.")] = UNSET
    receivers: Annotated[
        list[Receiver] | UnsetType,
        about("Of webhooks: your receivers whose circuit breaker is not closed, at most 100."),
    ] = UNSET
    more_receivers: Annotated[AlwaysTrue | UnsetType, about("There are more receivers than are shown.")] = UNSET


class Channels(Answer, frozen=True, kw_only=True):
    """The providers, and which of them serve each channel."""

    providers: Annotated[list[Provider], about("The providers, in the order in which they are tried.")]
    channels: Annotated[dict[str, list[str]], about("Names of the providers, by channel.", {"email": ["smtp"]})]
    warnings: Annotated[list[str] | UnsetType, about("What the configuration lacks, and what to change.")] = UNSET


class BreakerClosed(Answer, frozen=True, kw_only=True):
    """A provider, or a receiver of webhooks, that is called again."""

    name: Annotated[str, about("Name of the provider.")]
    outcome: Annotated[Literal["closed", "unchanged"], about("`unchanged` if it was closed already.")]
    receiver: Annotated[str | UnsetType, about("The receiver.")] = UNSET


class ReceiptsTaken(Answer, frozen=True, kw_only=True):
    """What happened to the receipts of a provider."""

    received: Annotated[int, about("How many receipts there were.")]
    applied: Annotated[int, about("How many changed something.")]
    unchanged: Annotated[int, about("How many were known already, or came too late.")]
    kept: Annotated[int, about("How many refer to no message yet; they are kept for 10 minutes.")]
    unknown: Annotated[int, about("How many refer to nothing that is known here.")]

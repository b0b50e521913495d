"""Templates: what a message says, by channel and language."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tidings.domain.notifications.message import ChannelName
from tidings.shapes.fields import Answer, Cursor, Duration, Instant, Sent, about

Urgency = Literal["asap", "time_sensitive", "digest"]

TemplateVariables = Annotated[dict[str, Any], Meta(examples=[{"what": "nine"}])]

_URGENCY = (
    "How long after its due time a message is still sent: `asap` always, `time_sensitive` 30 minutes, `digest` a day."
)


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

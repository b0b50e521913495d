"""What people are told, in the API's description: templates, notifications, their deliveries, and the ways out."""

from typing import get_args

from tidings.delivery.templates.parts import Urgency
from tidings.domain.delivery import State
from tidings.domain.notification import Priority, Spread
from tidings.edges.http.openapi.people import CHANNEL, NEXT
from tidings.edges.http.openapi.schedules import AT, COUNT, EVERY, PAST, RULE, nullable
from tidings.edges.http.openapi.shapes import Schema, array, instant, number, or_null, ref, shape, text
from tidings.wires.document import POLICIES

_ANYTHING: Schema = {"type": "object", "additionalProperties": {}}
_VARIABLES = _ANYTHING | {"description": "What the template may use, at most 64 KiB."}
_STATE = text("How it stands.", enum=list(get_args(State)))
_CHANNELS = array(CHANNEL, "In the order in which they are tried.")
_NAME = text("The template's name.")
_TO: Schema = {"description": "A bare address of the one channel.", "oneOf": [text("An address."), ref("Device")]}


def _by_language(part: str) -> Schema:
    return {"type": "object", "description": "By language.", "additionalProperties": ref(part)}


def _duration(description: str) -> Schema:
    return text(f"{description} ISO 8601 or short: `PT1H`, `90s`.", examples=["PT1H"])


_MOMENT: Schema = {
    "description": f"{AT['description']} On her clocks: `2026-11-20T09:00:00`, `tomorrow 09:00`, `monday 8:30`.",
    "oneOf": [or_null(text("As text.", examples=["tomorrow 09:00"])), number("Microseconds since 1970.")],
}
_ASKED: dict[str, Schema] = {
    "id": or_null(text("Its name, at most 90 printable ASCII characters; of several users that of the batch.")),
    "user": or_null(text("Whom: one user.")),
    "users": array(text("A user."), "Whom: each gets her own, on her own clocks. At most 1,000."),
    "to": {"description": _TO["description"], "oneOf": [or_null(text("An address.")), ref("Device")]},
    "channel": or_null(CHANNEL) | {"enum": [*CHANNEL["enum"], None]},
    "channels": {
        "description": "Several in order, or all that can be used.",
        "oneOf": [_CHANNELS | {"minItems": 1}, {"type": "string", "const": "all"}, {"type": "null"}],
    },
    "spread": or_null(text("The first that works, or each.", enum=[*get_args(Spread), None])),
    "template": or_null(text("What: a template.")),
    "version": {
        "description": "Of the template; absent: the latest when it is sent, `current`: the latest now.",
        "oneOf": [or_null(number("A version.")), {"type": "string", "const": "current"}],
    },
    "variables": _VARIABLES,
    "words": {"description": "What: words as they are.", "oneOf": [ref("Words"), {"type": "null"}]},
    "at": _MOMENT,
    "scheduled_at": _MOMENT,
    "every": or_null(EVERY),
    "count": or_null(COUNT),
    **nullable(RULE),
    "rdates": RULE["rdates"],
    "exdates": RULE["exdates"],
    "late": or_null(text("What becomes of what was missed.", enum=[*POLICIES, None])),
    "late_grace": or_null(_duration("How late `skip` still releases.")),
    "late_max": or_null(_duration("How late anything is still released.")),
    "jitter": or_null(_duration("Spreads due times over this window.")),
    "past": or_null(PAST),
    "priority": text("Who goes first.", enum=list(get_args(Priority)), default="normal"),
    "category": text("What preferences are asked about.", default="transactional"),
    "dedupe_key": or_null(text("A second one under this key, for the same person, is skipped.")),
    "dedupe_window": or_null(_duration("For how long; a day without it.")),
    "expires_after": or_null(_duration("After that nobody wants it.")),
    "locale": or_null(text("Instead of her own language.")),
    "collapse": or_null(text("Of those with one such key a device shows the latest.")),
    "batch": or_null(text("A name to find several by.")),
}
_STANDING: dict[str, Schema] = {
    "id": text("Its id."),
    "state": _STATE,
    "reason": text("Why."),
    "due_at": instant("When it is due, or was."),
    "due_at_local": text("What the clocks of its zone show then."),
    "occurrence": number("Which one of several."),
    "channels": _CHANNELS,
    "user": text("For whom."),
    "to": _TO,
    "template": _NAME,
    "version": number("The version that was pinned."),
    "variables": _VARIABLES,
    "words": ref("Words"),
    "spread": text("The first that works, or each.", enum=list(get_args(Spread))),
    "priority": text("Who goes first.", enum=list(get_args(Priority))),
    "category": text("Its category."),
    "expires_after": text("How long it is wanted."),
    "locale": text("Its language."),
    "collapse": text("Its collapse key."),
    "batch": text("Its batch."),
    "accepted_at": instant("When it was taken."),
    "cancelled_at": instant("When it was cancelled."),
    "first": text("Of a duplicate: the notification that it would repeat."),
    "deliveries": array(ref("Delivery"), "The latest last; in lists only the last ones."),
}
_STANDING_REQUIRED = "id state channels priority category spread accepted_at deliveries"

SCHEMAS: dict[str, Schema] = {
    "EmailPart": shape(
        "Liquid: a subject, and html, text or both.",
        "subject",
        subject=text("The subject."),
        html=or_null(text("As HTML.")),
        text=or_null(text("As text.")),
    ),
    "SmsPart": shape("Liquid.", "text", text=text("The words.")),
    "PushPart": shape(
        "Liquid.",
        "title body",
        title=text("What a device shows."),
        body=text("Below it."),
        data={"type": "object", "additionalProperties": {"type": "string"}},
    ),
    "WebhookPart": shape("Every text in it is Liquid.", "body", body=_ANYTHING),
    "InAppPart": shape("Liquid.", "title body", title=text("The line."), body=text("What it opens to.")),
    "Parts": shape(
        "By channel and language.",
        "",
        email=_by_language("EmailPart"),
        sms=_by_language("SmsPart"),
        push=_by_language("PushPart"),
        webhook=_by_language("WebhookPart"),
        in_app=_by_language("InAppPart"),
    ),
    "NewTemplate": shape(
        "A new version.",
        "parts",
        parts=ref("Parts"),
        locale=text("The language for whom there is no better one.", default="en"),
        urgency=or_null(text("How long it is worth sending.", enum=[*get_args(Urgency), None])),
        expires_after=or_null(_duration("The same, said exactly; one of the two.")),
    ),
    "Template": shape(
        "One version.",
        "name version locale parts",
        name=_NAME,
        version=number("Its number, from 1."),
        locale=text("Its own language."),
        urgency=text("How long it is worth sending.", enum=list(get_args(Urgency))),
        expires_after=text("The same, said exactly."),
        parts=ref("Parts"),
        latest=number("The latest version."),
        needs=array(text("A variable."), "What it cannot do without."),
        channels=array(CHANNEL, "Where it has something to say."),
        changed_at=instant("When the latest version was put."),
    ),
    "TemplatePage": shape("Some, by name.", "templates cursor", templates=array(ref("TemplateLine")), cursor=NEXT),
    "TemplateLine": shape(
        "A template in a list.",
        "name latest changed_at",
        name=_NAME,
        latest=number("The latest version."),
        changed_at=instant("When that was put."),
    ),
    "TemplateVersions": shape(
        "Its versions, the latest first.", "versions cursor", versions=array(ref("Template")), cursor=NEXT
    ),
    "TemplateOutcome": shape(
        "What happened.",
        "name outcome",
        name=_NAME,
        outcome=text("What was done.", enum=["stored", "unchanged", "deleted"]),
        version=number("The version that is the latest now."),
        needs=array(text("A variable."), "What it cannot do without."),
        channels=array(CHANNEL, "Where it has something to say."),
    ),
    "TemplatePreview": shape(
        "What to show.",
        "channel",
        channel=CHANNEL,
        variables=_VARIABLES,
        locale=or_null(text("In which language.")),
        version=or_null(number("Which version; the latest without it.", minimum=1)),
    ),
    "TemplateSaid": shape(
        "What it would say.",
        "name channel locale",
        name=_NAME,
        channel=CHANNEL,
        locale=text("The language that was found."),
        title=text("Its subject or title."),
        text=text("Its words."),
        html=text("The same as HTML."),
        data={"type": "object", "additionalProperties": {"type": "string"}},
        body={"description": "Of a webhook: its document."},
        segments=shape(
            "What a text message takes.",
            "encoding units count",
            encoding=text("GSM-7 or UCS-2."),
            units=number("Of that encoding."),
            count=number("How many segments."),
        ),
    ),
    "Words": shape(
        "Words instead of a template.",
        "text",
        text=text("What it says."),
        title=text("Its subject or title."),
        html=or_null(text("The same as HTML.")),
        data=_ANYTHING,
    ),
    "NewNotification": shape("What somebody is to be told. Unknown fields are refused by name.", "", **_ASKED),
    "Accepted": shape(
        "What became of it for one person.",
        "id outcome",
        id=text("Its id."),
        outcome=text("What happened.", enum=["scheduled", "unchanged", "skipped", "rejected", "conflict"]),
        user=text("For whom."),
        due_at=instant("When it is due."),
        due_at_local=text("What the clocks of its zone show then."),
        channels=_CHANNELS,
        reason=text("Why."),
        first=text("Of a duplicate: the notification that it would repeat."),
        batch=text("Its batch."),
        note=text("What to know of its time, such as that clocks jump over it."),
        state=text("Of what is unchanged: how it stands, for it may be cancelled.", enum=_STATE["enum"]),
        errors=array(ref("Error"), "Of what was rejected, by field."),
    ),
    "AcceptedAll": shape(
        "What became of it for each.",
        "batch notifications",
        batch=or_null(text("What finds them all; null if nobody was accepted, and no name was given.")),
        notifications=array(ref("Accepted"), "In the order of `users`."),
    ),
    "Notification": shape("A notification as it stands.", _STANDING_REQUIRED, **_STANDING),
    "NotificationPage": shape(
        "Some, the latest first, without what they say.",
        "notifications cursor",
        notifications=array(ref("Notification")),
        cursor=NEXT,
    ),
    "Story": shape(
        "A notification and what happened to it.",
        f"{_STANDING_REQUIRED} history",
        **_STANDING,
        history=array(ref("StoryLine"), "Oldest first."),
    ),
    "StoryLine": shape(
        "Something that happened.",
        "at event",
        at=instant("When."),
        event=text("What."),
        delivery=text("To which delivery."),
        attempt=number("In which attempt."),
        channel=CHANNEL,
        provider=text("Through what."),
        provider_id=text("What the provider calls it."),
        due_at=instant("When it is due, or goes on."),
        reason=text("Why."),
        late_ms={"type": "number", "description": "How far behind its due time."},
    ),
}

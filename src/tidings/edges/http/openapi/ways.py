"""Deliveries and the ways out, in the API's description."""

from typing import get_args

from tidings.domain.delivery import State
from tidings.edges.http.openapi.people import CHANNEL, NEXT
from tidings.edges.http.openapi.shapes import Schema, array, instant, number, ref, shape, text

_LIMIT = shape(
    "How much it may do.",
    "per_s burst",
    per_s={"type": "number", "description": "So many a second."},
    burst=number("So many at once."),
)
_PROVIDER = text("The provider, as it is called in the settings.")
_PROVIDER_ID = text("What the provider calls it.")

SCHEMAS: dict[str, Schema] = {
    "Delivery": shape(
        "One occurrence on its way, or at its end.",
        "name notification state due_at attempts",
        name=text("Its name: the notification, a slash, and the number of the occurrence."),
        notification=text("Of which notification."),
        state=text("How it stands.", enum=list(get_args(State))),
        reason=text("Why."),
        channel=CHANNEL,
        user=text("For whom."),
        address=text("Where it went."),
        provider=_PROVIDER,
        provider_id=_PROVIDER_ID,
        due_at=instant("When it should have left."),
        next_try_at=instant("When it is tried again."),
        sent_at=instant("When a provider took it."),
        late_ms={"type": "number", "description": "How much later than due that was."},
        changed_at=instant("When it changed last."),
        attempts=array(ref("Attempt"), "Each call of a provider."),
        devices=array(ref("DevicePart"), "Of a push: each device."),
        news=array(ref("News"), "What the provider told later."),
    ),
    "Attempt": shape(
        "One call of a provider; without an end it is under way, or was cut off.",
        "number channel provider begun_at",
        number=number("From 1."),
        channel=CHANNEL,
        provider=_PROVIDER,
        begun_at=instant("When it was written down, before the call."),
        ended_at=instant("When the answer was there."),
        outcome=text("`accepted`, or the reason why not."),
        detail=text("What the provider said."),
        provider_id=_PROVIDER_ID,
        may_have_arrived={"const": True, "description": "That it failed without our knowing whether it was taken."},
    ),
    "DevicePart": shape(
        "One of several devices.",
        "number",
        number=number("Its number."),
        outcome=text("What became of it.", enum=["accepted", "refused"]),
        provider_id=_PROVIDER_ID,
    ),
    "News": shape(
        "What a provider told later.", "at state", at=instant("When."), state=text("What."), reason=text("Why.")
    ),
    "DeliveryPage": shape(
        "Some, those due last first.", "deliveries cursor", deliveries=array(ref("Delivery")), cursor=NEXT
    ),
    "Retried": shape(
        "It goes again.",
        "id outcome state",
        id=text("The delivery's name."),
        outcome={"const": "retried"},
        state=text("How it stands.", enum=list(get_args(State))),
        due_at=instant("When it goes."),
    ),
    "Provider": shape(
        "A provider as it stands. No secret is ever shown.",
        "name provider channels breaker",
        name=_PROVIDER,
        provider=text("What it is, such as `smtp`."),
        channels=array(CHANNEL, "What it serves."),
        breaker=text("Whether it is called.", enum=["closed", "open", "half_open"]),
        until=instant("Of an open one: until when it is not called."),
        reason=text("Why it is not."),
        limit=_LIMIT,
        tenant_limit=_LIMIT,
        receivers=array(ref("Receiver"), "Of webhooks: your receivers whose breaker is not closed."),
        more_receivers={"const": True, "description": "There are more of them than are shown."},
    ),
    "Receiver": shape(
        "One who receives webhooks and is left alone.",
        "receiver breaker reason",
        receiver=text("Scheme, host and port."),
        breaker=text("Whether it is called.", enum=["open", "half_open"]),
        until=instant("Of an open one: until when it is not called."),
        reason=text("Why it is not."),
    ),
    "BreakerClosed": shape(
        "A provider, or a receiver, that is called again.",
        "name outcome",
        name=_PROVIDER,
        receiver=text("The receiver."),
        outcome=text("`unchanged` if it was closed.", enum=["closed", "unchanged"]),
    ),
    "Channels": shape(
        "The providers, and who serves which channel.",
        "providers channels",
        providers=array(ref("Provider"), "In the order in which they are tried."),
        channels={"type": "object", "additionalProperties": array(text("A provider."))},
        warnings=array(text("What to change.")) | {"description": "What is missing in the configuration."},
    ),
    "ReceiptsTaken": shape(
        "What was taken.",
        "received applied unchanged unknown",
        received=number("How many receipts there were."),
        applied=number("How many changed something."),
        unchanged=number("How many were told before, or come late."),
        unknown=number("How many are about nothing that we know."),
    ),
}

"""Whom the benchmarks tell, and what: one order for everybody, about 1 KB, with a mark that tells them apart."""

import re

import msgspec

from bench import render
from tidings.clock import Clock
from tidings.delivery.templates import EmailPart, Parts, Template, WebhookPart
from tidings.domain.notifications.user import Quiet, User

NAME = "order"
CATEGORY = "orders"
SENDER = "orders@example.com"
DAY_MINUTES = 1_440
QUIET_FROM_NOW = 600  # minutes: hours that are looked at, and never the ones in which this runs

# The number of the person, the due time, and the priority: how a receiver knows which one it got.
MARK = re.compile(rb"mark:(\d+):(\d+):(\w+)")

_MARK = "mark:{{ number }}:{{ due }}:{{ urgency }}"
_BODY = {
    "mark": _MARK,
    "subject": render.SUBJECT,
    "text": render.WORDS + "It was packed with care, and every part of it can be sent back for thirty days. " * 6,
}
PARTS = Parts(
    email={"en": EmailPart(render.SUBJECT, render.PAGE.replace("{filler}", ""), f"{render.WORDS}\n{_MARK}\n")},
    webhook={"en": WebhookPart(_BODY)},
)
TEMPLATE = Template(NAME, PARTS)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """One message that arrived: for whom, when it was due, how urgent it was, and when it was here."""

    number: int
    due: int
    urgency: str
    at: int


class Took(msgspec.Struct, frozen=True, array_like=True):
    """How many a second, and the CPU of the sending process for each, which others on the machine change less."""

    per_s: float
    cpu_us: float


def variables(due: int, urgency: str) -> dict[str, object]:
    """What is the same for all of a batch."""
    return {name: value for name, value in render.VARIABLES.items() if name != "name"} | {
        "due": due,
        "urgency": urgency,
    }


def user_id(number: int) -> str:
    return f"u{number:08d}"


def person(number: int, port: int, clock: Clock) -> User:
    """Somebody with wishes, who is reached at this receiver."""
    minute = clock.now() // 60_000_000 % DAY_MINUTES
    quiet = Quiet((minute + QUIET_FROM_NOW) % DAY_MINUTES, (minute + QUIET_FROM_NOW + 60) % DAY_MINUTES)
    return User(
        user_id(number),
        f"Ada {number}",
        f"ada.{number}@example.com",
        webhook=f"http://127.0.0.1:{port}/in",
        locale="en",
        preferences={"sms": False, CATEGORY: True},
        quiet=quiet,
        variables={"number": str(number)},
    )

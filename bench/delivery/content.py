"""The users and the content of the delivery benchmarks: an order confirmation of about 1 KB with a number for each."""

import re

import msgspec

from bench import render
from tidings.clock import Clock
from tidings.delivery.templates import EmailPart, InAppPart, Parts, Template, WebhookPart
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
    in_app={"en": InAppPart(render.SUBJECT, f"{render.WORDS}\n{_MARK}\n")},
)
TEMPLATE = Template(NAME, PARTS)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """One message that arrived: its recipient, due time, priority and arrival time."""

    number: int
    due: int
    urgency: str
    at: int


class Took(msgspec.Struct, frozen=True, array_like=True):
    """Messages a second, and the CPU time of the sending process for each, which varies less with other load.

    `by_thread_us` is that CPU time by the threads of a node.
    """

    per_s: float
    cpu_us: float
    by_thread_us: dict[str, float] = {}


def variables(due: int, urgency: str) -> dict[str, object]:
    """The fields that are the same for all of a batch."""
    return {name: value for name, value in render.VARIABLES.items() if name != "name"} | {
        "due": due,
        "urgency": urgency,
    }


def user_id(number: int) -> str:
    return f"u{number:08d}"


def person(number: int, port: int, clock: Clock) -> User:
    """A user with preferences, with addresses at this receiver."""
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

"""The notifications that a batch of records asks for, accepted as those over HTTP are.

They are accepted before the store learns how far was read: whoever reads them again, after a crash in between, finds
each under its id and with the content that it has, and changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from tidings.delivery.asking import Notify
from tidings.delivery.notifying import Accepted, Notifying
from tidings.domain.errors import Invalid, NotOwner, StoreError
from tidings.wires.document import refusal
from tidings.wires.record import Record, Refusal, Tell
from tidings.wires.wire import Wire

VALUE = "the record's value"
PEOPLE_MAX = 1_000  # at once
REASONS_MAX = 20
FAULT = "cannot be accepted: this is a fault of Tidings, whose log tells more"

Refuse = Callable[[Wire, Record, Refusal, str], None]

logger = logging.getLogger("tidings.kafka")
_decoder = msgspec.json.Decoder(Notify)


class Wanted(NamedTuple):
    """A notification as it was asked for, and by which record."""

    wire: Wire
    record: Record
    tenant: str
    ask: Notify
    since: int | None

    @property
    def people(self) -> int:
        """How many it is for."""
        return len(self.ask.users) or 1


def wanted(wire: Wire, record: Record, tell: Tell) -> Wanted:
    """What a record asks for; `Invalid` if that is no notification."""
    try:
        ask = _decoder.decode(tell.value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error, Notify, VALUE) from None
    if ask.id is None:
        ask = msgspec.structs.replace(ask, id=tell.id)
    return Wanted(wire, record, tell.tenant, ask, tell.since)


class NotificationIntake:
    """Accepts many at once; what cannot be accepted is refused, and keeps no other from it."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse
        self._waiting: list[Wanted] = []

    def add(self, one: Wanted) -> None:
        """Accept this one with the others."""
        self._waiting.append(one)

    async def accept(self, notifying: Notifying) -> None:
        """Accept all. Where the store fails it is raised: called again, this goes on with those that are left."""
        while self._waiting:
            some = _together(self._waiting)
            answers = await asyncio.gather(*(_accepted(notifying, one) for one in some), return_exceptions=True)
            left, trouble = [], None
            for one, answer in zip(some, answers, strict=True):
                if isinstance(answer, NotOwner | StoreError):
                    left.append(one)
                    trouble = answer
                else:
                    self._settle(one, answer)
            self._waiting[: len(some)] = left
            if trouble is not None:
                raise trouble

    def _settle(self, one: Wanted, answer: list[Accepted] | BaseException) -> None:
        match answer:
            case Invalid():
                self._refuse(one.wire, one.record, one.wire.refuse(one.tenant, answer), answer.field)
            case BaseException():
                place = one.record.topic, one.record.partition, one.record.offset
                logger.error("%s/%d/%d cannot be accepted", *place, exc_info=answer)
                self._refuse(one.wire, one.record, Refusal(one.tenant, (FAULT,)), "record")
            case _:
                not_taken = [each for each in answer if each.outcome in {"rejected", "conflict"}]
                if not_taken:
                    told = Refusal(one.tenant, _reasons(one, not_taken))
                    self._refuse(one.wire, one.record, told, not_taken[0].field or "id")


async def _accepted(notifying: Notifying, one: Wanted) -> list[Accepted]:
    """What was accepted and is read again is not refused for what changed since, such as a template that is gone."""
    try:
        return await notifying.accept(one.tenant, one.ask, one.since)
    except Invalid:
        if await notifying.has(one.tenant, one.ask):
            return []
        raise


def _together(waiting: Sequence[Wanted]) -> list[Wanted]:
    """The first of them, so many as can be accepted at once; of those under one id the earlier one comes first."""
    some: list[Wanted] = []
    names: set[tuple[str, str | None]] = set()
    people = 0
    for one in waiting:
        name = one.tenant, one.ask.id
        people += one.people
        if name in names or (some and people > PEOPLE_MAX):
            break
        names.add(name)
        some.append(one)
    return some


def _reasons(one: Wanted, not_taken: Sequence[Accepted]) -> tuple[str, ...]:
    """Why, by person where it is for several; the others of them are accepted."""
    reasons = []
    for each in not_taken[:REASONS_MAX]:
        reason = each.reason or "rejected"
        if each.field is not None:
            reason = f"{each.field}: {reason}"
        reasons.append(f"{each.user}: {reason}" if one.ask.users else reason)
    if len(not_taken) > REASONS_MAX:
        reasons.append(f"and {len(not_taken) - REASONS_MAX} more of its users")
    return tuple(reasons)

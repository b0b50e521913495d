"""Intake of requests from Kafka, exactly once: commands and read positions are committed in one transaction.

A batch of records becomes commands, notifications and rejections. Notifications are accepted before the transaction,
because accepting one again changes nothing.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec

from tidings.delivery.notifying import Notifying
from tidings.domain.command import FINISHED, Add, Cancel, Command, Fire, Outcome, Pause, Replace, Resume, due_now
from tidings.domain.destination import join
from tidings.domain.errors import Invalid
from tidings.domain.facts import Refused
from tidings.domain.message import Message, pack
from tidings.domain.names import DEFAULT_TENANT
from tidings.edges.kafka.accepting import Accepting
from tidings.edges.kafka.accepting import decode as decode_notification
from tidings.edges.kafka.reader import Reading
from tidings.engine import Engine
from tidings.wires.moments import since_of
from tidings.wires.record import Ask, Nothing, Record, Refusal, Rejection, Tell
from tidings.wires.wire import Wire, refusal_headers

# Outcomes by which a request to schedule is rejected, with the reason.
REJECTED_OUTCOMES = {
    "rejected": "{reason}",
    "cancelled": "the schedule with this id was cancelled: use another id",
    "already_released": "the schedule with this id is already released: use another id",
    "in_flight": "the schedule with this id is already in flight: use another id",
    "unknown": "there is no schedule with this id, and ids of this form are made by Tidings: use another id",
}

UNREADABLE = "cannot be read because of an error in Tidings: see its log"

logger = logging.getLogger("tidings.kafka")


class Batch:
    """Records turned into commands. Rejections of refused records are written in the same transaction.

    Notifications are not among the commands: `accept` is called before. An error in one record refuses that record
    only. A batch is built on the reader's thread while the one before is committed, so facts wait in `refused`.
    """

    def __init__(self, engine: Engine, wire_of: Callable[[str], Wire | None], reading: Reading) -> None:
        records, self.starts = reading
        self._engine = engine
        self._now = engine.clock.now()
        self.ends = {(record.topic, record.partition): record.offset + 1 for record in records}
        self.refused: list[Refused] = []
        self.rejections: list[Command] = []  # complete once the batch is committed
        self._early_rejections: list[Command] = []  # of records that gave no command
        self._notifications = Accepting(self._refuse)
        self._sources: list[tuple[Wire, Record]] = []  # of each command
        self.commands: list[Command] = []
        for record in records:
            wire = wire_of(record.topic)
            command = None if wire is None else self._command(wire, record)
            if wire is not None and command is not None:
                self._sources.append((wire, record))
                self.commands.append(command)

    async def accept(self, notifying: Notifying) -> None:
        """Accept the notifications of the batch; another call after a failure of the store continues."""
        await self._notifications.accept(notifying)

    def on_outcomes(self, outcomes: Sequence[Outcome]) -> list[Command]:
        """The rejections, as commands: of records that could not be read or accepted, and of rejected commands."""
        self.rejections = list(self._early_rejections)
        for (wire, record), command, outcome in zip(self._sources, self.commands, outcomes, strict=True):
            if _is_refused(command, outcome):
                refusal = _refusal(wire, wire.tenant_of(record.topic) or "", outcome)
                self.rejections.append(self._rejection(wire, record, refusal))
        return self.rejections

    def _command(self, wire: Wire, record: Record) -> Command | None:
        try:
            return self._decode(wire, record)
        except Exception:
            logger.exception("%s/%d/%d cannot be read", record.topic, record.partition, record.offset)
            tenant = wire.tenant_of(record.topic) or DEFAULT_TENANT
            self._refuse(wire, record, Refusal(tenant, (UNREADABLE,)), "record")
            return None

    def _decode(self, wire: Wire, record: Record) -> Command | None:
        """The command of a record; None if it has none, because it is refused or asks for a notification."""
        answer = wire.read(record)
        if isinstance(answer, Nothing):
            return None
        if isinstance(answer, Refusal):
            self._refuse(wire, record, answer, "record")
            return None
        try:
            if isinstance(answer, Tell):
                self._notifications.add(decode_notification(wire, record, answer))
                return None
            return self._to_command(self._sent(answer, record))
        except Invalid as invalid:
            self._refuse(wire, record, wire.refuse(answer.tenant, invalid), invalid.field)
            return None

    def _sent(self, ask: Ask, record: Record) -> Ask:
        """Where a time in the past is refused, it counts when the record was sent: reading it late is not its fault."""
        request = ask.request
        if request is None or request.since is not None or not isinstance(request.at, int):
            return ask
        if (request.past or self._engine.settings.past) != "refuse":
            return ask
        return msgspec.structs.replace(ask, request=msgspec.structs.replace(request, since=since_of(record)))

    def _refuse(self, wire: Wire, record: Record, refusal: Refusal, field: str) -> None:
        source = record.topic, record.partition, record.offset
        self.refused.append(Refused(self._now, refusal.tenant, field, refusal.reasons, source))
        self._early_rejections.append(self._rejection(wire, record, refusal))

    def _to_command(self, ask: Ask) -> Command:
        match ask.verb:
            case "add":
                assert ask.request is not None, "an add has a request"
                return self._engine.command(ask.tenant, ask.request, self._now, reuse=ask.reuse)
            case "replace":
                assert ask.request is not None, "a replace has a request"
                add = self._engine.command(ask.tenant, ask.request, self._now, new=False)
                return Replace(add, ask.reuse, ask.keep_count)
            case "cancel":
                return Cancel(ask.tenant, ask.id)
            case "pause":
                return Pause(ask.tenant, ask.id)
            case "resume":
                return Resume(ask.tenant, ask.id, ask.missed)
            case "fire":
                return Fire(ask.tenant, ask.id)

    def _rejection(self, wire: Wire, record: Record, refusal: Refusal) -> Add:
        """A rejection is a schedule that is due now. If the record's headers cannot be sent, it has only our own."""
        try:
            return self._due(refusal.tenant, wire.rejection(record, refusal))
        except Exception:
            logger.exception(
                "the rejection of %s/%d/%d leaves out its headers", record.topic, record.partition, record.offset
            )
            plain = Rejection(
                wire.rejections(refusal.tenant), record.key, record.value, refusal_headers(record, refusal)
            )
            return self._due(refusal.tenant, plain)

    def _due(self, tenant: str, rejection: Rejection) -> Add:
        topic, key, value, headers = rejection
        return due_now(tenant, join("kafka", topic), pack(Message(key, value, headers)), self._now)


def _is_refused(command: Command, outcome: Outcome) -> bool:
    """Whether its sender has to hear of it: something was not scheduled, or may not be changed in this way."""
    if isinstance(command, Add | Replace):
        return outcome.outcome in REJECTED_OUTCOMES
    return outcome.outcome == "rejected" and outcome.state not in FINISHED


def _refusal(wire: Wire, tenant: str, outcome: Outcome) -> Refusal:
    """Why a command was rejected; where the request was invalid, in the terms of its wire."""
    if (invalid := outcome.invalid()) is not None:
        return wire.refuse(tenant, invalid)
    return Refusal(tenant, (REJECTED_OUTCOMES[outcome.outcome].format(reason=outcome.reason or "rejected"),))

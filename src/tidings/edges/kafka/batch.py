"""A batch of records on its way to be one transaction of the store."""

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
from tidings.edges.kafka.accepting import Accepting, wanted
from tidings.edges.kafka.reader import Reading
from tidings.engine import Engine
from tidings.wires.moments import since_of
from tidings.wires.record import Ask, Nothing, Record, Refusal, Rejection, Tell
from tidings.wires.wire import Wire, told

# Of a record that was to schedule something: what came of it instead.
NOT_TAKEN = {
    "rejected": "{reason}",
    "cancelled": "the schedule of this id was cancelled: use another id",
    "already_released": "the schedule of this id was released already: use another id",
    "in_flight": "the schedule of this id is on its way already: use another id",
    "unknown": "there is no schedule of this id, and its form is that of ids which Tidings makes: use another id",
}

CANNOT_BE_READ = "cannot be read: this is a fault of Tidings, whose log tells more"

logger = logging.getLogger("tidings.kafka")


class Batch:
    """Records as commands. What is refused is told on its rejection topic, in the same transaction.

    Notifications are not among the commands: they are to be accepted before.

    Whatever goes wrong with a record is its own affair: it is refused, and the partition goes on.

    Made on the reader's thread, while the batch before is stored: what it has to tell waits in `refused`.
    """

    def __init__(self, engine: Engine, wire_of: Callable[[str], Wire | None], reading: Reading) -> None:
        records, self.starts = reading
        self._engine = engine
        self._now = engine.clock.now()
        self.ends = {(record.topic, record.partition): record.offset + 1 for record in records}
        self.refused: list[Refused] = []
        self.rejections: list[Command] = []  # all of them, once it is stored
        self._unread: list[Command] = []
        self._accepting = Accepting(self._refuse)
        self._asked: list[tuple[Wire, Record]] = []
        self.commands: list[Command] = []
        for record in records:
            wire = wire_of(record.topic)
            command = None if wire is None else self._command(wire, record)
            if wire is not None and command is not None:
                self._asked.append((wire, record))
                self.commands.append(command)

    async def accept(self, notifying: Notifying) -> None:
        """Accept its notifications; called again after the store failed, those that are left."""
        await self._accepting.accept(notifying)

    def follow(self, outcomes: Sequence[Outcome]) -> list[Command]:
        """The rejections: of what could not be read or accepted, and of what could not be taken."""
        self.rejections = list(self._unread)
        for (wire, record), command, outcome in zip(self._asked, self.commands, outcomes, strict=True):
            if _is_refused(command, outcome):
                refusal = _refusal(wire, wire.tenant_of(record.topic) or "", outcome)
                self.rejections.append(self._rejection(wire, record, refusal))
        return self.rejections

    def _command(self, wire: Wire, record: Record) -> Command | None:
        try:
            return self._asked_for(wire, record)
        except Exception:
            logger.exception("%s/%d/%d cannot be read", record.topic, record.partition, record.offset)
            tenant = wire.tenant_of(record.topic) or DEFAULT_TENANT
            self._refuse(wire, record, Refusal(tenant, (CANNOT_BE_READ,)), "record")
            return None

    def _asked_for(self, wire: Wire, record: Record) -> Command | None:
        answer = wire.read(record)
        if isinstance(answer, Nothing):
            return None
        if isinstance(answer, Refusal):
            self._refuse(wire, record, answer, "record")
            return None
        try:
            if isinstance(answer, Tell):
                self._accepting.add(wanted(wire, record, answer))
                return None
            return self._of(self._sent(answer, record))
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
        self._unread.append(self._rejection(wire, record, refusal))

    def _of(self, ask: Ask) -> Command:
        match ask.verb:
            case "add":
                assert ask.request is not None, "a wire gives what is to be scheduled"
                return self._engine.command(ask.tenant, ask.request, self._now, reuse=ask.reuse)
            case "replace":
                assert ask.request is not None, "a wire gives what is to be scheduled"
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
        """A rejection is a schedule like any other, due now. If all else fails it has no headers but our own."""
        try:
            return self._due(refusal.tenant, wire.rejection(record, refusal))
        except Exception:
            logger.exception("%s/%d/%d cannot be told as it came", record.topic, record.partition, record.offset)
            plain = Rejection(wire.rejections(refusal.tenant), record.key, record.value, told(record, refusal))
            return self._due(refusal.tenant, plain)

    def _due(self, tenant: str, rejection: Rejection) -> Add:
        topic, key, value, headers = rejection
        return due_now(tenant, join("kafka", topic), pack(Message(key, value, headers)), self._now)


def _is_refused(command: Command, outcome: Outcome) -> bool:
    """Whether its sender has to hear of it: something was not scheduled, or may not be changed in this way."""
    if isinstance(command, Add | Replace):
        return outcome.outcome in NOT_TAKEN
    return outcome.outcome == "rejected" and outcome.state not in FINISHED


def _refusal(wire: Wire, tenant: str, outcome: Outcome) -> Refusal:
    """Why something was not taken, in the words of its wire where it was wrong in itself."""
    if (invalid := outcome.invalid()) is not None:
        return wire.refuse(tenant, invalid)
    return Refusal(tenant, (NOT_TAKEN[outcome.outcome].format(reason=outcome.reason or "rejected"),))

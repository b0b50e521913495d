"""A batch of records on its way to be one transaction of the store."""

from collections.abc import Callable, Sequence

from tidings.domain.command import Add, Cancel, Command, Fire, Outcome, Pause, Replace, Resume, due_now
from tidings.domain.destination import join
from tidings.domain.errors import Invalid
from tidings.domain.facts import Refused
from tidings.domain.message import Message, pack
from tidings.engine import Engine
from tidings.wires.record import Ask, Record, Refusal
from tidings.wires.wire import Wire


class Batch:
    """Records as commands; what is refused becomes a record on its rejection topic.

    Made on the reader's thread, while the batch before is stored: what it has to tell waits in `refused`.
    """

    def __init__(self, engine: Engine, wire_of: Callable[[str], Wire | None], records: list[Record]) -> None:
        self._engine = engine
        self._now = engine.clock.now()
        self.ends = {(record.topic, record.partition): record.offset + 1 for record in records}
        self.refused: list[Refused] = []
        self._asked: list[tuple[Wire, Record]] = []
        self.commands: list[Command] = []
        for record in records:
            wire = wire_of(record.topic)
            if wire is not None:
                self._asked.append((wire, record))
                self.commands.append(self._command(wire, record))

    def rejected(self, outcomes: Sequence[Outcome]) -> list[Command]:
        """The rejections that follow from what came of the commands."""
        more: list[Command] = []
        for (wire, record), outcome in zip(self._asked, outcomes, strict=True):
            if outcome.outcome == "rejected":
                tenant = wire.tenant_of(record.topic) or ""
                more.append(self._rejection(wire, record, Refusal(tenant, (outcome.reason or "rejected",))))
        return more

    def _command(self, wire: Wire, record: Record) -> Command:
        answer = wire.read(record)
        if isinstance(answer, Refusal):
            return self._rejection(wire, record, answer)
        try:
            return self._of(answer)
        except Invalid as invalid:
            self.refused.append(Refused(self._now, answer.tenant, invalid.field))
            return self._rejection(wire, record, wire.refuse(answer.tenant, invalid))

    def _of(self, ask: Ask) -> Command:
        match ask.verb:
            case "add":
                assert ask.request is not None, "a wire gives what is to be scheduled"
                return self._engine.command(ask.tenant, ask.request, self._now, reuse=ask.reuse)
            case "replace":
                assert ask.request is not None, "a wire gives what is to be scheduled"
                return Replace(self._engine.command(ask.tenant, ask.request, self._now, new=False), ask.reuse)
            case "cancel":
                return Cancel(ask.tenant, ask.id)
            case "pause":
                return Pause(ask.tenant, ask.id)
            case "resume":
                return Resume(ask.tenant, ask.id)
            case "fire":
                return Fire(ask.tenant, ask.id)

    def _rejection(self, wire: Wire, record: Record, refusal: Refusal) -> Add:
        """A rejection is a schedule like any other, due now."""
        topic, key, value, headers = wire.rejection(record, refusal)
        return due_now(refusal.tenant, join("kafka", topic), pack(Message(key, value, headers)), self._now)

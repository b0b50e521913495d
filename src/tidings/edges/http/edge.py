"""What every handler shares: the engine and the office behind it, who may use them, whether the server is stopping."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidings.config.settings import Server
from tidings.delivery.office import Office
from tidings.domain.command import Add
from tidings.domain.errors import Invalid
from tidings.domain.facts import Refused
from tidings.domain.request import Request
from tidings.edges.http.auth import KeyRing
from tidings.edges.http.readers import KeptAnswers, Readers
from tidings.engine import Engine
from tidings.intake.admission import check_new_id
from tidings.shapes.fields import names_of
from tidings.shapes.schedule import NewSchedule
from tidings.wires.document import read

if TYPE_CHECKING:
    from tidings.bus.kafka.follow import KafkaFollowing

Metrics = Callable[[], bytes | Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Edge:
    """The surroundings of a request. `stopping` is set when open streams and long polls have to end."""

    engine: Engine
    keys: KeyRing | None
    metrics: Metrics | None
    version: str
    office: Office
    kafka: "KafkaFollowing | None" = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    server: Server = field(default_factory=Server)
    readers: Readers = field(init=False)
    kept_answers: KeptAnswers = field(default_factory=KeptAnswers)

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", Readers(self.server))

    def read(self, tenant: str, body: bytes, topic: str | None = None, schedule_id: str | None = None) -> Request:
        """The request that a document makes; a refusal is told as a fact, like those of admission."""
        try:
            return read(body, topic, schedule_id)
        except Invalid as invalid:
            self._tell_refused(tenant, invalid)
            raise

    def admit(self, tenant: str, request: Request, *, new: bool = True) -> Add:
        """The command for a request."""
        return self.engine.admit(tenant, request, new=new)

    def command(self, tenant: str, body: bytes, topic: str | None, now: int) -> Add:
        """`read` and `admit` in one step for one of many, at a time that was read once for some of them."""
        try:
            request = read(body, topic)
            if request.id is not None:
                check_new_id(request.id)
            return self.engine.admission.admit(tenant, request, now)
        except Invalid as invalid:
            self._tell_refused(tenant, invalid)
            raise

    def _tell_refused(self, tenant: str, invalid: Invalid) -> None:
        field_name = invalid.field if invalid.field in names_of(NewSchedule) else "body"
        self.engine.publish(Refused(self.engine.clock.now(), tenant, field_name))

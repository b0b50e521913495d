"""The base class of wires: their topics, how they decode records, and how they report refusals."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from tidings.domain.errors import Invalid
from tidings.domain.names import DEFAULT_TENANT
from tidings.wires.destinations import Destinations, is_topic
from tidings.wires.record import Ask, Nothing, Record, Refusal, Rejection, Tell

TENANT_CHARS_MAX = 229  # still a valid topic name with the longest prefix or suffix of a wire

REJECT_REASON = "tidings-reject-reason"
SOURCE_TOPIC = "tidings-source-topic"
SOURCE_PARTITION = "tidings-source-partition"
SOURCE_OFFSET = "tidings-source-offset"


class Wire(ABC):
    """A request format on Kafka, as pure functions. `read` never raises: every record gets an answer.

    `sources` maps the fields of a request to the headers of this wire, so that a refusal names what the client wrote.
    """

    name: ClassVar[str]
    sources: ClassVar[Mapping[str, str]]
    own_tenants: frozenset[str] = frozenset()  # tenants that need no setting

    def __init__(self, destinations: Destinations | None = None) -> None:
        self._destinations = destinations or Destinations()
        self._tenant_of: dict[str, str | None] = {}  # cache by topic

    @abstractmethod
    def tenant_of(self, topic: str) -> str | None:
        """The tenant of a request topic; None if the topic is not one of this wire."""

    @abstractmethod
    def requests(self, tenant: str) -> tuple[str, ...]:
        """The request topics of a tenant."""

    @abstractmethod
    def rejections(self, tenant: str) -> str:
        """The rejection topic of a tenant."""

    @abstractmethod
    def ask(self, tenant: str, record: Record) -> Ask | Tell | Nothing | Refusal:
        """Decode a record of a tenant; may raise `Invalid`."""

    def topics(self, tenant: str) -> tuple[str, ...]:
        """The response topics of a tenant, which are created when its request topic is found."""
        return (self.rejections(tenant),)

    def read(self, record: Record) -> Ask | Tell | Nothing | Refusal:
        """Decode a record, or say why it is refused."""
        try:
            tenant = self._tenant_of[record.topic]
        except KeyError:
            tenant = self._tenant_of[record.topic] = self.tenant_of(record.topic)
        if tenant is None:
            return Refusal(DEFAULT_TENANT, (f"{record.topic} is not a request topic of {self.name}",))
        if record.unreadable:
            return Refusal(tenant, (record.unreadable,))
        try:
            return self.ask(tenant, record)
        except Invalid as invalid:
            return Refusal(tenant, (str(invalid),))

    def refuse(self, tenant: str, invalid: Invalid) -> Refusal:
        """A refusal by admission, with the field names of this wire."""
        reasons = (f"{self.sources.get(each.field, each.field)}: {each.detail}" for each in invalid.all)
        return Refusal(tenant, tuple(reasons))

    def rejection(self, record: Record, refusal: Refusal) -> Rejection:
        """The record as it came, with its position and the reasons added to its headers.

        A record that was refused several times has several sets of them; the last set counts.
        """
        headers = record.headers + refusal_headers(record, refusal)
        return Rejection(self.rejections(refusal.tenant), record.key, record.value, headers)

    def destination(self, tenant: str, topic: str, header: str) -> str:
        """Check that the tenant may write to a topic, and return it."""
        if reason := self._destinations.forbidden(tenant, topic):
            raise Invalid(header, reason)
        return topic


def refusal_headers(record: Record, refusal: Refusal) -> tuple[tuple[str, bytes], ...]:
    """Headers with the position of a refused record, and one for each reason."""
    return (
        (SOURCE_TOPIC, record.topic.encode()),
        (SOURCE_PARTITION, str(record.partition).encode()),
        (SOURCE_OFFSET, str(record.offset).encode()),
        *((REJECT_REASON, reason.encode()) for reason in refusal.reasons),
    )


def affixed(topic: str, prefix: str = "", suffix: str = "") -> str | None:
    """The tenant between prefix and suffix of a topic; None if the topic has another form."""
    if not (topic.startswith(prefix) and topic.endswith(suffix) and is_topic(topic)):
        return None
    tenant = topic[len(prefix) : len(topic) - len(suffix)]
    return tenant if 0 < len(tenant) <= TENANT_CHARS_MAX else None

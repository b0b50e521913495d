"""What every Kafka wire has: its topics, how it reads a record, and how it tells of a refusal."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from tidings.domain.errors import Invalid
from tidings.domain.names import DEFAULT_TENANT
from tidings.wires.destinations import Destinations, is_topic
from tidings.wires.record import Ask, Nothing, Record, Refusal, Rejection, Tell

TENANT_CHARS_MAX = 229  # with the longest that a wire puts around it, it still is a topic's name

REJECT_REASON = "tidings-reject-reason"
SOURCE_TOPIC = "tidings-source-topic"
SOURCE_PARTITION = "tidings-source-partition"
SOURCE_OFFSET = "tidings-source-offset"


class Wire(ABC):
    """A Kafka protocol as pure functions. Any record gives an answer: `read` does not raise.

    `sources` says for the fields of a request where on this wire they come from, so that a refusal by admission
    names what the client wrote.
    """

    name: ClassVar[str]
    sources: ClassVar[Mapping[str, str]]
    own_tenants: frozenset[str] = frozenset()  # tenants that it serves without any setting that names them

    def __init__(self, destinations: Destinations | None = None) -> None:
        self._destinations = destinations or Destinations()
        self._tenant_of: dict[str, str | None] = {}  # by topic, as often as it is read

    @abstractmethod
    def tenant_of(self, topic: str) -> str | None:
        """Whose requests the topic takes, None if it is not a request topic of this wire."""

    @abstractmethod
    def requests(self, tenant: str) -> tuple[str, ...]:
        """The request topics of a tenant."""

    @abstractmethod
    def rejections(self, tenant: str) -> str:
        """The topic that tells a tenant of refusals."""

    @abstractmethod
    def ask(self, tenant: str, record: Record) -> Ask | Tell | Nothing | Refusal:
        """What a record of this tenant asks for; may raise `Invalid`."""

    def topics(self, tenant: str) -> tuple[str, ...]:
        """What has to exist for a tenant, beside its request topic and the destinations that it names."""
        return (self.rejections(tenant),)

    def read(self, record: Record) -> Ask | Tell | Nothing | Refusal:
        """What a record asks for, or why it is refused."""
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
        """What admission says of a request, in the words of this wire."""
        reasons = (f"{self.sources.get(each.field, each.field)}: {each.detail}" for each in invalid.all)
        return Refusal(tenant, tuple(reasons))

    def rejection(self, record: Record, refusal: Refusal) -> Rejection:
        """The record as it came, with its place and the reasons added to its headers.

        Where it was refused before, what counts follows the last `tidings-source-topic`.
        """
        headers = record.headers + told(record, refusal)
        return Rejection(self.rejections(refusal.tenant), record.key, record.value, headers)

    def destination(self, tenant: str, topic: str, header: str) -> str:
        """The topic, if the tenant may write to it."""
        if reason := self._destinations.forbidden(tenant, topic):
            raise Invalid(header, reason)
        return topic


def told(record: Record, refusal: Refusal) -> tuple[tuple[str, bytes], ...]:
    """Where a record came from and why it is refused, as headers; a header for each reason."""
    return (
        (SOURCE_TOPIC, record.topic.encode()),
        (SOURCE_PARTITION, str(record.partition).encode()),
        (SOURCE_OFFSET, str(record.offset).encode()),
        *((REJECT_REASON, reason.encode()) for reason in refusal.reasons),
    )


def affixed(topic: str, prefix: str = "", suffix: str = "") -> str | None:
    """The tenant between prefix and suffix, None if the topic is not of that form."""
    if not (topic.startswith(prefix) and topic.endswith(suffix) and is_topic(topic)):
        return None
    tenant = topic[len(prefix) : len(topic) - len(suffix)]
    return tenant if 0 < len(tenant) <= TENANT_CHARS_MAX else None

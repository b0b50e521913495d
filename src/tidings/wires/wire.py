"""Wires: request formats on Kafka, their topics, and the destination topics that a request may name."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase
from typing import ClassVar

from tidings.domain.errors import Invalid
from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.schedules.schedule import PlainRequest
from tidings.wires.record import Ask, Nothing, NotifyAsk, Record, Refusal, Rejection

TOPIC_CHARS_MAX = 249
SCHEDULES = "schedules"

INTERVALS_REQUESTS = "assignments."
INTERVALS_EXECUTIONS = "executions."
REJECTIONS = "rejections."
KASPR_REQUESTS = "-schedule-requests"
KASPR_ACTIONS = "-schedule-actions"
KASPR_REJECTIONS = "-schedule-rejections"
NATIVE = "tidings."
NATIVE_REJECTIONS = "tidings.rejections."

# Internal topics of Kafka, which clients cannot write to.
_KAFKA = frozenset({"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state"})
_TOPIC = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9._-]{{1,{TOPIC_CHARS_MAX}}}\Z")


def owned(tenant: str) -> frozenset[str]:
    """The topics that only this tenant may read: its executions and its rejections."""
    return frozenset({INTERVALS_EXECUTIONS + tenant, *rejections(tenant)})


def rejections(tenant: str) -> tuple[str, ...]:
    """The rejection topics of a tenant, on all wires."""
    names = (REJECTIONS + tenant, NATIVE_REJECTIONS + tenant)
    is_app = not tenant.startswith((INTERVALS_REQUESTS, INTERVALS_EXECUTIONS, REJECTIONS, NATIVE))
    return (*names, tenant + KASPR_REJECTIONS) if is_app else names


def is_rejections(topic: str) -> bool:
    """Whether a topic is a rejection topic of any wire."""
    return topic.startswith((REJECTIONS, NATIVE_REJECTIONS)) or topic.endswith(KASPR_REJECTIONS)


def is_topic(name: str) -> bool:
    """Whether Kafka accepts this as a topic name."""
    return _TOPIC.match(name) is not None


class Destinations:
    """The rule for destination topics. `patterns` are globs by tenant; a tenant without any may write to all.

    `schedules` are the request topics of etf1, which cannot be recognised by their names. A tenant may always write to
    its own `executions.<tenant>`, where Intervals delivers.
    """

    def __init__(
        self, patterns: Mapping[str, Sequence[str]] | None = None, schedules: Set[str] = frozenset({SCHEDULES})
    ) -> None:
        self._patterns = dict(patterns or {})
        self._schedules = schedules

    def forbidden(self, tenant: str, topic: str) -> str | None:
        """Why a tenant may not write to a topic; None if it may."""
        if not is_topic(topic):
            return f"use letters, digits, '.', '_' and '-' only (1 to {TOPIC_CHARS_MAX}, not '.' or '..')"
        if reserved := self._reserved(tenant, topic):
            return f"{topic} {reserved}: choose another topic"
        patterns = None if topic == INTERVALS_EXECUTIONS + tenant else self._patterns.get(tenant)
        if patterns is not None and not any(fnmatchcase(topic, pattern) for pattern in patterns):
            return f"{topic} is not among the topics that {tenant} may write to: {', '.join(patterns) or 'none'}"
        return None

    def _reserved(self, tenant: str, topic: str) -> str | None:
        if topic in self._schedules or topic.startswith(INTERVALS_REQUESTS) or topic.endswith(KASPR_REQUESTS):
            return "is a request topic"
        if topic.startswith(NATIVE) or topic.endswith((KASPR_ACTIONS, KASPR_REJECTIONS)):
            return "is reserved for Tidings"
        if topic in _KAFKA:
            return "is reserved for Kafka"
        for prefix in (INTERVALS_EXECUTIONS, REJECTIONS):
            if topic.startswith(prefix) and topic != prefix + tenant:
                return "belongs to another tenant"
        return None


ALLOWED_MAX = 10_000
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
        self._allowed: set[tuple[str, str]] = set()  # cache of `may_write`

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
    def ask(self, tenant: str, record: Record) -> Ask | NotifyAsk | Nothing | Refusal:
        """Decode a record of a tenant; may raise `Invalid`."""

    def plain(self, _tenant: str, _record: Record) -> PlainRequest | None:
        """Decode a record that adds a schedule for one instant and says nothing else; None if `ask` must look at it.

        It never refuses, and gives the same request as `ask`. It need not know every such record, only the usual ones.
        """
        return None

    def topics(self, tenant: str) -> tuple[str, ...]:
        """The response topics of a tenant, which are created when its request topic is found."""
        return (self.rejections(tenant),)

    def read(self, record: Record) -> Ask | NotifyAsk | Nothing | Refusal:
        """Decode a record, or say why it is refused."""
        tenant = self.cached_tenant_of(record.topic)
        if tenant is None:
            return Refusal(DEFAULT_TENANT, (f"{record.topic} is not a request topic of {self.name}",))
        if record.unreadable:
            return Refusal(tenant, (record.unreadable,))
        try:
            return self.ask(tenant, record)
        except Invalid as invalid:
            return Refusal(tenant, (str(invalid),))

    def cached_tenant_of(self, topic: str) -> str | None:
        """The same as `tenant_of`, which is called once for each topic."""
        try:
            return self._tenant_of[topic]
        except KeyError:
            tenant = self._tenant_of[topic] = self.tenant_of(topic)
            return tenant

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

    def may_write(self, tenant: str, topic: str) -> bool:
        """Whether the tenant may write to a topic."""
        if (tenant, topic) in self._allowed:
            return True
        allowed = self._destinations.forbidden(tenant, topic) is None
        if allowed and len(self._allowed) < ALLOWED_MAX:
            self._allowed.add((tenant, topic))
        return allowed

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

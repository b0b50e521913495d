"""Wires: request formats on Kafka, their topics, and the destination topics that a request may name."""

import re
from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase

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

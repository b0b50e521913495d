"""Which requests a node reads: the wires, tenants and request topics of the settings."""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from tidings.domain.errors import Invalid
from tidings.wires.etf1 import Etf1
from tidings.wires.intervals import Intervals
from tidings.wires.kaspr import Kaspr
from tidings.wires.native import Native, Notify
from tidings.wires.wire import Destinations, Wire, is_topic

_GLOB = re.compile(r"[*?[]")


class Requests:
    """The enabled wires, and the tenants (globs) whose request topics are read.

    `schedules` maps etf1's topics to their tenants; `destinations` has globs of the topics that a tenant may write to.
    """

    def __init__(
        self,
        wires: Collection[str],
        tenants: Sequence[str],
        schedules: Mapping[str, str],
        destinations: Mapping[str, Sequence[str]],
    ) -> None:
        _check(schedules)
        self.destinations = Destinations(destinations, schedules.keys())
        self._tenants = tenants
        self._with_destinations = frozenset(destinations)
        etf1 = Etf1(schedules, self.destinations)
        self.etf1 = etf1 if etf1.name in wires else None
        known: list[Wire] = [
            etf1,
            Intervals(self.destinations),
            Kaspr(self.destinations),
            Native(self.destinations),
            Notify(self.destinations),
        ]
        self.wires = [wire for wire in known if wire.name in wires]

    @property
    def known_topics(self) -> frozenset[str]:
        """The request topics of the tenants that the settings name, and of each wire's own tenants."""
        named = {pattern for pattern in self._tenants if not _GLOB.search(pattern)} | self._with_destinations
        topics = (
            topic for wire in self.wires for tenant in named | wire.own_tenants for topic in wire.requests(tenant)
        )
        return frozenset(topic for topic in topics if is_topic(topic) and self.takes(topic))

    def takes(self, topic: str) -> bool:
        """Whether a topic is read. Topics that are not read keep their position, for another node or a later time."""
        for wire in self.wires:
            tenant = wire.tenant_of(topic)
            if tenant is not None:
                return any(fnmatchcase(tenant, pattern) for pattern in self._tenants)
        return False


def _check(schedules: Mapping[str, str]) -> None:
    """Check that etf1's topics, which may have any name, are not topics of other wires or of Tidings."""
    for topic in schedules:
        if reason := Destinations(schedules=frozenset()).forbidden("", topic):
            raise Invalid("kafka.schedules", reason)

"""Which requests are read: the wires, the tenants, and the topics of etf1 that the settings name."""

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
    """The wires that are spoken, and whose topics they are spoken on. `tenants` are globs.

    `schedules` has etf1's topics with the tenant of each, `destinations` the globs that a tenant may write to.
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
        """The request topics of the tenants that are known: those that the settings name, and each wire's own."""
        named = {pattern for pattern in self._tenants if not _GLOB.search(pattern)} | self._with_destinations
        topics = (
            topic for wire in self.wires for tenant in named | wire.own_tenants for topic in wire.requests(tenant)
        )
        return frozenset(topic for topic in topics if is_topic(topic) and self.takes(topic))

    def takes(self, topic: str) -> bool:
        """Whether this topic is read. What is not read is not passed over either: another may do so, or we later."""
        for wire in self.wires:
            tenant = wire.tenant_of(topic)
            if tenant is not None:
                return any(fnmatchcase(tenant, pattern) for pattern in self._tenants)
        return False


def _check(schedules: Mapping[str, str]) -> None:
    """etf1's topics have no form of their own: they must not be what another wire reads, or what we write."""
    for topic in schedules:
        if reason := Destinations(schedules=frozenset()).forbidden("", topic):
            raise Invalid("kafka.schedules", reason)

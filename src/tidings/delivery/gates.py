"""Whose turn it is on the connections of a channel, which are fewer than the messages under way.

A pool serves those who wait in the order in which they came. So they wait here, where high priority goes first and
the others tenant by tenant, and a pool never has more of them than connections.
"""

from contextlib import nullcontext

from tidings.delivery.slots import Slot, Slots
from tidings.domain.rendered import Rendered
from tidings.ports import Channel, Lined

Line = tuple[str, str]  # a provider, and which of its lines

LINES_KEPT = 1_000


class Gates:
    """One gate for each line on which something is under way."""

    def __init__(self) -> None:
        self._gates: dict[Line, Slots] = {}

    def way(
        self, provider: str, channel: Channel, message: Rendered, tenant: str, *, high: bool
    ) -> "Slot | nullcontext[None]":
        """A turn for this message: `async with` it. A channel that has no lines takes all of them at once."""
        if not isinstance(channel, Lined):
            return nullcontext()
        name, together_max = channel.line(message)
        gate = self._gates.get((provider, name))
        if gate is None:
            self._forget()
            gate = self._gates[provider, name] = Slots(together_max, 0, tenant_max=together_max)
        return gate.taken(tenant, high=high)

    def _forget(self) -> None:
        """Those that nobody uses, once there are many."""
        if len(self._gates) >= LINES_KEPT:
            self._gates = {line: gate for line, gate in self._gates.items() if not gate.is_idle}

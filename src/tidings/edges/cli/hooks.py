"""What the command line needs of the node, given to it from above: edges do not know how a node is built."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidings.config import Config
    from tidings.config.addresses import Place
    from tidings.ports import ApiKey
    from tidings.timeline.layouts import Done, Plan
    from tidings.timeline.transfer.protocol import Move
    from tidings.timeline.transfer.run import OnProgress


class Hooks(Protocol):
    """Run a node, and care for stores that no server need have open: API keys, layouts, moves."""

    def run_node(self, config: "Config") -> int:
        """Serve until told to stop; answers the exit code."""
        ...

    def check_channels(self, config: "Config") -> None:
        """Refuse tables of channels that cannot be used, so that no secret is shown that stands among them."""
        ...

    def create_key(self, store: str, schema: str | None, name: str, tenant: str, admin: bool) -> str:
        """Make a key and answer it: only its digest is kept."""
        ...

    def list_keys(self, store: str, schema: str | None) -> "list[ApiKey]":
        """The keys by name."""
        ...

    def revoke_key(self, store: str, schema: str | None, name: str) -> bool:
        """Forget a key; False if there is none of that name."""
        ...

    def migrate_store(self, place: "Place", check: bool, tell: "Callable[[Done], None]") -> "Plan":
        """Bring a store up to date, or say what would be done."""
        ...

    def copy_store(self, source: "Place", target: "Place", leave_log: bool, tell: "OnProgress") -> Any:
        """Move everything from one store to another; run it again after an interruption."""
        ...

    def take_back(self, source: "Place") -> "Move":
        """Let a store that has moved be served again; returns where it had moved to."""
        ...

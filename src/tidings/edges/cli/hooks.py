"""What the command line needs of the node, given to it from above: edges do not know how a node is built."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidings.config import Config
    from tidings.ports import ApiKey


class Hooks(Protocol):
    """Run a node, and care for the API keys of a store that no server need have open."""

    def run_node(self, config: "Config") -> int:
        """Serve until told to stop; answers the exit code."""
        ...

    def create_key(self, store: str, name: str, tenant: str, admin: bool) -> str:
        """Make a key and answer it: only its digest is kept."""
        ...

    def list_keys(self, store: str) -> "list[ApiKey]":
        """The keys by name."""
        ...

    def revoke_key(self, store: str, name: str) -> bool:
        """Forget a key; False if there is none of that name."""
        ...

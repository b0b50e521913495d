"""The entry point of `python -m tidings` and of the command `tidings`."""

import sys
from typing import TYPE_CHECKING

from tidings.edges.cli.main import main as run_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidings.config import Config
    from tidings.config.checks import StoreUrl
    from tidings.node.stores import Copied
    from tidings.ports import ApiKey
    from tidings.timeline.migrations import Plan, StepDone
    from tidings.timeline.transfer.protocol import Move
    from tidings.timeline.transfer.run import OnProgress


class NodeHooks:
    """Gives the command line access to the node, whose modules are loaded on first use: most commands need none."""

    def run_node(self, config: "Config", member: str | None) -> int:
        from tidings.node import run_node

        return run_node(config, member)

    def check_channels(self, config: "Config") -> None:
        from tidings.node.delivery import check_channels

        check_channels(config)

    def create_key(self, store: str, schema: str | None, name: str, tenant: str, admin: bool) -> str:
        from tidings.node import create_key

        return create_key(store, schema, name, tenant, admin)

    def list_keys(self, store: str, schema: str | None) -> "list[ApiKey]":
        from tidings.node import list_keys

        return list_keys(store, schema)

    def revoke_key(self, store: str, schema: str | None, name: str) -> bool:
        from tidings.node import revoke_key

        return revoke_key(store, schema, name)

    def migrate_store(self, store: "StoreUrl", check: bool, on_step: "Callable[[StepDone], None]") -> "Plan":
        from tidings.node import migrate_store

        return migrate_store(store, check, on_step)

    def copy_store(
        self, source: "StoreUrl", target: "StoreUrl", leave_log: bool, on_progress: "OnProgress"
    ) -> "Copied":
        from tidings.node import copy_store

        return copy_store(source, target, leave_log, on_progress)

    def take_back(self, source: "StoreUrl") -> "Move":
        from tidings.node import take_back

        return take_back(source)


def main() -> int:
    """Run the command that the arguments name."""
    return run_command(sys.argv[1:], NodeHooks())


if __name__ == "__main__":
    sys.exit(main())

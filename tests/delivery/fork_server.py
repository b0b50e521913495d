"""A fork server for nodes with workers (tests/faults/fork_server.py): channels are loaded once, nothing is lowered.

No process outlives the test, however that ends.
"""

import importlib
import os
import sys

from tests.faults import fork_server, thresholds
from tests.fleet.fork_server import die_with_parent

MODULES = (
    "psycopg",
    "tidings.providers.email.smtp",
    "tidings.providers.webhook",
    "tidings.node.delivery",
    "tidings.timeline.postgres.store",
)


def main() -> int:
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    thresholds.LOWERED = {}
    for module in MODULES:
        importlib.import_module(module)
    return fork_server.main()


if __name__ == "__main__":
    sys.exit(main())

"""Where nodes with workers are born quickly (tests/faults/nursery.py): with their channels loaded, and nothing lowered.

Nobody outlives the test, however that ends.
"""

import importlib
import os
import sys

from tests.faults import nursery, thresholds
from tests.fleet.nursery import die_with_parent

MODULES = (
    "psycopg",
    "tidings.channels.smtp",
    "tidings.channels.webhook",
    "tidings.node.delivering",
    "tidings.timeline.postgres.store",
)


def main() -> int:
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    thresholds.LOWERED = {}
    for module in MODULES:
        importlib.import_module(module)
    return nursery.main()


if __name__ == "__main__":
    sys.exit(main())

"""A fork server for nodes with Kafka (tests/faults/fork_server.py); `WITHOUT` disables a safeguard."""

import importlib
import os
import sys

from tests.faults import fork_server, thresholds
from tests.kafka.faults import disabled_safeguards

WITHOUT = "TESTS_WITHOUT"
MODULES = (
    "tidings.bus.kafka.forwarder",
    "tidings.bus.kafka.producers",
    "tidings.edges.kafka.intake",
    "tidings.wires.etf1",
    "tidings.wires.intervals",
    "tidings.wires.kaspr",
    "tidings.wires.native",
)

# Small batches: a backlog is then many transactions.
LOWERED = {
    "tidings.dispatch.dispatcher": {"BATCH_ROWS_MIN": 20, "BATCH_ROWS_MAX": 200, "SHARED_ROWS_MAX": 100},
    "tidings.bus.kafka.forwarder": {"BATCH_ROWS_MAX": 150},
    "tidings.edges.kafka.intake": {"BATCH_RECORDS_MAX": 200},
}


def main() -> int:
    thresholds.LOWERED = LOWERED
    for module in MODULES:
        importlib.import_module(module)
    disabled_safeguards.apply(os.environ.get(WITHOUT, ""))
    return fork_server.main()


if __name__ == "__main__":
    sys.exit(main())

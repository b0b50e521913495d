"""Starts nodes quickly: a process that has loaded all modules once and forks a node on request.

`python -m tests.faults.fork_server` reads one JSON object a line: `argv` and `environment` of the node, `crash` (a
setting of TIDINGS_CRASH_AT or null), its `lease_us`, and `base_us` and `speed` of its wall clock. It answers with the
node's pid, and with its status once it has ended. A node started here is a process like any other, with lower limits.
"""

import importlib
import json
import os
import sys
from typing import Any

MODULES = (
    "tidings.__main__",
    "tidings.node",
    "tidings.edges.cli.commands.serve",
    "tidings.edges.http.app",
    "tidings.edges.http.auth",
    "tidings.edges.http.server",
    "tidings.observe.metrics",
    "tidings.timeline.sqlite.store",
    "uvloop",
    "tests.faults.thresholds",
)


def main() -> int:
    for module in MODULES:
        importlib.import_module(module)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(live(json.loads(line)))
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}), flush=True)
    return 0


def live(order: dict[str, Any]) -> int:
    """Be a node, from here to the end of the process."""
    from tests.faults.thresholds import lower, quicken
    from tidings import crash
    from tidings.__main__ import main as run

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the pipe for answers belongs to the factory
    os.environ.update(order["environment"])
    sys.argv = ["tidings", *order["argv"]]
    if order["crash"]:
        crash.arm(order["crash"])
    lower(order["lease_us"], order["crash"] or "")
    if order["speed"] != 1:
        quicken(order["base_us"], order["speed"])
    return run()


if __name__ == "__main__":
    sys.exit(main())

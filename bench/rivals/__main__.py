"""One scheduler on all works, in a process of its own: `python -m bench.rivals MODULE FOLDER COUNT RATE SECONDS`."""

import importlib
import logging
import sys
from pathlib import Path

import msgspec

from bench.engines import run
from bench.processes import say
from bench.rivals import ourselves, rival


def main(module: str, folder: Path, count: int, rate: int, seconds: float) -> None:
    """Print what was measured."""
    logging.disable(logging.WARNING)
    if module == "ourselves":
        say(msgspec.to_builtins(run(ourselves.measure(folder, count, rate, seconds))))
        return
    scheduler: rival.Rival = importlib.import_module(f"bench.rivals.{module}").Rival(folder)
    scheduler.start()
    try:
        intake = rival.intake(scheduler, count)
        burst = rival.burst(scheduler, count, intake)
        late = rival.flow(scheduler, rate, seconds)
    finally:
        scheduler.stop()
    say({"intake": intake, "burst": burst, "late": msgspec.to_builtins(late)})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))

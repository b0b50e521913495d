"""A bare timer loop, nothing but sleeping to random microseconds: `python -m bench.timer RATE START_US SECONDS`."""

import random
import sys
import time

import msgspec

from bench.engines import run
from bench.flows import lateness
from bench.processes import say
from tidings.dispatch.dispatcher import Waiter


async def main(rate: int, start: int, seconds: float) -> None:
    """Wake up as often as the flow beside it, and note how late that was."""
    waiter = Waiter()
    span = round(seconds * 1_000_000)
    late_us: list[int] = []
    started = _now()
    moments = [start + random.randrange(span) for _ in range(round(rate * seconds))]
    for moment in sorted(moment for moment in moments if moment > started):  # none that passed while we started
        while (pause := moment - _now()) > 0:
            await waiter.wait(pause)
        late_us.append(_now() - moment)
    waiter.close()
    say(msgspec.structs.asdict(lateness(late_us)))


def _now() -> int:
    return time.time_ns() // 1_000


if __name__ == "__main__":
    run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))

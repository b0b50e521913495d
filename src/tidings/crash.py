"""Named crash points, at which tests kill the process to prove that nothing is lost and nothing is released twice.

`TIDINGS_CRASH_AT=release.settled:3` kills the process with SIGKILL at the third visit of that point. Without the
variable a crash point does nothing; busy code checks `IS_ARMED` first and does not even call it.
"""

import os
import signal

VARIABLE = "TIDINGS_CRASH_AT"

POINTS = (
    "intake.begun",
    "intake.written",
    "intake.committed",
    "change.written",
    "release.begun",
    "release.logged",
    "release.settled",
    "release.committed",
    "refine.written",
    "refine.committed",
    "map.flushed",
    "map.merging",
    "map.merged",
    "trim.written",
    "checkpoint.done",
)
KAFKA_POINTS = (
    "release.packed",
    "release.handed",
    "kafka.initialised",
    "kafka.taken",
    "kafka.produced",
    "kafka.marked",
    "kafka.committed",
    "kafka.settled",
)
OUTAGE_POINTS = ("kafka.expired",)
ACCEPT_POINTS = ("accept.done",)
TRANSFER_POINTS = ("transfer.marked", "transfer.written", "transfer.committed")
MIGRATION_POINTS = ("migrate.written", "migrate.committed")
DELIVERY_POINTS = (
    "deliver.read",
    "deliver.claiming",
    "deliver.claimed",
    "deliver.sent",
    "deliver.settling",
    "deliver.settled",
    "deliver.committed",
)
_ALL = POINTS + KAFKA_POINTS + OUTAGE_POINTS + ACCEPT_POINTS + TRANSFER_POINTS + MIGRATION_POINTS + DELIVERY_POINTS


class _Trap:
    def __init__(self, setting: str) -> None:
        self.point, _, visits = setting.partition(":")
        self.visits = int(visits or 1)
        assert self.point in _ALL, f"{VARIABLE}: there is no crash point {self.point}"


_trap: _Trap | None = None
IS_ARMED = False


def arm(setting: str) -> None:
    """Crash at a point, as the variable says it: `POINT` or `POINT:VISIT`."""
    global _trap, IS_ARMED
    _trap, IS_ARMED = _Trap(setting), True


if _setting := os.environ.get(VARIABLE):
    arm(_setting)


def point(name: str) -> None:
    """A crash point; kills the process if the variable says so."""
    if _trap is not None and _trap.point == name:
        _trap.visits -= 1
        if _trap.visits <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

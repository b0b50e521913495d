"""Named crash points, at which tests kill the process to prove that nothing is lost and nothing is released twice.

`TIDINGS_CRASH_AT=release.settled:3` kills the process with SIGKILL at the third visit of that point. Without the
variable a crash point does nothing.
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
    "kafka.initialised",
    "kafka.taken",
    "kafka.produced",
    "kafka.marked",
    "kafka.committed",
    "kafka.settled",
)
ACCEPT_POINTS = ("accept.done",)
TRANSFER_POINTS = ("transfer.marked", "transfer.written", "transfer.committed")
MIGRATION_POINTS = ("migrate.written", "migrate.committed")
DELIVERY_POINTS = (
    "deliver.read",
    "deliver.claiming",
    "deliver.claimed",
    "deliver.sent",
    "deliver.added",
    "deliver.settled",
    "deliver.committed",
)
_ALL = POINTS + KAFKA_POINTS + ACCEPT_POINTS + TRANSFER_POINTS + MIGRATION_POINTS + DELIVERY_POINTS


class _Trap:
    def __init__(self, setting: str) -> None:
        self.point, _, visits = setting.partition(":")
        self.visits = int(visits or 1)
        assert self.point in _ALL, f"{VARIABLE}: there is no crash point {self.point}"


_setting = os.environ.get(VARIABLE)
_trap = _Trap(_setting) if _setting else None


def point(name: str) -> None:
    """A crash point; kills the process if the variable says so."""
    if _trap is not None and _trap.point == name:
        _trap.visits -= 1
        if _trap.visits <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

"""Named crash points: where the tests kill the process to prove that nothing is lost and nothing leaves twice.

`TIDINGS_CRASH_AT=release.settled:3` ends the process, as `kill -9` would, at the third visit of that point.
Without the variable every point is a call that does nothing.
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
        assert self.point in _ALL, f"{VARIABLE} names no crash point: {self.point}"


_setting = os.environ.get(VARIABLE)
_trap = _Trap(_setting) if _setting else None


def point(name: str) -> None:
    """Pass a named point; the end of the process if the tests asked for it here."""
    if _trap is not None and _trap.point == name:
        _trap.visits -= 1
        if _trap.visits <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

"""The checkers detect faults: the model, the machine and the disk."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest

from tests.contract.factories import ACME, FIRE_ALL, NOW, SECOND, add, every
from tests.faults.disks import inserted
from tests.sim.machine import Machine
from tests.sim.model import Ledger
from tidings.clock import STEP_HOLD_US, SystemClock
from tidings.domain.schedules.command import Add, Cancel, Pause, Replace
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.schedule import Record, Schedule


def left(command: Add, number: int = 1, changes: dict[str, object] | None = None) -> Record:
    """A record as it should be, but for the changes."""
    due = command.due + (number - 1) * SECOND
    name = command.id or ""
    record = Record(command.topic, 0, 0, name, 1, number, due, due, command.message, number == 3 or name == "one")
    return msgspec.structs.replace(record, **(changes or {}))


def ledger(*commands: Add) -> Ledger:
    promised = Ledger()
    promised.apply(list(commands), [command.id or "" for command in commands], NOW)
    return promised


ONE = add("one", NOW + SECOND)
MANY = every("many", NOW, count=3, lateness=FIRE_ALL)


def test_a_correct_run_is_accepted() -> None:
    promised = ledger(ONE, MANY)
    promised.saw(ACME, left(ONE))
    for number in (1, 2, 3):
        promised.saw(ACME, left(MANY, number))
    assert list(promised.overdue(NOW + 9 * SECOND)) == []
    assert [promise.state for promise in promised.current.values()] == ["released", "ended"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"released": NOW}, "early"),
        ({"due": NOW + 2}, "drifted"),
        ({"id": "other"}, "never acknowledged"),
        ({"generation": 2}, "was replaced"),
        ({"message": b"other"}, "not what was sent"),
        ({"final": False}, "wrong about being the last"),
    ],
)
def test_a_wrong_record_is_detected(changes: dict[str, object], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        ledger(ONE).saw(ACME, left(ONE, changes=changes))


def test_a_duplicate_release_is_detected() -> None:
    promised = ledger(ONE)
    promised.saw(ACME, left(ONE))
    with pytest.raises(AssertionError, match="twice"):
        promised.saw(ACME, left(ONE))


@pytest.mark.parametrize("change", [Cancel, Pause])
def test_a_release_of_a_paused_or_cancelled_schedule_is_detected(change: Callable[[str, str], Cancel | Pause]) -> None:
    promised = ledger(ONE)
    promised.apply([change(ACME, "one")], ["one"], NOW)
    with pytest.raises(AssertionError, match="though it was answered"):
        promised.saw(ACME, left(ONE))


def test_a_release_of_a_replaced_schedule_is_detected() -> None:
    promised = ledger(ONE)
    assert promised.apply([Replace(add("one", NOW + 5))], ["one"], NOW) == ["replaced"]
    with pytest.raises(AssertionError, match="was replaced"):
        promised.saw(ACME, left(ONE))


def shown(command: Add, state: str, occurrence: int, due: int) -> Schedule:
    schedule = Schedule(ACME, command.id or "", 1, command.topic, "pending", due, NOW, occurrence=occurrence)
    return msgspec.structs.replace(schedule, state=state)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (ONE, None),
        (ONE, shown(ONE, "pending", 1, ONE.due)),
        (ONE, shown(ONE, "missed", 1, ONE.due)),
        (MANY, shown(MANY, "pending", 2, NOW + SECOND)),
        (MANY, shown(MANY, "pending", 3, NOW + 99 * SECOND)),
        (MANY, shown(MANY, "ended", 3, NOW + 2 * SECOND)),
    ],
)
def test_a_lost_occurrence_is_detected(command: Add, found: Schedule | None) -> None:
    promised = ledger(command)
    now = NOW + 3 * SECOND
    [(_, promise)] = promised.overdue(now)
    with pytest.raises(AssertionError):
        promised.settle(promise, found, now)


def test_a_rightly_missed_occurrence_is_counted() -> None:
    command = every("some", NOW, count=3, lateness=Lateness(expires_after_us=SECOND))
    promised = ledger(command)
    now = NOW + 9 * SECOND
    [(_, promise)] = promised.overdue(now)
    promised.settle(promise, shown(command, "missed", 3, NOW + 2 * SECOND), now)
    assert promised.missed == 3


def test_the_machine_knows_the_latest_believable_time() -> None:
    machine = Machine()
    with machine.installed():
        clock = SystemClock()
        machine.advance(SECOND)
        machine.step(60 * SECOND)
        assert clock.now() == machine.believable(0) == machine.wall() - 60 * SECOND
        machine.advance(STEP_HOLD_US)
        assert machine.believable(0) == machine.wall()
        machine.step(-SECOND)
        assert clock.now() == machine.believable(0) == machine.wall()


@pytest.mark.parametrize("synchronous", ["FULL", "OFF"])
def test_the_disk_loses_unsynced_writes(tmp_path: Path, synchronous: str) -> None:
    with inserted() as disk:
        with contextlib.closing(apsw.Connection(str(tmp_path / "a.db"))) as connection:
            connection.pragma("journal_mode", "wal")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            connection.execute("CREATE TABLE numbers (number INTEGER)")
            for number in range(20):
                connection.execute("INSERT INTO numbers VALUES (?)", (number,))
            kept = []
            for trial in range(20):
                copy = tmp_path / f"copy{trial}.db"
                disk.lose_power(tmp_path / "a.db", copy, random.Random(trial))
                kept.append(count(copy))
        assert (set(kept) == {20}) == (synchronous == "FULL")


def count(path: Path) -> int:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM numbers").get)
        except apsw.Error:
            return -1

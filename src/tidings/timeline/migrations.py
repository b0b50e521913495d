"""Layout versions: the numbered migration steps in a folder, and which of them a store still needs."""

import logging
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from tidings.domain.errors import StoreError
from tidings.domain.schedules.iso8601 import format_duration

logger = logging.getLogger("tidings.store")

# A step with this line runs outside a transaction, as CONCURRENTLY requires in PostgreSQL.
OUTSIDE = "-- tidings: outside a transaction"
FUNCTIONS = "functions"

_NUMBERED = re.compile(r"(\d{4})_(\w+)\.sql\Z")
_STATEMENT_END = re.compile(r";[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


class OldLayout(StoreError):
    """The store has an older layout and must be migrated first."""


class NewerLayout(StoreError):
    """The store was written by a newer Tidings; there are no downgrades."""


class Step(msgspec.Struct, frozen=True):
    """One step from a layout version to the next; its number is the version it leads to."""

    number: int
    name: str
    text: str

    @property
    def label(self) -> str:
        """The step as shown to people."""
        return f"{self.number:04d} {self.name}"

    @property
    def outside(self) -> bool:
        """Whether it runs outside a transaction."""
        return OUTSIDE in self.text.splitlines()

    def statements(self) -> list[str]:
        """Its single statements, without comments."""
        parts = (_COMMENT.sub("", part).strip() for part in _STATEMENT_END.split(self.text))
        return [part for part in parts if part]

    def at_once(self) -> str:
        """The text for a new store that nothing uses yet, to run inside a transaction."""
        return re.sub(r"\bCONCURRENTLY\b", "", self.text) if self.outside else self.text


class Plan(msgspec.Struct, frozen=True):
    """The version of a store, the newest known version, and the names of the steps between them."""

    version: int
    known: int
    steps: tuple[str, ...] = ()


class StepDone(msgspec.Struct, frozen=True):
    """A step that was completed."""

    name: str
    elapsed_us: int


OnStep = Callable[[StepDone], None]


class Layouts:
    """The migration steps and SQL functions in a folder."""

    def __init__(self, folder: Path) -> None:
        found = ((_NUMBERED.match(path.name), path) for path in sorted(folder.iterdir()))
        self.steps = [Step(int(match[1]), match[2], path.read_text()) for match, path in found if match]
        assert [step.number for step in self.steps] == list(range(1, len(self.steps) + 1)), "steps have no gaps"
        self.functions = [path.read_text() for path in sorted(folder.glob(f"{FUNCTIONS}*.sql"))]
        self.digest = sha256("\0".join(self.functions).encode()).hexdigest()[:16]

    @property
    def known(self) -> int:
        """The newest version."""
        return len(self.steps)

    def plan(self, version: int, what: str, *, stale: bool = False) -> Plan:
        """The steps from a version to the newest one; `NewerLayout` if the store is newer than this program."""
        if version > self.known:
            raise NewerLayout(
                f"{what} was written by a newer Tidings (layout {version}, this one knows {self.known}):"
                " upgrade Tidings, or name another store with --store"
            )
        names = [step.label for step in self.steps[version:]]
        if stale or (names and self.functions):
            names.append(FUNCTIONS)
        return Plan(version, self.known, tuple(names))


def log_migration(what: str, plan: Plan, elapsed_us: int) -> None:
    """Log that the start of a node has migrated a store. One that had the newest layout had been interrupted, or its
    documents were still to be moved."""
    extra = {"layout_from": plan.version, "layout_to": plan.known, "elapsed_us": elapsed_us}
    took = format_duration(elapsed_us)
    if plan.version < plan.known:
        logger.info("migrated %s from layout %d to layout %d in %s", what, plan.version, plan.known, took, extra=extra)
    else:
        logger.info("completed the migration of %s to layout %d in %s", what, plan.known, took, extra=extra)


def by_version(text: str) -> tuple[int, ...]:
    """The numbers in a program version, for comparison; a version without numbers is the lowest."""
    return tuple(int(number) for number in re.findall(r"\d+", text))

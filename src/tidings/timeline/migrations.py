"""Layouts by version: the numbered steps of a folder, what of them a store still needs, and what came of them."""

import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from tidings.domain.errors import StoreError

# A step with this line runs outside of a transaction: what PostgreSQL does CONCURRENTLY cannot be part of one.
OUTSIDE = "-- tidings: outside a transaction"
FUNCTIONS = "functions"

_NUMBERED = re.compile(r"(\d{4})_(\w+)\.sql\Z")
_STATEMENT_END = re.compile(r";[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


class OldLayout(StoreError):
    """The store has to be migrated first."""


class NewerLayout(StoreError):
    """The store was written by a newer Tidings; nothing goes backwards."""


class Step(msgspec.Struct, frozen=True):
    """One step from a layout to the next: its number is the version that it leads to."""

    number: int
    name: str
    text: str

    @property
    def label(self) -> str:
        """How it is told to people."""
        return f"{self.number:04d} {self.name}"

    @property
    def outside(self) -> bool:
        """Whether it runs outside of a transaction."""
        return OUTSIDE in self.text.splitlines()

    def statements(self) -> list[str]:
        """Its statements one by one, without comments."""
        parts = (_COMMENT.sub("", part).strip() for part in _STATEMENT_END.split(self.text))
        return [part for part in parts if part]

    def at_once(self) -> str:
        """The same for a store that nobody uses yet, as part of a transaction."""
        return re.sub(r"\bCONCURRENTLY\b", "", self.text) if self.outside else self.text


class Plan(msgspec.Struct, frozen=True):
    """What a store needs: the version that it has and the one that is known here, and the steps between, by name."""

    version: int
    known: int
    steps: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """One step that was taken."""

    name: str
    elapsed_us: int


Tell = Callable[[Done], None]


class Layouts:
    """A folder of steps and functions, as a version of Tidings comes with it."""

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
        """What leads from a version to the newest one; `NewerLayout` if there is no way."""
        if version > self.known:
            raise NewerLayout(
                f"{what} was written by a newer Tidings (layout {version}, this one knows {self.known}):"
                " upgrade Tidings, or name another store with --store"
            )
        names = [step.label for step in self.steps[version:]]
        if stale or (names and self.functions):
            names.append(FUNCTIONS)
        return Plan(version, self.known, tuple(names))


def by_version(text: str) -> tuple[int, ...]:
    """The numbers of a version of the program, for comparison; one that has none comes before all."""
    return tuple(int(number) for number in re.findall(r"\d+", text))

"""A disk that can lose power, fail or fill up: a layer between SQLite and the machine's files.

For each file it knows which bytes were synced (`xSync`) and which were only written. After a power cut the synced
ones are there; of the others nothing, some sectors in any order, or all may be.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import apsw

SECTOR = 512
SHARED_MEMORY = "-shm"

_names = count(1)


@dataclass
class Content:
    """One file: what is safe, and what was written since, in order."""

    safe: bytearray = field(default_factory=bytearray)
    written: list[tuple[int, bytes | None]] = field(default_factory=list)  # offset and data; None cuts it off there

    def sync(self) -> None:
        for offset, data in self.written:
            put(self.safe, offset, data)
        self.written.clear()

    def after_power_loss(self, keep: Callable[[], bool]) -> bytes:
        """The content after a power loss: each unsynced sector is kept or not."""
        found = bytearray(self.safe)
        for offset, data in self.written:
            if data is None:
                if keep():
                    put(found, offset, None)
                continue
            for start in range(0, len(data), SECTOR):
                if keep():
                    put(found, offset + start, data[start : start + SECTOR])
        return bytes(found)


def put(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write into a file's bytes, or cut them off."""
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def no_fault(_operation: str, _name: str) -> apsw.Error | None:
    """A disk without faults."""
    return None


class Fault:
    """Some operations fail from a certain one on: writes, syncs or reads."""

    def __init__(self, chance: random.Random) -> None:
        self.operations = chance.choice((("write", "truncate"), ("sync",), ("read",), ("write", "sync", "read")))
        self.error = apsw.FullError if self.operations[0] == "write" and chance.random() < 0.7 else apsw.IOError
        self.spared = chance.choice((0, 0, 1, 2, 5, 15, 40))
        self.lasts = chance.choice((1, 3, 1_000))
        self.count = 0

    def __call__(self, operation: str, _name: str) -> apsw.Error | None:
        if operation not in self.operations:
            return None
        self.spared -= 1
        if self.spared >= 0 or self.count >= self.lasts:
            return None
        self.count += 1
        return self.error(f"the disk fails to {operation}")

    def __str__(self) -> str:
        return f"{self.error.__name__} on {'/'.join(self.operations)} after {self.spared}, {self.lasts} times"


class Disk(apsw.VFS):  # type: ignore[misc] # apsw's types are not followed
    """Every connection opened while it is `inserted` goes through it."""

    def __init__(self) -> None:
        self._name = f"tests-disk-{next(_names)}"
        super().__init__(self._name, "unix", makedefault=True)
        self.broken: Callable[[str, str], apsw.Error | None] = no_fault
        self.watch: Callable[[str, str], None] = lambda _operation, _name: None
        self._contents: dict[str, Content] = {}
        self._lock = threading.RLock()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return DiskFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        with self._lock:
            self._contents.pop(filename, None)

    # Called by the files

    def content(self, name: str) -> Content:
        with self._lock:
            if name not in self._contents:
                path = Path(name)
                self._contents[name] = Content(bytearray(path.read_bytes() if path.exists() else b""))
            return self._contents[name]

    def act(self, operation: str, name: str) -> None:
        """Called before each operation: it may fail, and `watch` is called."""
        error = self.broken(operation, name)
        if error is not None:
            raise error
        self.watch(operation, name)

    def write(self, name: str, offset: int, data: bytes | None) -> None:
        with self._lock:
            self.content(name).written.append((offset, data))

    def sync(self, name: str) -> None:
        with self._lock:
            self.content(name).sync()

    def lose_power(self, source: Path, copy: Path, chance: random.Random) -> None:
        """Write what would be found of a store's files, under another name."""
        share = chance.choice((0.0, 0.5, 0.9, 1.0))
        with self._lock:
            for name, content in self._contents.items():
                if name.startswith(str(source)) and not name.endswith(SHARED_MEMORY):
                    found = content.after_power_loss(lambda: chance.random() < share)
                    Path(name.replace(str(source), str(copy), 1)).write_bytes(found)


class DiskFile(apsw.VFSFile):  # type: ignore[misc] # apsw's types are not followed
    """One open file."""

    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._name = str(name.filename() if isinstance(name, apsw.URIFilename) else name)
        disk.act("open", self._name)
        super().__init__("unix", name, flags)
        disk.content(self._name)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.act("read", self._name)
        return bytes(super().xRead(amount, offset))

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.act("write", self._name)
        super().xWrite(data, offset)
        self._disk.write(self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.act("truncate", self._name)
        super().xTruncate(newsize)
        self._disk.write(self._name, newsize, None)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.act("sync", self._name)
        super().xSync(flags)
        self._disk.sync(self._name)


@contextlib.contextmanager
def inserted() -> Iterator[Disk]:
    """A disk under everything that SQLite opens meanwhile; all must be closed before it is taken out."""
    disk = Disk()
    try:
        yield disk
    finally:
        disk.unregister()

"""Downloads, cached in `.cache`; errors say what to install."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache"
FETCH_S_MAX = 900.0
TAIL_LINES = 15


class Missing(Exception):
    """A program or a download that this machine does not have; the message says what to install."""


def program(name: str, advice: str) -> str:
    """The path of a program."""
    path = shutil.which(name)
    if path is None:
        raise Missing(f"{name} is not there: {advice}")
    return path


def fetched(name: str, descriptor: bytes, fetch: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled by the first test that needs it. Another descriptor has another folder."""
    folder = CACHE / f"{name}-{hashlib.sha256(descriptor).hexdigest()[:8]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fill(folder, fetch)
    return folder


def _fill(folder: Path, fetch: Callable[[Path], None]) -> None:
    """All of it or nothing: the folder gets its name when it is complete."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".half-") as half:
        made = Path(half) / "made"
        made.mkdir()
        fetch(made)
        made.rename(folder)


def run_fetch(command: Sequence[str], folder: Path, advice: str) -> None:
    """Run a program that downloads."""
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=FETCH_S_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{advice} ({Path(command[0]).name} took more than {FETCH_S_MAX:.0f} s)") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise Missing("\n".join([f"{advice}. {Path(command[0]).name} says:", *said[-TAIL_LINES:]]))

"""Runs a page as one terminal session: its blocks in order, in one shell, in a folder of their own."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import Block, blocks
from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out
from tests.servers.postgres import Postgres

PLAY_S = 55.0
PORT, *MORE_PORTS = PORTS = (8460, 8461, 8462)
POSTGRES_PORT = 5432
ADMINISTRATOR = "as an administrator"
READY = Path(__file__).with_name("ready.py")
MARK = "@@@"

_TAIL = re.compile(r"^(\.venv/bin/tidings tail (?!.*--count)[^|&>\n]*)$", re.MULTILINE)
_SERVES = re.compile(r"tidings serve\b[^\n]*&$", re.MULTILINE)
_KILLED = re.compile(r"^.*: line \d+: +\d+ Killed .*\n", re.MULTILINE)

# What differs from one run to the next. Each is shown in the pages as some run printed it.
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z"), "TIME"),
    (re.compile(r"due \d{4}-\d\d-\d\d (\d\d:\d\d:\d\d)[+-]\d\d:\d\d = "), r"due \1 = "),
    (re.compile(r"\((in [^)]+|[^)]+ ago|now)\)"), "(THEN)"),
    (re.compile(r"-?[\d,]+(\.\d+)? (ms|s)\b"), "N ms"),
    (re.compile(r'"late_ms":[\d.]+'), '"late_ms":N'),
    (re.compile(r"\btid_\d{33}\b"), "TID"),
    (re.compile(r"\bn_\d{16}_[0-9a-f]{12}\b"), "NID"),
    (re.compile(r"\btdk_[\w-]{43}"), "TDK"),
    (re.compile(r'"(member|generation)":("[0-9a-f]{16}"|\d{13})'), r'"\1":X'),
    (re.compile(r"\([\d,]+/s\)"), "(N/s)"),
    (re.compile(rf"127\.0\.0\.1:(?!{PORT}\b)\d{{4,5}}"), f"127.0.0.1:{PORT}"),
    (re.compile(r"(_seconds_sum|_bytes) [\d.]+$", re.MULTILINE), r"\1 N"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass
class Played:
    """The result of a page: the output of each block, and the exit codes of commands that failed."""

    page: list[Block]
    printed: dict[int, str] = field(default_factory=dict)
    codes: dict[int, list[int]] = field(default_factory=dict)
    log: str = ""


def play(page: Path, folder: Path) -> Played:
    """Run every block of a page that is to be run."""
    found, ports = blocks(page), _free_ports()
    (folder / ".venv").symlink_to(sys.prefix)
    script, output = folder / ".play.sh", folder / ".output"
    with _served(found) as postgres_port, output.open("ab") as sink:
        script.write_text(_ported(_script(found), (*PORTS, POSTGRES_PORT), (*ports, postgres_port)))
        process = subprocess.Popen(
            ["bash", script.name],
            cwd=folder,
            env=_environment(ports[0]),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(PLAY_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return _read(found, output.read_text("utf-8"), folder)


def masked(text: str) -> list[str]:
    """The lines of an output, with values that vary masked, and without empty lines."""
    for pattern, word in _VARIES:
        text = pattern.sub(word, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def _environment(port: int) -> dict[str, str]:
    """Our environment, with a server on a free port."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
    url = f"http://127.0.0.1:{port}"
    return kept | {"NO_COLOR": "1", "TIDINGS_URL": url, "TIDINGS_SERVER_PORT": str(port)}


@contextmanager
def _served(page: list[Block]) -> Iterator[int]:
    """The port of a PostgreSQL set up as by an administrator; None if the page needs none."""
    if not any("postgres://" in block.text for block in page if block.runs):
        yield POSTGRES_PORT
        return
    try:
        server = Postgres.start()
    except Missing as missing:
        leave_out(missing)
    with server:
        with server.connect() as connection:
            for block in page:
                for statement in block.text.split(";\n") if block.note == ADMINISTRATOR else ():
                    connection.execute(statement.encode())
        yield server.port


def _free_ports() -> list[int]:
    sockets = [socket.socket() for _ in PORTS]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _script(page: list[Block]) -> str:
    """The page as a shell script: a mark before each block, the codes of failing commands in a file beside it."""
    parts = ["set -E", "trap 'kill -9 $(jobs -p) 2>/dev/null' EXIT"]
    if all(port != PORT for block in page if block.runs for port, _ in _started(block)):
        parts.append(f".venv/bin/tidings serve > .serve.log 2>&1 &\n{_ready(PORT, 'readyz')}")
    for number, block in enumerate(page):
        if block.runs:
            parts.append(f"printf '\\n{MARK} {number}\\n'")
            parts.append(f"trap 'echo {number} $? >> .codes' ERR")
            parts.append(_python(number, block) if block.language == "python" else _shell(block))
            parts.append("trap - ERR")
            parts += [_ready(port, probe) for port, probe in _started(block) if not waits(block)]
    return "\n".join([*parts, f"printf '\\n{MARK} end\\n'", "exit 0", ""])


def _shell(block: Block) -> str:
    """The commands; a `tail` without end ends with the last line that the page shows."""
    lines = len((block.printed or "").splitlines())
    others = len(re.findall(r"^\.venv/bin/tidings(?! tail)", block.text, re.MULTILINE))
    return _TAIL.sub(rf"\1 --count {max(1, lines - others)}", block.text)


def _python(number: int, block: Block) -> str:
    return f"cat > .block{number}.py <<'{MARK}'\n{block.text}{MARK}\n.venv/bin/python .block{number}.py"


def _started(block: Block) -> list[tuple[int, str]]:
    """The servers that a block starts, and what to ask them before continuing."""
    found = (match[0] for match in _SERVES.finditer(block.text))
    return [next(((port, "healthz") for port in MORE_PORTS if str(port) in line), (PORT, "readyz")) for line in found]


def waits(block: Block) -> bool:
    """Whether a block waits by itself for the server that it starts, as a reader who pastes it needs."""
    return "&\ncurl -s --retry" in block.text


def starts(block: Block) -> bool:
    """Whether a block starts a server in the background."""
    return bool(_started(block))


def _ready(port: int, probe: str) -> str:
    python, ready = shlex.quote(sys.executable), shlex.quote(str(READY))
    return f"{python} {ready} http://127.0.0.1:{port}/{probe}"


def _ported(script: str, shown: Sequence[int], ports: Sequence[int]) -> str:
    """The script with free ports in the place of those that are shown."""
    for ours, free in zip(shown, ports, strict=True):
        script = re.sub(rf"(127\.0\.0\.1:|--port ){ours}\b", rf"\g<1>{free}", script)
    return script


def _read(page: list[Block], output: str, folder: Path) -> Played:
    played = Played(page, log="\n".join(log.read_text() for log in sorted(folder.glob("*.log"))))
    for part in _KILLED.sub("", output).split(f"\n{MARK} ")[1:]:
        number, _, printed = part.partition("\n")
        if number != "end":
            played.printed[int(number)] = printed
    codes = folder / ".codes"
    for line in codes.read_text().splitlines() if codes.exists() else ():
        number, code = line.split()
        played.codes.setdefault(int(number), []).append(int(code))
    return played

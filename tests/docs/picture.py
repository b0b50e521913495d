"""`python -m tests.docs.picture`: record the terminal session that README shows, and write it to docs/terminal.svg.

The session is real: a server in a temporary folder, server and commands on pseudo-terminals, and the output as it was
printed, with its colours; only the name of the folder is replaced. `tail` is ended by a count of one, and shown as if
ended by Ctrl-C. Run it again when the output of one of these commands changes.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

from tests.docs.pages import DOCS
from tests.docs.terminal import READY

PICTURE = DOCS / "terminal.svg"
SERVER = "make run"
FOLDER = "/home/ada/tidings"  # shown instead of the temporary folder
INDENT = " " * 4
COMMANDS = (
    """.venv/bin/tidings schedule --to greetings --at +5s '{"hello":"world"}'""",
    ".venv/bin/tidings tail greetings",
    (
        ".venv/bin/tidings notify --to ada@example.com --channel email --text 'Coffee?' \\\n"
        f"{INDENT}--at 'tomorrow 09:00' --zone America/New_York --id coffee"
    ),
    ".venv/bin/tidings notifications cancel coffee",
)
COLUMNS = 118
CHARACTER_PX = 7.83
LINE_PX, BASELINE_PX, MARGIN_PX, BAR_PX = 20, 14, 16, 32

_STYLE = re.compile(r"\x1b\[([\d;]*)m")
_CLASSES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}


def record() -> list[str]:
    """The lines of both terminals: the server's own, then the commands with what they printed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".venv").symlink_to(sys.prefix)
        ours, theirs = pty.openpty()
        server = subprocess.Popen(
            [".venv/bin/tidings", "serve"], cwd=folder, stdout=theirs, stderr=theirs, env=_environment()
        )
        os.close(theirs)
        try:
            subprocess.run([sys.executable, str(READY), "http://127.0.0.1:8460/readyz"], check=True)
            lines = [f"$ {SERVER}", *_banner(ours), ""]
            for command in COMMANDS:
                ends = f"{command} --count 1" if " tail " in command else command
                lines += [*f"$ {command}".splitlines(), *_typed(ends, folder)]
                lines += ["^C"] if ends != command else []
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
            os.close(ours)
    return [line.replace(folder, FOLDER) for line in lines]


def _banner(terminal: int) -> list[str]:
    """What the server printed on its terminal until it was ready, up to the end of its last line."""
    printed = ""
    while "listens on" not in printed or not printed.endswith("\n"):
        printed += os.read(terminal, 1 << 16).decode()
    return _lines(printed)


def _typed(command: str, folder: str) -> list[str]:
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    subprocess.run(["bash", "-c", command], cwd=folder, stdout=theirs, stderr=theirs, env=_environment(), check=True)
    os.close(theirs)
    printed = os.read(ours, 1 << 16).decode()
    os.close(ours)
    return _lines(printed)


def _environment() -> dict[str, str]:
    """Our environment, with a terminal that has colours."""
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return kept | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}


def _lines(printed: str) -> list[str]:
    return printed.replace("\r\n", "\n").strip("\n").splitlines()


def draw(lines: list[str]) -> str:
    """The lines as a picture of a terminal window."""
    width = round(2 * MARGIN_PX + COLUMNS * CHARACTER_PX)
    height = BAR_PX + 2 * MARGIN_PX + len(lines) * LINE_PX
    top = BAR_PX + MARGIN_PX + BASELINE_PX
    rows = (
        f'  <text xml:space="preserve" x="{MARGIN_PX}" y="{top + LINE_PX * number}">{"".join(_spans(line))}</text>'
        for number, line in enumerate(lines)
        if line
    )
    head = _HEAD.format(width=width, height=height, bar=BAR_PX, corner=width - 10)
    return "\n".join((head, *rows, "</svg>", ""))


def _spans(line: str) -> Iterator[str]:
    """A line in pieces of one style each; the prompt is dim, what is typed is bold."""
    if line.startswith(("$ ", INDENT)):
        yield f'<tspan class="dim">{line[:2]}</tspan><tspan class="bold">{escape(line[2:], quote=False)}</tspan>'
        return
    style = ""
    for number, piece in enumerate(_STYLE.split(line)):
        if number % 2:
            style = _CLASSES.get(piece, "")
        elif piece:
            text = escape(piece, quote=False)
            yield f'<tspan class="{style}">{text}</tspan>' if style else text


_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" \
aria-labelledby="title desc">
  <title id="title">A terminal session with Tidings</title>
  <desc id="desc">make run starts the server. tidings schedule schedules a message five seconds ahead, tidings tail
    prints it when it is released with its lateness, tidings notify schedules an e-mail for nine o'clock in New York,
    and tidings notifications cancel cancels it.</desc>
  <style>
    text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d0d7de;
      white-space: pre; }}
    .bold {{ font-weight: 600; fill: #f0f6fc; }}
    .dim {{ fill: #848d97; }}
    .red {{ fill: #ff7b72; }}
    .green {{ fill: #56d364; }}
    .yellow {{ fill: #e3b341; }}
    .cyan {{ fill: #76e3ea; }}
  </style>
  <rect width="{width}" height="{height}" rx="10" fill="#161b22"/>
  <path d="M0 {bar}V10Q0 0 10 0H{corner}Q{width} 0 {width} 10V{bar}z" fill="#21262d"/>
  <circle cx="20" cy="16" r="6" fill="#ff5f57"/>
  <circle cx="40" cy="16" r="6" fill="#febc2e"/>
  <circle cx="60" cy="16" r="6" fill="#28c840"/>"""


if __name__ == "__main__":
    PICTURE.write_text(draw(record()), "utf-8")

"""Exit codes, the failure that ends a command, and the name of the program in messages."""

import shlex
import shutil
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

from tidings.domain.errors import TidingsError

NAME = "tidings"


class Exit(IntEnum):
    """The exit codes; `INTERRUPTED` is the code that shells use for Ctrl-C."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    INTERRUPTED = 130


class Failure(TidingsError):
    """A command cannot continue: the exit code, the text for people, and the document for scripts."""

    def __init__(self, code: Exit, text: str, document: Any = None) -> None:
        super().__init__(text)
        self.code = code
        self.document = document


def code_of_status(status: int) -> Exit:
    """The exit code for an HTTP status."""
    match status:
        case 400 | 413 | 422:
            return Exit.USAGE
        case 404:
            return Exit.NOT_FOUND
        case 409:
            return Exit.CONFLICT
        case _:
            return Exit.DONE if status < 400 else Exit.FAILED


def code_of_outcome(outcome: str) -> Exit:
    """The exit code for the outcome of one of many new schedules; `cancelled`: the id was cancelled before."""
    match outcome:
        case "unknown":
            return Exit.NOT_FOUND
        case "in_flight" | "already_released" | "cancelled" | "conflict":
            return Exit.CONFLICT
        case "rejected":
            return Exit.FAILED
        case _:
            return Exit.DONE


def program() -> str:
    """The command to type: `tidings` if it is on the PATH, else how it was called, such as `.venv/bin/tidings`."""
    called = sys.argv[0]
    match Path(called).name:
        case "__main__.py":
            return f"{shlex.quote(sys.orig_argv[0])} -m {NAME}"
        case "tidings" if shutil.which(NAME) != called:
            return shlex.quote(called)
        case _:
            return NAME

"""The name of this program, as whoever reads a hint would have to type it."""

import shlex
import shutil
import sys
from pathlib import Path

NAME = "tidings"


def program() -> str:
    """`tidings` where the shell finds it by that name, else what it was called by, such as `.venv/bin/tidings`."""
    called = sys.argv[0]
    match Path(called).name:
        case "__main__.py":
            return f"{shlex.quote(sys.orig_argv[0])} -m {NAME}"
        case "tidings" if shutil.which(NAME) != called:
            return shlex.quote(called)
        case _:
            return NAME

"""Layouts of a later version: the present steps and more, in a folder of their own."""

import shutil
from pathlib import Path

from tidings.timeline.migrations import Layouts


def later(today: Path, folder: Path, functions: str | None = None, **steps: str) -> Path:
    """A folder with the present steps and these, in the given order."""
    made = folder / f"layouts-{len(list(folder.glob('layouts-*')))}"
    made.mkdir()
    for path in today.glob("*.sql"):
        shutil.copy(path, made)
    first = Layouts(today).known + 1
    for number, (name, text) in enumerate(steps.items(), first):
        (made / f"{number:04d}_{name}.sql").write_text(text)
    if functions is not None:
        (made / "functions_later.sql").write_text(functions)
    return made

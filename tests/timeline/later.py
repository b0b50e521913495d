"""Layouts that are not written yet: those of today, and more steps behind them, in a folder of their own."""

import shutil
from pathlib import Path

from tidings.timeline.migrations import Layouts


def later(today: Path, folder: Path, functions: str | None = None, **steps: str) -> Path:
    """A folder with the layouts of today and these steps, in order of their names as given."""
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

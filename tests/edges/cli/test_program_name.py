"""The name of the program in hints: what the reader would have to type."""

import sys
from pathlib import Path

import pytest

from tidings.edges.cli.exit_codes import program


@pytest.mark.parametrize(
    ("called", "shown"),
    [
        ("/usr/local/bin/pytest", "tidings"),
        (".venv/bin/tidings", ".venv/bin/tidings"),
        ("/a folder/tidings", "'/a folder/tidings'"),
        ("/src/tidings/__main__.py", "python3 -m tidings"),
    ],
)
def test_it_is_shown_as_it_was_called(called: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [called, "show", "x"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "tidings", "show", "x"])
    monkeypatch.setenv("PATH", "")
    assert program() == shown


def test_on_the_path_its_name_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "tidings"
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "tidings"

"""Tables on a terminal: they fit its width, and lose first what is least needed."""

from collections.abc import Sequence

import pytest

from tidings.edges.cli.screen import Screen

HEADS = ("id", "topic", "state", "priority", "due")
DUE = "2026-11-20 09:00:00.123456Z (in 5 d 3 h)"
ROWS = [("order-42-reminder", "greetings", "pending", "normal", DUE), ("b", "greetings", "released", "high", DUE)]


def printed(
    capsys: pytest.CaptureFixture[str], width: int | None, heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    screen = Screen(0)
    screen.width = width
    screen.table(heads, rows, spare=("priority",))
    lines = capsys.readouterr().out.splitlines()
    assert width is None or max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize(
    ("width", "first"),
    [
        (None, "order-42-reminder  greetings  pending   normal    2026-11-20 09:00:00.123456Z (in 5 d 3 h)"),
        (85, "order-42-reminder  greetings  pending   normal    2026-11-20 09:00:00Z (in 5 d 3 h)"),
        (80, "order-42-reminder  greetings  pending   normal    2026-11-20 09:00:00Z"),
        (62, "order-42-reminder  greetings  pending   2026-11-20 09:00:00Z"),
        (55, "order-…inder  greetings  pending   2026-11-20 09:00:00Z"),
    ],
)
def test_a_table_loses_what_is_least_needed(capsys: pytest.CaptureFixture[str], width: int | None, first: str) -> None:
    assert printed(capsys, width, HEADS, ROWS)[1] == first


def test_what_was_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(0)
    screen.width = 60
    screen.table(HEADS, ROWS, spare=("priority",))
    assert "left out to fit the terminal: priority" in capsys.readouterr().err


def test_columns_without_content_go_and_the_last_is_cut_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a" * 30, "", "why it is " + "so " * 30)]
    lines = printed(capsys, 40, ("id", "nothing", "why"), rows)
    assert lines[0].split() == ["id", "why"]
    assert lines[1].endswith("…")
    assert "…" in lines[1].split()[0]


def test_a_pipe_gets_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert Screen(0).width is None  # standard output is no terminal here
    assert printed(capsys, None, ("id",), [("x" * 500,)])[1] == "x" * 500


def test_the_width_is_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "97")
    assert Screen(0).width == 97

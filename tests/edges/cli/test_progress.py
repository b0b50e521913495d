"""The progress bar: to scale where the size is known, silent where nobody watches."""

import pytest

from tidings.edges.cli.screen import WIDTH, Progress, ProgressCount


class Hand:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.at = 1_000_000

    def now(self) -> int:
        return self.at

    def elapsed(self) -> int:
        return self.at


def test_the_bar_is_to_scale() -> None:
    progress = Progress(180, Hand())
    progress.sent(b"12345678\n" * 20)
    progress.answered(10)
    assert progress.line(2_000_000) == f"[{'#' * (WIDTH // 2):<{WIDTH}}]  50%  10 lines  10/s"


def test_without_a_size_it_counts() -> None:
    progress = Progress(None, Hand())
    progress.answered(2_000)
    assert progress.line(3_000_000) == "2,000 lines  1,000/s"


def test_it_is_drawn_for_a_person_and_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    clock = Hand()
    with Progress(None, clock) as progress:
        progress.answered(1)
        progress.answered(2)
        clock.at += 200_000
        progress.answered(3)
    drawn = capsys.readouterr().err
    assert drawn.count("lines") == 2
    assert drawn.endswith("\r\x1b[K")


def test_it_is_silent_for_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, Hand()) as progress:
        progress.answered(1)
    assert capsys.readouterr().err == ""


def test_all_is_said_only_when_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    counted = ProgressCount("done", Hand())
    assert " 99%  60,007 of 60,017 done" in counted.line(60_007, 60_017, 2_000_000)
    assert "100%  60,017 of 60,017 done" in counted.line(60_017, 60_017, 2_000_000)

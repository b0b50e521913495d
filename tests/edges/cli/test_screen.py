"""The output for people: values, tables that fit the terminal, times and progress bars."""

from collections.abc import Sequence

import pytest

from tidings.edges.cli.screen import (
    WIDTH,
    Progress,
    ProgressCount,
    ReaderGone,
    Screen,
    clock_text,
    dump,
    instant,
    late,
    length,
    relative,
    shown,
)

HEADS = ("id", "topic", "state", "priority", "due")
DUE = "2026-11-20 09:00:00.123456Z (in 5 d 3 h)"
ROWS = [("order-42-reminder", "greetings", "pending", "normal", DUE), ("b", "greetings", "released", "high", DUE)]


def test_control_characters_are_escaped() -> None:
    assert shown("a\x1b[31mb\n\u202e") == "a\\x1b[31mb\\n\\u202e"
    assert shown(None) == ""
    assert shown("grüße ✓") == "grüße ✓"


def test_tables_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(0).table(("id", "state"), [("a", "pending"), ("longer", None)])
    assert capsys.readouterr().out == "id      state\na       pending\nlonger\n"


def test_only_states_are_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(0)
    screen.colour = True
    screen.table(("", "n"), [("paused", "1")], heading=False, states=False)
    screen.table(("", "n"), [("paused", "1")], heading=False)
    assert capsys.readouterr().out == "paused  1\n\x1b[33mpaused\x1b[0m  1\n"


def test_facts_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(0).facts([("id", "a"), ("reason", None), ("headers", [])])
    assert capsys.readouterr().out == "id  a\n"


def test_moments_are_exact_and_relative() -> None:
    assert Screen(0).moment("1970-01-01T00:00:05.000000Z") == "1970-01-01 00:00:05Z (in 5.0 s)"
    assert Screen(0).moment(None) == ""


@pytest.mark.parametrize(
    ("no_color", "term", "coloured"), [("", "xterm", True), ("1", "xterm", False), ("", "dumb", False)]
)
def test_colours_are_used_only_on_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, no_color: str, term: str, coloured: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    assert ("\x1b[" in Screen(0).word("pending")) is coloured


def test_lateness_is_in_milliseconds() -> None:
    record = {"due_at": "2026-11-20T09:00:00.000000Z", "released_at": "2026-11-20T09:00:01.234500Z"}
    assert late(record) == "1,234.5 ms"
    assert late({}) == ""


def test_json_is_one_line() -> None:
    assert dump({"a": "ü\n"}) == '{"a":"ü\\n"}'


def test_a_closed_pipe_is_not_a_network_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", fail)
    with pytest.raises(ReaderGone):
        Screen(0).say("x")


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
def test_a_table_is_shortened_by_what_is_least_needed(
    capsys: pytest.CaptureFixture[str], width: int | None, first: str
) -> None:
    assert printed(capsys, width, HEADS, ROWS)[1] == first


def test_columns_that_were_left_out_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(0)
    screen.width = 60
    screen.table(HEADS, ROWS, spare=("priority",))
    assert "columns left out to fit: priority (see --json)" in capsys.readouterr().err


def test_empty_columns_are_removed_and_the_last_column_is_cut_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a" * 30, "", "why it is " + "so " * 30)]
    lines = printed(capsys, 40, ("id", "nothing", "why"), rows)
    assert lines[0].split() == ["id", "why"]
    assert lines[1].endswith("…")
    assert "…" in lines[1].split()[0]


def test_output_to_a_pipe_is_not_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    assert Screen(0).width is None  # standard output is no terminal here
    assert printed(capsys, None, ("id",), [("x" * 500,)])[1] == "x" * 500


def test_the_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "97")
    assert Screen(0).width == 97


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0, "now"),
        (999, "now"),
        (5_000, "in 5 ms"),
        (5_003_000, "in 5.0 s"),
        (-1_500_000, "1.5 s ago"),
        (65_000_000, "in 1 min 5 s"),
        (-3_600_000_000, "1 h ago"),
        (90_061_000_000, "in 1 d 1 h"),
        (86_405_000_000, "in 1 d"),
    ],
)
def test_relative(us: int, said: str) -> None:
    assert relative(us) == said


def test_times_are_shown_without_trailing_zeros() -> None:
    assert clock_text("2026-11-20T09:00:00.000000Z") == "2026-11-20 09:00:00Z"
    assert clock_text("2026-11-20T09:00:00.250000Z") == "2026-11-20 09:00:00.250Z"
    assert clock_text("2026-11-20T09:00:00.159360Z") == "2026-11-20 09:00:00.159360Z"
    assert clock_text("2026-11-20T09:00:00.000001Z") == "2026-11-20 09:00:00.000001Z"


def test_instants() -> None:
    assert instant("1970-01-01T00:00:01.000002Z") == 1_000_002
    assert instant("1970-01-01T01:00:00+01:00") == 0
    assert [instant(text) for text in ("soon", None, "1970-01-01T00:00:00")] == [None, None, None]


def test_length_of_less_than_a_second() -> None:
    assert length(850_400) == "850 ms"


class FixedClock:
    """A clock that shows `at` until it is changed."""

    def __init__(self) -> None:
        self.at = 1_000_000

    def now(self) -> int:
        return self.at

    def elapsed(self) -> int:
        return self.at


def test_the_bar_is_to_scale() -> None:
    progress = Progress(180, FixedClock())
    progress.sent(b"12345678\n" * 20)
    progress.answered(10)
    assert progress.line(2_000_000) == f"[{'#' * (WIDTH // 2):<{WIDTH}}]  50%  10 lines  10/s"


def test_progress_without_a_size_shows_counts() -> None:
    progress = Progress(None, FixedClock())
    progress.answered(2_000)
    assert progress.line(3_000_000) == "2,000 lines  1,000/s"


def test_the_bar_is_drawn_on_a_terminal_and_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    clock = FixedClock()
    with Progress(None, clock) as progress:
        progress.answered(1)
        progress.answered(2)
        clock.at += 200_000
        progress.answered(3)
    drawn = capsys.readouterr().err
    assert drawn.count("lines") == 2
    assert drawn.endswith("\r\x1b[K")


def test_no_bar_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, FixedClock()) as progress:
        progress.answered(1)
    assert capsys.readouterr().err == ""


def test_100_percent_is_shown_only_when_everything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    counted = ProgressCount("done", FixedClock())
    assert " 99%  60,007 of 60,017 done" in counted.line(60_007, 60_017, 2_000_000)
    assert "100%  60,017 of 60,017 done" in counted.line(60_017, 60_017, 2_000_000)

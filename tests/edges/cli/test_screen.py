"""Tables and times; and nothing that a record holds may steer the terminal."""

import pytest

from tidings.edges.cli.screen import ReaderGone, Screen, dump, late, shown


def test_control_characters_are_shown_not_sent() -> None:
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


def test_facts_leave_out_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(0).facts([("id", "a"), ("reason", None), ("headers", [])])
    assert capsys.readouterr().out == "id  a\n"


def test_moments_are_exact_and_relative() -> None:
    assert Screen(0).moment("1970-01-01T00:00:05.000000Z") == "1970-01-01 00:00:05Z (in 5.0 s)"
    assert Screen(0).moment(None) == ""


@pytest.mark.parametrize(
    ("no_color", "term", "coloured"), [("", "xterm", True), ("1", "xterm", False), ("", "dumb", False)]
)
def test_colours_only_where_they_are_wanted(
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


def test_a_closed_pipe_is_not_the_networks_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", fail)
    with pytest.raises(ReaderGone):
        Screen(0).say("x")

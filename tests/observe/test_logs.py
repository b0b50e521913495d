"""Log formats, and the summary of bursts."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tidings.domain.facts import Changed, Missed, OwnershipChanged, Refused, Released
from tidings.domain.schedules.command import Cancel, Outcome
from tidings.observe import logs
from tidings.observe.logs import FactLog, configure
from tidings.testing import eventually


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Restore the logging configuration of the process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_without_a_terminal_logs_are_json_lines() -> None:
    stream = io.StringIO()
    configure("info", stream)
    logging.getLogger("tidings.x").info("hello %s", "world", extra={"port": 8460, "odd": {1, 2}.__class__})
    logging.getLogger("tidings.x").debug("not shown")
    [line] = lines(stream)
    assert (line["level"], line["logger"], line["message"], line["port"]) == ("info", "tidings.x", "hello world", 8460)
    assert line["at"].endswith("Z")


def test_errors_have_their_traceback() -> None:
    for stream in (io.StringIO(), Terminal()):
        configure("info", stream)
        try:
            raise ValueError("a fault")
        except ValueError:
            logging.getLogger("tidings").exception("it failed")
        assert "ValueError: a fault" in stream.getvalue()
        assert "it failed" in stream.getvalue()


def test_a_terminal_gets_readable_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    configure("debug", stream)
    logging.getLogger("tidings").warning("careful", extra={"topic": "greetings"})
    text = stream.getvalue()
    assert "warning: careful" in text
    assert 'topic="greetings"' in text
    assert "\x1b[33m" in text
    assert text.count("\n") == 1


def test_readable_lines_have_values_as_json_and_leave_out_empty_ones() -> None:
    stream = io.StringIO()
    configure("info", stream, as_json=False)
    fields = {"owner": False, "lanes": (), "reason": None, "late_us": 0, "reasons": {"expired": 2}, "text": ""}
    logging.getLogger("tidings").info("it happened", extra=fields)
    assert stream.getvalue().endswith('  it happened  owner=false late_us=0 reasons={"expired":2}\n')


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    configure("info", stream)
    logging.getLogger("tidings").warning("careful", extra={"topic": "greetings"})
    assert stream.getvalue().endswith('  warning: careful  topic="greetings"\n')
    assert "\x1b" not in stream.getvalue()


def test_the_format_can_be_chosen() -> None:
    stream, screen = io.StringIO(), Terminal()
    configure("info", stream, as_json=False)
    logging.getLogger("tidings").info("plain")
    assert stream.getvalue().rstrip().endswith("plain")
    assert "\x1b" not in stream.getvalue()
    configure("info", screen, as_json=True)
    logging.getLogger("tidings").info("json")
    assert lines(screen)[0]["message"] == "json"


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info")
    logging.getLogger("tidings").info("to standard error")
    assert "to standard error" in capsys.readouterr().err
    assert sys.stderr is not None


async def test_a_burst_is_summed_up_once_a_second() -> None:
    stream = io.StringIO()
    configure("debug", stream)
    log = FactLog(summary_s=0.01)
    for n in range(1000):
        log(Released(n, [n, 4_200], frozenset()))
        log(Changed(n, [Cancel("t", "a")], [Outcome("a", "cancelled")]))
        log(Refused(n, "t", "topic"))
    assert stream.getvalue() == ""
    await eventually(lambda: len(lines(stream)) == 3)
    released, changed, refused = lines(stream)
    assert (released["message"], released["released"]) == ("released 2000, at most 4.2 ms late", 2000)
    assert (changed["level"], changed["outcomes"]) == ("debug", {"cancelled": 1000})
    assert refused["fields"] == {"topic": 1000}
    log.flush()
    assert len(lines(stream)) == 3


async def test_important_facts_are_logged_at_once() -> None:
    stream = io.StringIO()
    configure("info", stream)
    log = FactLog()
    log(OwnershipChanged(0, True))
    log(OwnershipChanged(0, False))
    log(Missed(0, {"expired": 2}))
    log(Released(0, [5], frozenset()))
    log.flush()
    owns, stands_by, missed, released = lines(stream)
    assert (owns["owner"], stands_by["owner"]) == (True, False)
    assert owns["fact"] == "ownership"
    assert (missed["level"], missed["missed"], missed["reasons"]) == ("warning", 2, {"expired": 2})
    assert released["released"] == 1
    assert logs.SUMMARY_S == 1.0


async def test_an_outage_is_logged_once_and_so_is_its_end() -> None:
    stream = io.StringIO()
    configure("info", stream)
    log = FactLog(in_fleet=True)
    log(OwnershipChanged(0, True, (0, 1)))
    log(OwnershipChanged(0, False, (0, 1), "connection refused"))
    log(OwnershipChanged(0, True, (0, 1)))
    log(OwnershipChanged(0, True, (), "this process stood still for 6 s"))
    log(OwnershipChanged(0, True, ()))
    assert [(line["level"], line["message"], line["owner"]) for line in lines(stream)] == [
        ("info", "owns lanes 0-1", True),
        ("warning", "takes no changes: connection refused", False),
        ("info", "the store answers again: owns lanes 0-1", True),
        ("warning", "this process stood still for 6 s, and others took over: owns no lane now", False),
        ("info", "owns no lane", False),
    ]

"""Logs: readable lines on a terminal, JSON lines otherwise; and the listener that logs facts."""

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Sized
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from tidings.domain.facts import Changed, Fact, Handed, Missed, OwnershipChanged, Refused, Released, Revised
from tidings.domain.fleet import ranges
from tidings.domain.schedules.iso8601 import format_duration, format_instant

SUMMARY_S = 1.0
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_PLAIN = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}
_MICRO = 1_000_000
_COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}
_RESET, _DIM = "\x1b[0m", "\x1b[2m"
_encode = msgspec.json.Encoder(enc_hook=str).encode

logger = logging.getLogger("tidings")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": format_instant(int(record.created * _MICRO)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line).decode()


class HumanFormatter(logging.Formatter):
    """A readable line: the time of day, the message, then the fields of `extra` as `name=JSON`, without empty ones."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        time = f"{moment:%H:%M:%S}.{int(record.msecs):03}"
        given = {name: value for name, value in _extra(record).items() if not _is_empty(value)}
        extra = " ".join(f"{name}={_encode(value).decode()}" for name, value in given.items())
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        line = f"{level}{record.getMessage()}"
        if self._colours:
            time, extra = f"{_DIM}{time}{_RESET}", f"{_DIM}{extra}{_RESET}" if extra else ""
            line = f"{_COLOURS.get(record.levelno, '')}{line}{_RESET}"
        text = f"{time}  {line}  {extra}".rstrip()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(level: str = "info", stream: TextIO | None = None, *, as_json: bool | None = None) -> None:
    """Log to a stream (standard error by default): readable lines on a terminal, otherwise JSON."""
    stream = stream or sys.stderr
    is_terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        HumanFormatter(colours=is_terminal and not os.environ.get("NO_COLOR"))
        if as_json is False or (as_json is None and is_terminal)
        else JsonFormatter()
    )
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _PLAIN}


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Sized) and not len(value))


class FactLog:
    """A listener that logs facts. Releases and changes come in bursts and are summed up once a second."""

    def __init__(self, summary_s: float = SUMMARY_S, *, in_fleet: bool = False) -> None:
        self._summary_s = summary_s
        self._in_fleet = in_fleet
        self._released = 0
        self._latest_us = 0
        self._outcomes: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._is_down = False

    def __call__(self, fact: Fact) -> None:
        match fact:
            case OwnershipChanged():
                self._log_ownership(fact)
            case Missed():
                total = sum(fact.counts.values())
                extra = {"fact": "missed", "missed": total, "reasons": fact.counts}
                logger.warning("missed %d", total, extra=extra)
            case Released():
                self._released += len(fact.lateness_us)
                self._latest_us = max(self._latest_us, max(fact.lateness_us, default=0))
                self._sum_up_soon()
            case Changed():
                self._outcomes.update([outcome.outcome for outcome in fact.outcomes])
                self._sum_up_soon()
            case Refused():
                self._refused[fact.field] += 1
                self._sum_up_soon()
            case Revised():
                extra = {"fact": "revised", "cause": fact.cause, "moved": fact.moved}
                logger.info("%s: moved %d", fact.cause, fact.moved, extra=extra)
            case Handed():
                pass  # counted as released once it is on Kafka

    def _log_ownership(self, fact: OwnershipChanged) -> None:
        """Log a change of ownership; a problem of the store is a warning with its reason."""
        text = _in_fleet(fact) if self._in_fleet else _single_process(fact)
        was_down, self._is_down = self._is_down, not fact.owner and bool(fact.reason)
        if self._is_down:
            text = f"takes no changes: {fact.reason}"
        elif was_down:
            text = f"the store answers again: {text}"
        elif fact.reason:
            text = f"{fact.reason}, and others took over: {text} now"
        level = logging.WARNING if fact.reason else logging.INFO
        owner = fact.owner and (bool(fact.lanes) or not self._in_fleet)
        extra = {"fact": "ownership", "owner": owner, "lanes": fact.lanes, "reason": fact.reason}
        logger.log(level, "%s", text, extra=extra)

    def flush(self) -> None:
        """Log the sums."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._released:
            late = format_duration(int(self._latest_us))
            extra = {"fact": "released", "released": self._released, "late_us_max": int(self._latest_us)}
            logger.info("released %d, at most %s late", self._released, late, extra=extra)
        if self._outcomes:
            outcomes = dict(self._outcomes)
            text = ", ".join(f"{count} {word}" for word, count in sorted(outcomes.items()))
            logger.debug("changes: %s", text, extra={"fact": "changed", "outcomes": outcomes})
        if self._refused:
            refused = dict(self._refused)
            text = ", ".join(f"{count} for {field}" for field, count in sorted(refused.items()))
            logger.info("refused: %s", text, extra={"fact": "refused", "fields": refused})
        self._released = self._latest_us = 0
        self._outcomes.clear()
        self._refused.clear()

    def _sum_up_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._summary_s, self.flush)


def _single_process(fact: OwnershipChanged) -> str:
    return "owns the timeline" if fact.owner else "stands by: another process owns the timeline"


def _in_fleet(fact: OwnershipChanged) -> str:
    return f"owns lanes {ranges(fact.lanes)}" if fact.lanes else "owns no lane"

"""Server-sent events are parsed as the standard says."""

import pytest

from tidings.edges.cli.client import ServerEvent, read_events
from tidings.edges.cli.exit_codes import Exit, Failure


def test_events_keep_the_last_position() -> None:
    lines = [
        b": hello\n",
        b"id: 7\n",
        b"event: record\n",
        b'data: {"a":\n',
        b"data: 1}\n",
        b"\n",
        b"data: x\r\n",
        b"\r\n",
    ]
    assert list(read_events(lines)) == [
        ServerEvent("record", '{"a":\n1}', "7"),
        ServerEvent("message", "x", "7"),
    ]


def test_an_incomplete_event_is_ignored() -> None:
    assert list(read_events([b"id: 1\n", b"data: whole\n", b"\n", b"id: 2\n", b"data: cut"])) == [
        ServerEvent("message", "whole", "1")
    ]


def test_an_event_without_data_only_moves_the_position() -> None:
    assert list(read_events([b"id: 3\n", b"\n", b"data: y\n", b"\n"], "0")) == [ServerEvent("message", "y", "3")]


def test_an_error_ends_the_stream_with_its_reason() -> None:
    lines = [b"id: a\n", b"data: 1\n", b"\n", b"event: error\n", b'data: {"detail": "read nothing for 30 s"}\n', b"\n"]
    events = read_events(lines)
    assert next(events).data == "1"
    with pytest.raises(Failure, match="the server ended the stream: read nothing for 30 s") as failed:
        next(events)
    assert failed.value.code == Exit.UNREACHABLE  # the client connects again

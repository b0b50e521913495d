"""Kafka's framing: four bytes of length, then for a request its kind, version, number and client."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from socket import socket
from typing import Self

LENGTH = struct.Struct(">i")
HEAD = struct.Struct(">hhih")
NO_NAME = -1


class Api(IntEnum):
    """The kinds of request that tests name."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26


# From this version on, an answer to these has one more byte (no tagged fields) before what it says.
FLEXIBLE_FROM = {Api.INIT_PRODUCER_ID: 2, Api.END_TXN: 3}


@dataclass(frozen=True, slots=True)
class Request:
    """A request with the fields of its header."""

    api: int
    version: int
    correlation_id: int
    client_id: str
    frame: bytes

    @classmethod
    def read(cls, frame: bytes) -> Self:
        """From a frame with its length."""
        api, version, correlation_id, name_bytes = HEAD.unpack_from(frame, LENGTH.size)
        start = LENGTH.size + HEAD.size
        name = b"" if name_bytes == NO_NAME else frame[start : start + name_bytes]
        return cls(api, version, correlation_id, name.decode(), frame)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the broker to a request."""

    request: Request
    frame: bytes

    @property
    def error(self) -> int:
        """The error number, 0 if none, of an answer about a transaction as a whole."""
        flexible_from = FLEXIBLE_FROM[Api(self.request.api)]
        start = 2 * LENGTH.size + (self.request.version >= flexible_from)  # length and correlation id
        throttle_bytes = 4
        return int.from_bytes(self.frame[start + throttle_bytes :][:2], "big", signed=True)


def correlation_id(frame: bytes) -> int:
    """Which request an answer belongs to."""
    return int(LENGTH.unpack_from(frame, LENGTH.size)[0])


def frames(connection: socket) -> Iterator[bytes]:
    """Incoming frames, each with its length, until the other side closes."""
    with connection.makefile("rb") as stream:
        while len(length := stream.read(LENGTH.size)) == LENGTH.size:
            size = LENGTH.unpack(length)[0]
            body = stream.read(size)
            if len(body) < size:
                return
            yield length + body

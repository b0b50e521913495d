"""The least that PostgreSQL can do for the same bytes: a COPY into one plain table without an index."""

import struct
import time
from collections.abc import Sequence

from bench.fleet.site import Database
from bench.limits import Took
from bench.requests import TENANT
from tidings.clock import SystemClock
from tidings.domain.schedules.schedule import Limits, Request, make_id
from tidings.intake.admission import Admission

_PLAIN = """
CREATE TABLE plain (
    due bigint NOT NULL,
    arrival bigint NOT NULL,
    accepted bigint NOT NULL,
    content uuid NOT NULL,
    stream int NOT NULL,
    topic int NOT NULL,
    generation int NOT NULL,
    n int NOT NULL,
    lane smallint NOT NULL,
    slot smallint NOT NULL,
    part smallint NOT NULL,
    reason smallint NOT NULL,
    id text NOT NULL,
    message bytea NOT NULL,
    deadline bigint,
    labels text
)"""
_COPY = "COPY plain FROM STDIN (FORMAT binary)"
_BEGIN = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_END = struct.pack(">h", -1)
_NUMBERS = struct.Struct(">hiqiqiqi16siiiiiiiiihihihih")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


def blocks_of(batches: Sequence[Sequence[Request]]) -> list[bytes]:
    """The rows that Tidings puts onto its timeline for these requests, as COPY takes them: the same columns, bytes."""
    admission, now = Admission(Limits()), SystemClock().now()
    blocks, arrival = [], 0
    for batch in batches:
        parts = [_BEGIN]
        for request in batch:
            arrival += 1
            add = admission.admit(TENANT, request, now)
            name = (make_id(arrival, add.due, add.priority) if add.id is None else add.id).encode()
            plain = (4, 1, 4, 0, 4, 1, 4, 1, 2, 0, 2, 1, 2, 0, 2, 0)  # stream to reason, each with its length before it
            parts.append(_NUMBERS.pack(16, 8, add.due, 8, arrival, 8, now, 16, add.content, *plain))
            parts += (_LENGTH.pack(len(name)), name, _LENGTH.pack(len(add.message)), add.message, _NULL, _NULL)
        blocks.append(b"".join([*parts, _END]))
    return blocks


def copy(database: Database, blocks: Sequence[bytes], rows: int, warm_up: int) -> Took:
    """Write blocks of so many rows, a durable transaction each; the first ones are not timed."""
    with database.connect() as connection:
        connection.execute(_PLAIN)
        longest = 0.0
        started = last = time.perf_counter()
        for number, block in enumerate(blocks):
            if number == warm_up:
                started = last = time.perf_counter()
            with connection.cursor().copy(_COPY) as writing:
                writing.write(block)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        total = connection.execute("SELECT count(*) FROM plain").fetchone()
    assert total == (rows * len(blocks),), f"{total} of {rows * len(blocks)} were copied"
    return Took(rows * (len(blocks) - warm_up), last - started, longest * 1_000)

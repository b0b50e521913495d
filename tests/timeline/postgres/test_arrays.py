"""Columns as binary arrays: what the server unpacks is what was packed."""

from typing import Any

import pytest

from tests.servers.postgres import Postgres
from tidings.timeline.postgres import database

LONG = "ü" * 5_000
COLUMNS: list[tuple[str, Any, list[Any]]] = [
    ("smallint", database.int2s, [0, -1, 32_767]),
    ("int", database.int4s, [0, -(2**31), 7]),
    ("bigint", database.int8s, [2**63 - 1, -1]),
    ("bigint", database.maybe_int8s, [1, None, -5]),
    ("bigint", database.maybe_int8s, [None, None]),
    ("bytea", database.byteas, [b"", b"\x00\xff", b"x" * 10_000]),
    ("text", database.maybe_texts, ["", None, "Grüße", LONG]),
    ("text", database.maybe_texts, [None]),
]


@pytest.mark.parametrize(("kind", "pack", "values"), [*COLUMNS, *((kind, pack, []) for kind, pack, _ in COLUMNS[:6])])
def test_round_trip(postgres: Postgres, kind: str, pack: Any, values: list[Any]) -> None:
    with postgres.connect() as connection:
        database.register(connection)
        row = connection.execute(f"SELECT %s::{kind}[]", (pack(values),)).fetchone()
        assert row == (values,)


def test_uuids(postgres: Postgres) -> None:
    values = [bytes(range(16)), b"\xff" * 16]
    with postgres.connect() as connection:
        database.register(connection)
        row = connection.execute(
            "SELECT array_agg(uuid_send(u)) FROM unnest(%s) AS u", (database.uuids(values),)
        ).fetchone()
        assert row == (values,)

"""Fixtures: a PostgreSQL with passwords, and nodes as processes."""

from pathlib import Path

import pytest

from tests.node.test_serve import Start, start
from tests.servers.fixtures import postgres
from tests.servers.ports import HOST
from tests.servers.postgres import Postgres

__all__ = ["Start", "postgres", "start"]

SECRET = "s3cr3t/@:%"
WRITTEN = "s3cr3t%2F%40%3A%25"


class Guarded:
    """A server on which `app`, with a password, may create schemas, and `guest` may not."""

    def __init__(self, server: Postgres) -> None:
        self.server = server

    def url(self, user: str = f"app:{WRITTEN}", database: str = "shop", port: int | None = None, more: str = "") -> str:
        return f"postgres://{user}@{HOST}:{port or self.server.port}/{database}{more}"


@pytest.fixture(scope="session")
def guarded(postgres: Postgres) -> Guarded:
    with postgres.connect() as connection:
        connection.execute(f"CREATE ROLE app LOGIN PASSWORD '{SECRET}'")
        connection.execute("CREATE ROLE guest LOGIN")
        connection.execute("CREATE ROLE crowd LOGIN CONNECTION LIMIT 0")
        connection.execute("CREATE DATABASE shop OWNER app")
        found = connection.execute("SHOW hba_file").fetchone()
        assert found is not None
        hba = Path(str(found[0]))
        hba.write_text(f"host all app {HOST}/32 scram-sha-256\n{hba.read_text()}")
        connection.execute("SELECT pg_reload_conf()")
    return Guarded(postgres)

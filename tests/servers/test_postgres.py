"""The PostgreSQL of the tests: it answers, survives a crash of its own, and leaves nothing behind."""

import os
from pathlib import Path

import psycopg
import pytest

from tests.servers import postgres as module
from tests.servers.downloads import Missing
from tests.servers.postgres import Postgres


@pytest.mark.slow
def test_it_answers_and_does_not_run_as_root(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0


@pytest.mark.slow
def test_committed_rows_survive_an_immediate_shutdown() -> None:
    with Postgres.start() as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
            first = server.pid
            server.restart(immediate=True)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert server.pid != first
        with server.connect() as connection:
            assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
        folder, pid = server.folder, server.pid
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_postgresql_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "INSTALLED", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="install PostgreSQL 15"):
        Postgres.start()

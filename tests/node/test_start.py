"""A refused start on PostgreSQL says why and what to do, and never shows a password."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.conftest import SECRET, WRITTEN, Guarded, Start
from tests.node.test_serve import is_ready, tidings
from tests.servers.ports import HOST, free_ports
from tests.servers.postgres import Postgres
from tidings.config.checks import without_password
from tidings.config.settings import Node, Store
from tidings.domain.errors import Invalid, StoreError
from tidings.timeline.postgres.database import check_url, check_version

pytestmark = [pytest.mark.slow]

PARTS = ("s3cr3t", "%2F%40", "/@:%")


def check_is_kept(text: str) -> None:
    """Check that a text holds no part of the password."""
    assert [part for part in PARTS if part in text] == []


def refused(folder: Path, *argv: str) -> tuple[int, str]:
    done = tidings(folder, "serve", "--port", "0", *argv)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    check_is_kept(said)
    assert list(folder.iterdir()) == []
    return done.returncode, said


@pytest.mark.parametrize(
    ("user", "database", "more", "said"),
    [
        ("app:wrong", "shop", "", 'password authentication failed for user "app": correct user and password'),
        ("app", "shop", "", "no password supplied: correct user and password in the URL, or set PGPASSWORD"),
        (f"app:{WRITTEN}", "nowhere", "", "does not exist: make it there: CREATE DATABASE nowhere OWNER app"),
        ("nobody", "shop", "", 'role "nobody" does not exist: make it there: CREATE ROLE nobody LOGIN'),
        ("guest", "shop", "", "have an administrator do it: CREATE SCHEMA tidings AUTHORIZATION guest"),
        (f"app:{WRITTEN}", "shop", "?sslmode=require", "does not support SSL, but SSL was required: see sslmode"),
        ("crowd", "shop", "", 'too many connections for role "crowd": ALTER ROLE crowd CONNECTION LIMIT'),
    ],
    ids=["wrong password", "no password", "no database", "no role", "no privileges", "no tls", "too many"],
)
def test_a_server_that_refuses_the_login(
    guarded: Guarded, tmp_path: Path, user: str, database: str, more: str, said: str
) -> None:
    code, text = refused(tmp_path, "--store", guarded.url(user, database, more=more))
    assert code == 1
    assert said in text
    assert "PostgreSQL refused: " in text
    assert len(text.strip().splitlines()) == 1, text


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("postgres://app:s3cr3t@ps/@:%@db.invalid/shop", "an unescaped @ or /: write postgres://user:password@host"),
        ("postgres://app:s3cr3t/x@db.invalid/shop", "an unescaped @ or /"),
        ("postgres://app:s3cr3t%ZZ@db.invalid/shop", "a % that does not begin a code such as %40"),
        ("postgres://app:s3cr3t@db.invalid:54e/shop", "the port in this URL is not a number: write postgres://"),
        ("postgres://app:s3cr3t@db.invalid/shop?sslmod=on", "PostgreSQL does not know: did you mean sslmode?"),
        ("postgres:/app:s3cr3t@db.invalid/shop", "store: the URL of a database needs two slashes: name a file"),
        ("PostgreSQL:app:s3cr3t@db.invalid/shop", "store: the URL of a database needs two slashes"),
        ("host=127.0.0.1 password=s3cr3t user=app", "store: parameters such as host=... are not supported"),
        ("PASSWORD = s3cr3t", "store: parameters such as host=... are not supported"),
        ("mysql://app:s3cr3t@db.invalid/shop", "store: mysql:// is not a kind of store: name a file, or postgres://"),
    ],
)
def test_invalid_store_urls_are_refused(tmp_path: Path, store: str, said: str) -> None:
    code, text = refused(tmp_path, "--store", store)
    assert code == 2
    assert said in text
    keys = tidings(tmp_path, "keys", "list", "--store", store)
    assert keys.returncode == 2
    check_is_kept(keys.stdout + keys.stderr)


def test_a_scheme_in_upper_case(guarded: Guarded, start: Start) -> None:
    store = guarded.url().replace("postgres:", "Postgres:")
    start("--store", store, "--set", "store.schema=capitals", "--set", "store.lanes=1").ready()


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    code, text = refused(tmp_path, "--store", f"postgres://app:{WRITTEN}@{HOST}:{port}/shop")
    assert code == 1
    assert "Connection refused: see that it runs, and that host and port are right" in text
    code, text = refused(tmp_path, "--store", f"postgres://app:{WRITTEN}@no-such-host.invalid/shop")
    assert code == 1
    assert "failed to resolve host" in text


def test_an_unsupported_server_version_is_refused() -> None:
    check_version(150_004)
    with pytest.raises(StoreError, match="PostgreSQL 14 is too old: Tidings needs 15 or newer"):
        check_version(140_011)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://",
        "postgresql:///shop",
        "postgres://app@/shop?host=/run/postgresql",
        f"postgres://app:{WRITTEN}@one:5432,two:5433/shop?target_session_attrs=read-write",
        "postgres://app@[::1]:5432/shop?application_name=a@b",
    ],
)
def test_valid_store_urls_are_accepted(url: str) -> None:
    assert check_url(url) == url


def test_a_url_without_its_password() -> None:
    assert without_password(f"postgres://app:{WRITTEN}@db:1/shop?sslmode=require") == (
        "postgres://app@db:1/shop?sslmode=require"
    )
    assert without_password("postgres://app@db/shop?password=x&sslpassword=y", "***") == (
        "postgres://app@db/shop?password=***&sslpassword=***"
    )
    assert without_password("postgres://app:a@b@db/shop", "***") == "postgres://app:***@db/shop"
    assert without_password("mail@home.db") == "mail@home.db"


def test_settings_are_printed_without_the_password(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "tidings.toml").write_text(f'[store]\npath = "{guarded.url()}"\n')
    done = tidings(tmp_path, "serve", "--print-config")
    check_is_kept(done.stdout + done.stderr)
    assert f'path = "postgres://app:***@{HOST}:{guarded.server.port}/shop"' in done.stdout


def test_the_command_to_copy_has_no_password(guarded: Guarded, tmp_path: Path) -> None:
    code, text = refused(tmp_path, "--host", "0.0.0.0", "--store", guarded.url(), "--set", "store.schema=reach")
    assert code == 1
    assert f"--store postgres://app@{HOST}:{guarded.server.port}/shop" in text
    assert "PGPASSWORD" in text


def test_keys_in_a_database(guarded: Guarded, tmp_path: Path, start: Start) -> None:
    chosen = {"TIDINGS_STORE_SCHEMA": "keyed", "TIDINGS_STORE_LANES": "2", "PGPASSWORD": SECRET}
    store = guarded.url("app")

    def keys(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidings", "keys", *argv, "--store", store]
        environment = os.environ | chosen
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    made = keys("create", "mine", "--tenant", "acme")
    assert made.returncode == 0, made.stderr
    assert f"keys create NAME --admin --store {store}" in made.stderr
    assert keys("list").stdout.splitlines()[1].split()[:2] == ["mine", "acme"]
    node = start("--store", store, **chosen)
    assert is_ready(node.ready(made.stdout.strip()))
    chosen.pop("TIDINGS_STORE_SCHEMA")
    assert "no keys" in keys("list").stderr
    assert keys("list", "--schema", "keyed").stdout.splitlines()[1].split()[:2] == ["mine", "acme"]
    chosen["TIDINGS_STORE_SCHEMA"] = "keyed"
    assert keys("revoke", "mine").stdout == "revoked mine\n"
    assert keys("revoke", "mine").returncode == 3
    check_is_kept(node.log)


def test_settings_chosen_at_creation_stay(guarded: Guarded, start: Start) -> None:
    chosen = ("--store", guarded.url(), "--set", "store.schema=chosen")
    first = start(*chosen, "--set", "store.lanes=4")
    first.ready()
    assert "was created with" not in first.log
    second = start(*chosen, "--set", "store.lanes=8")
    second.ready()
    second.logged("this store was created with 4 lanes and 4 partitions; store.lanes and log.partitions are ignored")
    check_is_kept(first.log + second.log)


def test_a_read_only_role_cannot_start(guarded: Guarded, tmp_path: Path, start: Start) -> None:
    chosen = ("--set", "store.schema=readable", "--set", "store.lanes=1")
    node = start("--store", guarded.server.dsn, *chosen)
    node.ready()
    with guarded.server.connect() as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA readable TO reader")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA readable TO reader")
        connection.execute("CREATE ROLE idler LOGIN")
        connection.execute("ALTER ROLE idler SET default_transaction_read_only = on")
        connection.execute("GRANT pg_read_all_data TO idler")
        connection.execute("CREATE SCHEMA foreign_one")
    for user, said in (
        ("reader", "serve as the role that owns the schema, or GRANT that role TO reader"),
        ("idler", "this PostgreSQL is a standby, or read-only: name the primary"),
    ):
        done = tidings(tmp_path, "serve", "--port", "0", "--store", guarded.url(user, "postgres"), *chosen)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert "takes over when" not in done.stderr
    code = ("--store", guarded.url("reader", "postgres"), "--set", "store.schema=foreign_one")
    done = tidings(tmp_path, "serve", "--port", "0", *code)
    assert "ALTER SCHEMA foreign_one OWNER TO reader" in done.stderr


def test_a_schema_made_by_an_administrator_is_enough(guarded: Guarded, start: Start) -> None:
    with guarded.server.connect() as connection:
        connection.execute("CREATE SCHEMA given AUTHORIZATION guest")
    start("--store", guarded.url("guest", "postgres"), "--set", "store.schema=given").ready()


async def test_wrong_urls_in_a_program() -> None:
    import tidings as library

    with pytest.raises(Invalid, match="unescaped @"):
        async with library.open("postgres://app:s3cr3t@x@db.invalid/shop"):
            pass


async def test_an_embedded_program_is_a_node(postgres: Postgres) -> None:
    import tidings as library

    config = library.Config(store=Store(schema="program", lanes=2), node=Node("program"))
    async with library.open(postgres.dsn, config=config) as one, library.open(postgres.dsn, config=config) as two:
        await one.schedule("greetings", "hello", at="+100ms")
        async for record in two.follow("greetings"):
            assert record.text == "hello"
            break
        assert [node.report.name for node in (await two.engine.nodes()).nodes] == ["program", "program"]

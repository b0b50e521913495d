"""`migrate` and `copy`: their output and exit codes, on files and on PostgreSQL."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from tests.contract.factories import ACME, HOUR, MINUTE, add
from tests.contract.stores import Served
from tests.edges.cli.conftest import Cli
from tidings.clock import SystemClock
from tidings.domain.schedules.command import Cancel, Replace
from tidings.timeline.migrations import Layouts
from tidings.timeline.sqlite.database import LAYOUTS
from tidings.timeline.sqlite.store import SqliteStore

KNOWN = Layouts(LAYOUTS).known
[LAST] = LAYOUTS.glob(f"{KNOWN:04d}_*.sql")
STEP = LAST.stem.replace("_", " ", 1)

PASSWORD = "S3cretPw"


async def made(path: Path, *ids: str, value: bytes = b"hello") -> None:
    clock, store = SystemClock(), await SqliteStore.open(path)
    assert await store.acquire(clock.elapsed(), MINUTE)
    await store.apply([add(name, clock.now() + HOUR, value=value, content=repr(value)) for name in ids], clock.now())
    await store.close()


async def ids_in(path: Path) -> list[str]:
    clock, store = SystemClock(), await SqliteStore.open(path)
    found = [name for name in ("a", "b", "c") if await store.find(ACME, name, clock.now())]
    await store.close()
    return found


@pytest.fixture
async def old(tmp_path: Path) -> Path:
    await made(tmp_path / "old.db", "a", "b")
    return tmp_path / "old.db"


async def test_copy_moves_everything_and_closes_the_old_store(cli: Cli, old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    done = run(cli, "copy", "--from", f"sqlite:{old}", "--to", str(new))
    assert done[0] == 0, done
    assert "one-shots                    2      0              0" in done[1]
    assert "the old store is closed" in done[2]
    assert f"copy --from {old} --take-back" in done[2]
    assert await ids_in(new) == ["a", "b"]
    again = run(cli, "copy", "--from", str(old), "--to", str(new), "--json")
    assert json.loads(again[1])["done_before"] is True
    code, out, _ = run(cli, "copy", "--from", str(old), "--to", str(new))
    assert code == 0
    assert out.startswith(f"nothing left to do: this store has moved to {new} at 20"), out
    code, _, err = run(cli, "keys", "list", "--store", str(old))
    assert code == 1
    assert f"this store has moved to {new}" in err
    assert f"copy --from {old} --take-back" in err
    code, out, err = run(cli, "copy", "--from", str(old), "--take-back")
    assert (code, out) == (0, f"{old} can be served again\n")
    assert "would be sent from both" in err
    assert await ids_in(old) == ["a", "b"]


async def test_conflicts_are_listed_and_the_exit_code_is_4(cli: Cli, old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    await made(new, "b", "c", value=b"another")
    code, out, err = run(cli, "copy", "--from", str(old), "--to", str(new))
    assert code == 4
    assert "one-shots                    1      0              1" in out
    assert "1 moved in " in out
    assert "conflict: schedule acme/b" in err


async def test_a_cancel_after_the_move_was_taken_back_is_a_conflict(cli: Cli, old: Path, tmp_path: Path) -> None:
    new = str(tmp_path / "new.db")
    assert run(cli, "copy", "--from", str(old), "--to", new)[0] == 0
    assert run(cli, "copy", "--from", str(old), "--take-back")[0] == 0
    clock, store = SystemClock(), await SqliteStore.open(old)
    assert await store.acquire(clock.elapsed(), MINUTE)
    await store.apply([Cancel(ACME, "a")], clock.now())
    await store.apply([Replace(add("b", clock.now() + MINUTE)), Cancel(ACME, "b")], clock.now())
    await store.close()
    code, out, err = run(cli, "copy", "--from", str(old), "--to", new)
    assert code == 4, out
    assert "finished, remembered         0      0              2" in out
    assert "conflict: schedule acme/a" in err
    assert "conflict: schedule acme/b" in err


@pytest.mark.slow
async def test_a_refused_copy_creates_no_target(cli: Cli, old: Path, tmp_path: Path) -> None:
    clock, store = SystemClock(), await SqliteStore.open(old)
    assert await store.acquire(clock.elapsed(), MINUTE)
    code, _, err = run(cli, "copy", "--from", str(old), "--to", str(tmp_path / "new.db"))
    await store.close()
    assert code == 1, err
    assert "a server runs on the store to copy from" in err
    assert not (tmp_path / "new.db").exists()


async def test_migrate_uses_the_store_of_the_settings(cli: Cli, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_STORE_PATH", str(old))
    monkeypatch.setenv("TIDINGS_NODE_ROLES", "api")
    assert run(cli, "migrate", "--check")[:2] == (0, f"layout {KNOWN}: nothing to do\n")


def test_wrong_usage_says_what_to_do(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path / "none.db")
    for argv, code, text in (
        (("copy", "--from", here), 2, "--to is missing"),
        (("copy", "--from", here, "--to", here + "2"), 3, "there is no store"),
        (("copy", "--from", ":memory:", "--to", here), 2, "a memory store does not outlive its server"),
        (("copy", "--from", "mysql://x", "--to", here), 2, "is not a kind of store"),
        (("copy", "--from", here, "--take-back", "--to", here), 2, "needs no --to"),
        (("migrate", "--store", here), 3, "there is no store"),
        (("migrate",), 3, "there is no store"),
    ):
        done = run(cli, *argv)
        assert done[0] == code, (argv, done)
        assert text in done[2], (argv, done)
    assert list(tmp_path.iterdir()) == [], "nothing was made"


async def test_migrate_prints_its_steps(cli: Cli, old: Path) -> None:
    assert run(cli, "migrate", "--store", str(old), "--check")[:2] == (0, f"layout {KNOWN}: nothing to do\n")
    with apsw.Connection(str(old)) as connection:
        for kind, name in re.findall(r"^CREATE (TABLE|VIEW) (\w+)", LAST.read_text("utf-8"), re.MULTILINE):
            connection.execute(f"DROP {kind} IF EXISTS {name}")
        connection.execute("CREATE INDEX finished_in_outbox ON finished (position) WHERE position < 1 << 38")
        connection.pragma("user_version", KNOWN - 1)
    code, out, _ = run(cli, "migrate", "--store", str(old), "--check")
    assert (code, out) == (4, f"layout {KNOWN - 1}, this version needs {KNOWN}; to do: {STEP}\n")
    code, out, _ = run(cli, "migrate", "--store", str(old))
    first, last = out.splitlines()
    assert code == 0
    assert first.startswith(f"{STEP}  ")
    assert last == f"layout {KNOWN - 1} -> {KNOWN}"
    with apsw.Connection(str(old)) as connection:
        connection.pragma("user_version", KNOWN + 1)
    code, _, err = run(cli, "migrate", "--store", str(old), "--json")
    assert code == 1
    assert "written by a newer Tidings" in err


def run(cli: Cli, *argv: str) -> tuple[int, str, str]:
    """Run a command in a thread: these commands start an event loop of their own."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(cli, *argv, server=False).result()
    return done.code, done.out, done.err


def address() -> tuple[str, str]:
    """The database with a password, which it does not ask for, and as it is shown."""
    scheme, _, rest = Served.dsn().partition("://")
    user, at, place = rest.rpartition("@")
    user = user.partition(":")[0]
    assert at
    return f"{scheme}://{user}:{PASSWORD}@{place}", f"{scheme}://{user}@{place}"


@pytest.mark.slow
async def test_each_side_has_its_schema_and_no_password_is_shown(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(tmp_path / "old.db", "a")
    old, (url, seen) = str(tmp_path / "old.db"), address()
    monkeypatch.setenv("TIDINGS_STORE_SCHEMA", "side_one")
    results = [
        run(cli, "migrate", "--store", url, "--check"),
        run(cli, "copy", "--from", old, "--to", url),
        run(cli, "keys", "list", "--store", old),
        run(cli, "copy", "--from", url, "--to", url, "--to-schema", "side_two"),
        run(cli, "keys", "list", "--store", url),
        run(cli, "copy", "--from", url, "--to", url, "--to-schema", "side_three"),
        run(cli, "copy", "--from", url, "--take-back"),
        run(cli, "copy", "--from", url, "--from-schema", "nowhere", "--take-back"),
        run(cli, "migrate", "--store", url, "--schema", "side_four"),
        run(cli, "migrate", "--store", url, "--schema", "side_two"),
    ]
    assert not any(PASSWORD in text for _, out, err in results for text in (out, err)), results
    check, first, moved, second, gone, elsewhere, back, none, new, old_layout = results
    assert [code for code, _, _ in results] == [4, 0, 1, 0, 1, 1, 0, 3, 0, 0], results
    assert check[1].startswith("there is no store here"), check
    assert f"to {seen}, schema side_one\n" in first[1]
    assert f"this store has moved to {seen}, schema side_one at" in moved[2]
    assert f"serve --store {seen} --set store.schema=side_one\n" in moved[2]
    assert f"from {seen}, schema side_one to {seen}, schema side_two\n" in second[1]
    assert f"copy --from {seen} --from-schema side_one --take-back\n" in second[2]
    assert f"copy --from {seen} --from-schema side_one --take-back\n(a password is not shown" in gone[2]
    assert f"is moving to {seen}, schema side_two already" in elsewhere[2]
    assert f"{seen} can be served again" in back[1]
    assert f"is in {seen}, schema side_two as well" in back[2]
    assert f"there is no store in the schema nowhere of {seen}" in none[2]
    steps, made_now = new[1].splitlines()
    assert steps.startswith("0001 begin, ")
    assert made_now.startswith("there was no store here: created a new one")
    assert "nothing to do" in old_layout[1]

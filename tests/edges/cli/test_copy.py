"""`migrate` and `copy` on files: their output and exit codes."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from tests.contract.factories import ACME, HOUR, MINUTE, add
from tests.edges.cli.conftest import Cli
from tidings.clock import SystemClock
from tidings.domain.schedules.command import Cancel, Replace
from tidings.timeline.migrations import Layouts
from tidings.timeline.sqlite.database import LAYOUTS
from tidings.timeline.sqlite.store import SqliteStore

KNOWN = Layouts(LAYOUTS).known


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


async def test_conflicts_are_listed_and_the_code_tells(cli: Cli, old: Path, tmp_path: Path) -> None:
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
async def test_a_refused_copy_makes_no_target(cli: Cli, old: Path, tmp_path: Path) -> None:
    clock, store = SystemClock(), await SqliteStore.open(old)
    assert await store.acquire(clock.elapsed(), MINUTE)
    code, _, err = run(cli, "copy", "--from", str(old), "--to", str(tmp_path / "new.db"))
    await store.close()
    assert code == 1, err
    assert "a server runs on the store to copy from" in err
    assert not (tmp_path / "new.db").exists()


async def test_the_settings_name_the_store_of_a_migration(cli: Cli, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_migrate_tells_its_steps(cli: Cli, old: Path) -> None:
    assert run(cli, "migrate", "--store", str(old), "--check")[:2] == (0, f"layout {KNOWN}: nothing to do\n")
    with apsw.Connection(str(old)) as connection:
        connection.execute("DROP TABLE cabinet; DROP TABLE document; DROP TABLE tagged")
        connection.pragma("user_version", KNOWN - 1)
    code, out, _ = run(cli, "migrate", "--store", str(old), "--check")
    assert (code, out) == (4, f"layout {KNOWN - 1}, this version needs {KNOWN}; to do: {KNOWN:04d} cabinet\n")
    code, out, _ = run(cli, "migrate", "--store", str(old))
    first, last = out.splitlines()
    assert code == 0
    assert first.startswith(f"{KNOWN:04d} cabinet  ")
    assert last == f"layout {KNOWN - 1} -> {KNOWN}"
    with apsw.Connection(str(old)) as connection:
        connection.pragma("user_version", KNOWN + 1)
    code, _, err = run(cli, "migrate", "--store", str(old), "--json")
    assert code == 1
    assert "written by a newer Tidings" in err


def run(cli: Cli, *argv: str) -> tuple[int, str, str]:
    """These commands begin a loop of their own: outside of ours."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(cli, *argv, server=False).result()
    return done.code, done.out, done.err

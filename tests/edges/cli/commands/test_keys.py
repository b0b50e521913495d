"""API keys: straight in a store, before any server has it open."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edges.cli.conftest import Cli, RunningNode


def test_create_list_revoke(cli: Cli, tmp_path: Path) -> None:
    store = str(tmp_path / "tidings.db")
    made = cli("keys", "create", "mine", "--tenant", "acme", "--admin", "--store", store)
    assert made.code == 0
    assert made.out.startswith("tdk_")
    assert len(made.out.split()) == 1
    assert "store it" in made.err
    assert "warning" not in made.err
    listed = cli("keys", "list", "--store", store)
    assert [line.split()[:3] for line in listed.out.splitlines()] == [
        ["name", "tenant", "may"],
        ["mine", "acme", "admin"],
    ]
    assert made.out.strip() not in listed.out
    twice = cli("keys", "create", "mine", "--store", store)
    assert twice.code == 2
    assert "there is a key named" in twice.err
    assert cli("keys", "revoke", "mine", "--store", store).out == "revoked mine\n"
    gone = cli("keys", "revoke", "mine", "--store", store)
    assert gone.code == 3
    assert "there is no key 'mine'" in gone.err
    assert "no keys" in cli("keys", "list", "--store", store).err


def test_a_store_may_be_called_sqlite(cli: Cli, tmp_path: Path) -> None:
    assert cli("keys", "create", "mine", "--store", f"sqlite:{tmp_path / 'tidings.db'}").code == 0
    assert "mine" in cli("keys", "list", "--store", str(tmp_path / "tidings.db")).out
    assert "mine" in cli("keys", "list", "--store", f"SQLite:{tmp_path / 'tidings.db'}").out


def test_as_json(cli: Cli, tmp_path: Path) -> None:
    store = str(tmp_path / "tidings.db")
    made = cli.json("keys", "create", "mine", "--store", store)
    assert (made["name"], made["tenant"], made["admin"]) == ("mine", "default", False)
    [key] = cli.json("keys", "list", "--store", store)["keys"]
    assert set(key) == {"name", "tenant", "admin", "created_at"}
    assert cli.json("keys", "revoke", "mine", "--store", store) == {"name": "mine", "revoked": True}


def test_a_first_key_without_admin_prints_a_warning(cli: Cli, tmp_path: Path) -> None:
    store = str(tmp_path / "tidings.db")
    made = cli("keys", "create", "mine", "--store", store)
    assert (made.code, len(made.out.split())) == (0, 1)
    assert "warning: from now on every call needs a key, and there is no admin key to manage keys" in made.err
    assert f"tidings keys create NAME --admin --store {store}" in made.err
    cli("keys", "create", "boss", "--admin", "--store", store)
    assert "warning" not in cli("keys", "create", "yours", "--store", store).err


def test_names_are_checked(cli: Cli, tmp_path: Path) -> None:
    for argv in (("a b",), ("ok", "--tenant", "/")):
        done = cli("keys", "create", *argv, "--store", str(tmp_path / "tidings.db"))
        assert done.code == 2
        assert "use 1 to 63 letters" in done.err


def test_listing_keys_does_not_create_a_store(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "none.db"
    for argv in (("list",), ("revoke", "x")):
        done = cli("keys", *argv, "--store", str(store))
        assert done.code == 3
        assert "there is no store" in done.err
    assert not store.exists()


def test_a_file_that_is_not_a_store_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is not a database, and long enough to be one " * 100)
    done = cli("keys", "list", "--store", str(path))
    assert done.code == 1
    assert "not a Tidings store" in done.err


def test_over_the_server(cli: Cli) -> None:
    assert json.loads(cli("keys", "list", "--json").out) == {"keys": []}
    missing = cli("keys", "revoke", "nobody")
    assert (missing.code, missing.err) == (3, "tidings: there is no key 'nobody': `tidings keys list` shows them\n")


@pytest.mark.slow
def test_the_first_over_the_server(tmp_path: Path) -> None:
    """On a server of its own, which it locks."""
    running = RunningNode(tmp_path)
    running.start()
    try:
        argv = [sys.executable, "-m", "tidings", "keys", "create", "mine", "--url", running.url]
        made = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert "no admin key to manage keys" in made.stderr
        refused = subprocess.run([*argv[:3], "list", "--url", running.url], capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert refused.stderr.count("keys create") == 1
        assert "requires an API key: give one with --api-key or TIDINGS_KEY" in refused.stderr
        assert "Authorization" not in refused.stderr
    finally:
        running.stop()

"""`migrate` and `copy` on PostgreSQL: each side has its schema, and nobody sees a password."""

from pathlib import Path

import pytest

from tests.contract.stores import Served
from tests.edges.cli.conftest import Cli
from tests.edges.cli.test_copy import made, run

pytestmark = [pytest.mark.slow]

PASSWORD = "S3cretPw"


def address() -> tuple[str, str]:
    """The database with a password, which it does not ask for, and as it is shown."""
    scheme, _, rest = Served.dsn().partition("://")
    user, at, place = rest.rpartition("@")
    user = user.partition(":")[0]
    assert at
    return f"{scheme}://{user}:{PASSWORD}@{place}", f"{scheme}://{user}@{place}"


async def test_each_side_has_its_schema_and_no_password_is_shown(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(tmp_path / "old.db", "a")
    old, (url, seen) = str(tmp_path / "old.db"), address()
    monkeypatch.setenv("TIDINGS_STORE_SCHEMA", "side_one")
    told = [
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
    assert not any(PASSWORD in text for _, out, err in told for text in (out, err)), told
    check, first, moved, second, gone, elsewhere, back, none, new, old_layout = told
    assert [code for code, _, _ in told] == [4, 0, 1, 0, 1, 1, 0, 3, 0, 0], told
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

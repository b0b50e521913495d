"""`users`: output for people and for scripts, and wrong usage."""

import json
from pathlib import Path

import pytest

from tests.edges.cli.conftest import Cli

ADA = ("--email", "ada@example.com", "--phone", "+15550100", "--zone", "America/New_York", "--quiet", "22:00-07:00")


def test_put_get_and_put_again(cli: Cli) -> None:
    assert cli("users", "put", cli.topic, *ADA) == (0, f"created {cli.topic}\n", "")
    found = cli.json("users", "get", cli.topic)
    assert found["id"] == cli.topic
    assert (found["email"], found["phone"], found["zone"]) == ("ada@example.com", "+15550100", "America/New_York")
    assert found["quiet"]["hours"] == "22:00-07:00"
    assert "name" not in found
    shown = cli("users", "get", cli.topic).out
    assert "quiet  22:00-07:00" in shown
    assert cli("users", "put", cli.topic, "--name", "Ada").out == f"replaced {cli.topic}\n"
    assert "email" not in cli.json("users", "get", cli.topic)


def test_put_carries_everything(cli: Cli) -> None:
    devices = ["--device", f"apns:{'ab' * 32}", "--device", "fcm:abcdefghijklmnopqrstuv"]
    preferences = ["--prefer", "sms=no", "--prefer", "sms/news=yes", "--var", "city=Bonn", "--var", "plan=a=b"]
    quiet = ["--quiet", "22:00-07:00", "--in-quiet", "drop", "--high", "hold"]
    rest = ["--name", "Ada", "--locale", "pt-BR", "--webhook", "https://example.com/hook"]
    assert cli("users", "put", cli.topic, *devices, *preferences, *quiet, *rest).code == 0
    found = cli.json("users", "get", cli.topic)
    assert [device["platform"] for device in found["devices"]] == ["apns", "fcm"]
    assert found["preferences"] == {"sms": False, "sms/news": True}
    assert found["variables"] == {"city": "Bonn", "plan": "a=b"}
    assert found["quiet"] == {"hours": "22:00-07:00", "then": "drop", "spares_high": False}
    assert (found["name"], found["locale"], found["webhook"]) == ("Ada", "pt-BR", "https://example.com/hook")
    shown = cli("users", "get", cli.topic).out
    assert "sms=no, sms/news=yes" in shown
    assert "22:00-07:00 (drop, high too)" in shown


def test_change_leaves_the_rest(cli: Cli) -> None:
    cli("users", "put", cli.topic, *ADA)
    assert cli("users", "change", cli.topic, "--in-quiet", "drop", "--remove", "phone").out == f"changed {cli.topic}\n"
    found = cli.json("users", "get", cli.topic)
    assert found["email"] == "ada@example.com"
    assert "phone" not in found
    assert (found["quiet"]["hours"], found["quiet"]["then"]) == ("22:00-07:00", "drop")


def test_list_by_prefix_and_in_pages(cli: Cli) -> None:
    for number in range(3):
        cli("users", "put", f"{cli.topic}-{number}", "--name", f"n{number}")
    done = cli("users", "list", "--prefix", f"{cli.topic}-", "--limit", "2")
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["id", "name"],
        [f"{cli.topic}-0", "n0"],
        [f"{cli.topic}-1", "n1"],
    ]
    cursor = done.err.split()[-1]
    rest = cli("users", "list", "--prefix", f"{cli.topic}-", "--cursor", cursor, "--json")
    assert [json.loads(line)["id"] for line in rest.out.splitlines()] == [f"{cli.topic}-2"]
    everything = cli("users", "list", "--prefix", f"{cli.topic}-", "--all", "--json")
    assert len(everything.out.splitlines()) == 3
    assert cli("users", "list", "--prefix", "nobody-at-all").err == "no users match\n"


def test_delete_and_an_unknown_user(cli: Cli) -> None:
    cli("users", "put", cli.topic, "--name", "Ada")
    assert cli("users", "delete", cli.topic).out == f"deleted {cli.topic}\n"
    for verb in ("get", "delete", "erase"):
        done = cli("users", verb, cli.topic)
        assert done.code == 3
        assert f"unknown user {cli.topic!r}: `tidings users list` shows them" in done.err
    assert cli("users", "change", cli.topic, "--name", "x").code == 3


def test_erase_prints_what_it_removed(cli: Cli) -> None:
    cli("users", "put", cli.topic, *ADA)
    cli.json("notify", cli.topic, "--text", "hi", "--at", "+1h")
    done = cli("users", "erase", cli.topic)
    assert done.code == 0
    assert done.out.splitlines() == [f"erased {cli.topic}", "notifications  1", "profile        1", "cancelled      1"]
    assert cli("notifications", "list", "--user", cli.topic).err == "nothing matches\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("put", "ada", "--email", "ada"), "email: 'ada' is not an e-mail address"),
        (("put", "ada", "--email", "ada@xn--a"), "the domain 'xn--a' is not valid"),
        (("put", "ada", "--zone", "Mars/Base"), "zone"),
        (("put", "ada", "--in-quiet", "drop"), "--quiet is missing"),
        (("put", "ada", "--quiet", "25:00-07:00"), "22:00-07:00"),
        (("put", "ada", "--device", "abcdef"), "apns:abcdef or fcm:abcdef"),
        (("put", "ada", "--prefer", "sms=maybe"), "give yes or no"),
        (("put", "ada", "--prefer", "sms"), "NAME=VALUE"),
        (("put", "a/b"), "is not a valid user id"),
        (("change", "ada"), "--remove FIELD"),
        (("change", "ada", "--email", "a@b.org", "--remove", "email"), "not both"),
        (("change", "ada", "--remove", "zones"), "did you mean zone"),
        (("put",), "USER"),
        (("keep", "ada"), "choose from"),
        (("import",), "FILE"),
    ],
)
def test_wrong_usage(cli: Cli, argv: tuple[str, ...], said: str) -> None:
    done = cli("users", *argv)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_import_csv_with_bad_lines(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(
        "id,email,zone,preferences.news\n"
        f"{cli.topic}-1,one@example.com,Europe/Berlin,no\n"
        f"{cli.topic}-2,two,Europe/Berlin,no\n"
        f"{cli.topic}-3,three@example.com,Nowhere,yes\n"
        f"{cli.topic}-1,uno@example.com,UTC,yes\n"
        f"{cli.topic}-4,four@☃.com,UTC,yes\n"
    )
    done = cli("users", "import", str(path))
    assert done.code == 1
    assert done.out.startswith("1 created, 1 replaced, 3 bad in ")
    lines = done.err.splitlines()
    assert lines[0].startswith("line 3: email: 'two' is not an e-mail address")
    assert lines[1].startswith("line 4: zone: ")
    assert "the domain '☃.com' is not valid" in lines[2]
    assert cli.json("users", "get", f"{cli.topic}-1")["email"] == "uno@example.com"
    assert cli("users", "get", f"{cli.topic}-2").code == 3


def test_import_lines_of_json_from_a_pipe(cli: Cli) -> None:
    people = [{"id": f"{cli.topic}-{n}", "email": f"p{n}@example.com"} for n in range(1_200)]
    cli.stdin("\n".join(map(json.dumps, people)).encode())
    done = cli("users", "import", "-", "--json")
    assert done.code == 0
    answer = json.loads(done.out)
    assert (answer["lines"], answer["created"], answer["bad"], answer["bad_lines"]) == (1_200, 1_200, 0, [])
    assert "1,200 created, 0 replaced, 0 bad in " in done.err
    assert cli.json("users", "get", f"{cli.topic}-1199")["email"] == "p1199@example.com"


def test_import_many_bad_lines_are_counted(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.ndjson"
    path.write_text("".join(f'{{"id": "{cli.topic}-{n}", "email": "x"}}\n' for n in range(30)))
    done = cli("users", "import", str(path))
    assert done.code == 1
    assert len(done.err.splitlines()) == 21
    assert "... and 10 more" in done.err
    assert done.out.startswith("0 created, 0 replaced, 30 bad in ")


def test_import_of_an_invalid_file(cli: Cli, tmp_path: Path) -> None:
    assert cli("users", "import", str(tmp_path / "none.csv")).code == 2
    path = tmp_path / "wrong.csv"
    path.write_text("id,mail\na,b@example.com\n")
    done = cli("users", "import", str(path))
    assert done.code == 2
    assert "mail: is not a known column" in done.err
    (tmp_path / "empty.csv").write_text("")
    done = cli("users", "import", str(tmp_path / "empty.csv"))
    assert done.out.startswith("0 created, 0 replaced, 0 bad in ")

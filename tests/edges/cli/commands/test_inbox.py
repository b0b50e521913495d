"""`inbox`, `suppressions` and `channels` against a running node."""

import json
import threading
from pathlib import Path

import pytest

from tests.edges.cli.conftest import Cli, RunningNode
from tidings.config.checks import ProviderTable
from tidings.edges.cli.commands.users import Box


def notify(cli: Cli, text: str) -> None:
    made = cli.json("notify", cli.topic, "--channel", "in_app", "--title", "News", "--text", text)
    cli.settled(made["id"])


@pytest.fixture
def ada(cli: Cli) -> str:
    cli("users", "put", cli.topic, "--name", "Ada")
    return cli.topic


def test_the_inbox_is_listed_and_marked_as_read(cli: Cli, ada: str) -> None:
    assert cli("inbox", ada) == (0, "", "the inbox is empty\n")
    for text in ("one", "two", "three"):
        notify(cli, text)
    lines = cli("inbox", ada).out.splitlines()
    assert [line.split()[2:] for line in lines] == [["new", "News", word] for word in ("one", "two", "three")]
    last = cli("inbox", ada, "--limit", "1", "--read", "--json")
    assert json.loads(last.out)["body"] == "three"
    assert "--cursor" in last.err
    assert [line.split()[-1] for line in cli("inbox", ada, "--unread").out.splitlines()] == ["one", "two"]
    assert cli("inbox", ada, "--read", "--all").code == 0
    assert cli("inbox", ada, "--unread") == (0, "", "no unread messages\n")
    assert "  read  News  one" in cli("inbox", ada).out
    assert [line.split()[-1] for line in cli("inbox", ada, "--follow", "--count", "2").out.splitlines()] == [
        "one",
        "two",
    ]
    assert cli("inbox", ada, "--count", "2").code == 2
    assert cli("inbox", "a/b").code == 2


def test_follow_shows_the_inbox_and_then_new_messages(
    cli: Cli, ada: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notify(cli, "before")
    shown: list[str] = []
    came = threading.Event()
    monkeypatch.setenv("TIDINGS_URL", cli.url)

    def show(_: Box, lines: list[dict[str, str]]) -> None:
        shown.extend(line["body"] for line in lines)
        came.set()
        if "after" in shown:
            raise KeyboardInterrupt

    codes: list[int] = []
    monkeypatch.setattr(Box, "show", show)
    following = threading.Thread(target=lambda: codes.append(cli("inbox", ada, "--follow").code))
    following.start()
    assert came.wait(10)
    notify(cli, "after")
    following.join(10)
    assert codes == [130]
    assert shown == ["before", "after"]


def test_suppressions(cli: Cli, node: RunningNode) -> None:
    address = f"{cli.topic[:40].lower()}@example.com"
    assert cli("suppressions", "add", "email", address, "--reason", "asked by telephone").out == (
        f"suppressed email {address}\n"
    )
    assert cli("suppressions", "add", "email", address).out == f"unchanged email {address}\n"
    assert cli("suppressions", "add", "email", address, "--category", "news").out.endswith(" for news\n")
    heads, *rows = cli("suppressions", "list", "--channel", "email").out.splitlines()
    assert heads.split() == ["channel", "address", "for", "why", "since"]
    assert any(f"{address}  all   asked by telephone  20" in row for row in rows)
    assert cli("suppressions", "remove", "email", address, "--category", "news").code == 0
    assert cli("suppressions", "remove", "email", address).out == f"removed email {address}\n"
    gone = cli("suppressions", "remove", "email", address)
    assert gone.code == 3
    assert "`tidings suppressions list` shows them" in gone.err
    assert cli("suppressions", "add", "email", "not an address").code == 2
    assert cli("suppressions", "add", "fax", "x").code == 2
    assert cli("suppressions", "add", "push", "abcdef").code == 2


def test_channels(cli: Cli) -> None:
    assert cli("channels").err == ""
    heads, *rows = cli("channels").out.splitlines()
    assert heads.split()[:3] == ["name", "provider", "sends"]
    assert [row.split()[:2] for row in rows] == [["in_app", "in_app"], ["files", "files"]]
    assert all("closed" in row for row in rows)
    assert cli.json("channels")["channels"]["email"] == ["files"]
    assert cli("channels", "close", "files").out == "the breaker of files was not open\n"
    receiver = "https://shop.example"
    assert cli.json("channels", "close", "files", "--receiver", receiver)["receiver"] == receiver
    nobody = cli("channels", "close", "nobody")
    assert (nobody.code, nobody.err) == (3, "tidings: unknown provider 'nobody': `tidings channels` shows them\n")


def test_email_without_an_unsubscribe_link_prints_a_warning(cli: Cli, tmp_path: Path) -> None:
    mail = ProviderTable(
        name="mail", provider="smtp", settings={"host": "127.0.0.1", "port": 1, "sender": "news@example.com"}
    )
    node = RunningNode(tmp_path, mail)
    node.start()
    try:
        cli.url = node.url
        done = cli("channels")
        assert "mail" in done.out
        assert done.err.startswith("warning: e-mail of categories other than transactional is sent without")
        assert len(cli.json("channels")["warnings"]) == 1
        bulk = ("notify", "--to", "ada@example.com", "--channel", "email", "--text", "x", "--at", "+1h")
        assert "note: e-mail of categories" in cli(*bulk, "--category", "news").err
        assert cli.json(*bulk, "--category", "news")["note"].endswith("set delivery.public_url and delivery.link_key")
        assert cli(*bulk).err == ""
    finally:
        node.stop()

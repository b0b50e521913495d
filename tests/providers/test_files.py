"""Files: files that a person can read, each once."""

import io
from email import message_from_bytes, policy
from pathlib import Path

import msgspec
import pytest

from tests.providers.messages import accepted, email, push, sms, webhook
from tidings.domain.notifications.delivery import Temporary
from tidings.providers.files import FileProvider, Settings, file_name
from tidings.testing import SimulatedClock


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def files(tmp_path: Path, clock: SimulatedClock, screen: io.StringIO) -> FileProvider:
    return FileProvider(Settings(terminal=True), clock, tmp_path, screen=screen)


async def test_an_email_is_a_file_that_mail_programs_open(
    files: FileProvider, tmp_path: Path, screen: io.StringIO
) -> None:
    name = accepted(await files.send(email(html="<b>Tea</b>")))
    path = tmp_path / "outbox" / name
    assert path.suffix == ".eml"
    assert message_from_bytes(path.read_bytes(), policy=policy.default)["subject"] == "Hi Ada"
    assert screen.getvalue().startswith(f"{path}\nTo: ada@example.org\nSubject: Hi Ada\n\nTea at nine.\n")


async def test_the_other_channels_are_text(files: FileProvider, tmp_path: Path) -> None:
    shown = {}
    for message in (sms(text="Tea ☕"), push(data={"order": "42"}), webhook("https://x.example/in")):
        name = accepted(await files.send(message))
        shown[name.partition("-")[0]] = (tmp_path / "outbox" / name).read_text("utf-8")
    assert shown["sms"] == "To: +15550100\nSegments: 1 (UCS-2)\n\nTea ☕\n"
    assert "Title: Tea\norder: 42\n\nAt nine.\n" in shown["push"]
    assert shown["webhook"] == 'POST https://x.example/in\nwebhook-id: n-1/1/1\n\n{"tea": 9}\n'


async def test_a_second_attempt_finds_the_first(files: FileProvider, tmp_path: Path, screen: io.StringIO) -> None:
    first = accepted(await files.send(sms()))
    seen = screen.getvalue()
    assert accepted(await files.send(sms(text="other"))) == first
    assert [path.name for path in (tmp_path / "outbox").iterdir()] == [first]
    assert screen.getvalue() == seen


async def test_ids_cannot_leave_the_folder(files: FileProvider, tmp_path: Path) -> None:
    names = {accepted(await files.send(sms(id=text))) for text in ("../../x", "/etc/passwd", "..", "a/b", "a-b", ".")}
    assert {path.name for path in (tmp_path / "outbox").iterdir()} == names
    assert len(names) == 6


async def test_nothing_moves_the_cursor_of_the_terminal(files: FileProvider, screen: io.StringIO) -> None:
    accepted(await files.send(sms(text="a\x1b[2J\x07\x9bb\nc")))
    assert screen.getvalue().endswith("\n\na[2Jb\nc\n\n")


async def test_a_folder_that_cannot_be_written_is_temporary(tmp_path: Path, clock: SimulatedClock) -> None:
    (tmp_path / "outbox").write_text("a file")
    told = await FileProvider(Settings(terminal=False), clock, tmp_path).send(sms())
    assert isinstance(told, Temporary)
    assert "cannot be written" in told.detail


async def test_messages_can_be_taken_away(files: FileProvider, tmp_path: Path) -> None:
    assert await files.erase("default", ["a"]) == 0, "there is no folder yet"
    for name in ("a", "a/1", "b"):
        accepted(await files.send(sms(id=name)))
    accepted(await files.send(email(id="a")))
    draft = tmp_path / "outbox" / f".{file_name(email(id='a'))}.new"
    draft.write_text("cut off")
    assert await files.erase("default", ["a", "a/1", "c"]) == 3
    assert [path.name for path in (tmp_path / "outbox").iterdir()] == [file_name(sms(id="b"))]
    assert await files.erase("default", ["a", "a/1", "c"]) == 0


async def test_tenants_may_use_the_same_id(files: FileProvider, tmp_path: Path) -> None:
    for tenant in ("default", "acme"):
        accepted(await files.send(msgspec.structs.replace(sms(id="a"), tenant=tenant)))
    assert len(list((tmp_path / "outbox").iterdir())) == 2
    assert await files.erase("acme", ["a"]) == 1


def test_an_inbox_is_not_its_business(files: FileProvider) -> None:
    assert not files.accepts("in_app", "ada")
    assert files.accepts("sms", "+15550100")

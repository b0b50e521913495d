"""Providers are found by their entry points; their settings are checked; secrets come from elsewhere."""

import pickle
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidings.channels.loading import check_settings, open_channel, providers, read_settings
from tidings.channels.outbox import Outbox
from tidings.channels.twilio import Settings as TwilioSettings
from tidings.channels.twilio import Twilio
from tidings.domain.errors import Invalid
from tidings.domain.secret import Secret, hide
from tidings.ports import Plugin, ProviderContext
from tidings.testing import SimulatedClock

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT_IN = {"apns", "fcm", "in_app", "outbox", "sendgrid", "smtp", "twilio", "webhook"}
OTHER = """
import msgspec
from tidings.domain.notifications.delivery import Accepted
from tidings.ports import Plugin

class Settings(msgspec.Struct):
    word: str

class Pigeon:
    deduplicates = False
    def __init__(self, settings): self.settings = settings
    def takes(self, message): return True
    async def send(self, message): return Accepted(self.settings.word)
    async def close(self): pass

PLUGIN = Plugin(Settings, lambda settings, surroundings: Pigeon(settings))
"""


@pytest.fixture
def surroundings(tmp_path: Path) -> ProviderContext:
    return ProviderContext(SimulatedClock(), tmp_path)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of this project, as a package of its own would bring them, and a folder for others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    _install(tmp_path, "tidings_channels", project["entry-points"]["tidings.channels"])
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _install(folder: Path, name: str, points: dict[str, str]) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {value}\n" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[tidings.channels]\n{lines}")


def test_every_built_in_provider_loads() -> None:
    assert providers().keys() >= BUILT_IN
    assert all(isinstance(providers()[name].load(), Plugin) for name in BUILT_IN)


def test_every_file_of_a_channel_has_its_entry_point() -> None:
    files = {
        path.stem for path in (ROOT / "src/tidings/channels").glob("*.py") if "PLUGIN =" in path.read_text("utf-8")
    }
    assert files == BUILT_IN


def test_a_channel_is_opened_with_a_secret_from_the_environment(
    surroundings: ProviderContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWILIO_TOKEN", "very secret")
    settings = {"account": "AC1", "sender": "+15550100", "token": {"env": "TWILIO_TOKEN"}}
    channel = open_channel("twilio", settings, surroundings)
    assert isinstance(channel, Twilio)
    assert isinstance(open_channel("outbox", {}, surroundings), Outbox)


def test_a_secret_from_a_file_loses_only_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("very secret\n")
    given = {"account": "AC1", "sender": "+15550100", "token": {"file": str(tmp_path / "token")}}
    settings = read_settings(TwilioSettings, given)
    assert settings.token.reveal() == "very secret"


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"token": "very secret"}, "token", "kept in the environment or in a file"),
        ({"token": {"env": "NOT_SET_ANYWHERE"}}, "token", "NOT_SET_ANYWHERE is not set"),
        ({"token": {"file": "/nowhere/token"}}, "token", "/nowhere/token cannot be read: No such file"),
        ({"token": {"env": "HOME", "file": "x"}}, "token", "kept in the environment or in a file"),
        ({"account": 5}, "account", "is not a text"),
        ({"tokn": 5}, "tokn", "the settings are account, token, key"),
        ({"account": ...}, "account", "is missing: give a text"),
        ({"timeout_s": "5"}, "timeout_s", "is not a number"),
        ({"key": 5}, "key", "is not a text"),
    ],
)
def test_bad_settings_are_refused_by_name(changes: dict[str, Any], field: str, says: str) -> None:
    given = {"account": "AC1", "sender": "+15550100", "token": {"env": "PATH"}, **changes}
    with pytest.raises(Invalid) as refused:
        read_settings(TwilioSettings, {name: value for name, value in given.items() if value is not ...})
    assert refused.value.field == field
    assert says in refused.value.detail
    assert "very secret" not in str(refused.value)


def test_all_that_is_wrong_with_a_table_is_told_at_once() -> None:
    given = {"port": "25", "security": "ssl", "hots": "x", "password": "oops", "sender": "a@example.com"}
    with pytest.raises(Invalid) as refused:
        check_settings("smtp", given)
    told = {each.field: each.detail for each in refused.value.all}
    assert list(told) == ["hots", "host", "port", "security", "password"]
    assert told["host"] == "is missing: give a text"
    assert told["port"] == "is not a whole number"
    assert told["security"] == 'is not "starttls" or "tls" or "none"'
    assert "oops" not in str(refused.value)


def test_lists_are_told_as_lists() -> None:
    with pytest.raises(Invalid, match="ports: is not a list of whole numbers"):
        check_settings("webhook", {"secret": {"env": "X"}, "ports": 443})


def test_a_provider_that_is_not_installed_is_named(surroundings: ProviderContext) -> None:
    with pytest.raises(Invalid, match="'pigeon' is not installed: available are apns, fcm"):
        open_channel("pigeon", {}, surroundings)


async def test_another_package_brings_its_own(installed: Path, surroundings: ProviderContext) -> None:
    (installed / "pigeons.py").write_text(OTHER)
    _install(
        installed, "pigeons", {"pigeon": "pigeons:PLUGIN", "broken": "pigeons:Settings", "far": "no_such_module:X"}
    )
    channel = open_channel("pigeon", {"word": "coo"}, surroundings)
    assert (await channel.send(None)).id == "coo"  # type: ignore[arg-type,union-attr]
    with pytest.raises(Invalid, match=r"is not a tidings\.ports\.Plugin"):
        open_channel("broken", {}, surroundings)
    with pytest.raises(Invalid, match="far needs no_such_module, which is not installed"):
        open_channel("far", {}, surroundings)
    sys.modules.pop("pigeons")


def test_two_packages_cannot_claim_one_name(installed: Path) -> None:
    _install(installed, "rivals", {"smtp": "rivals:PLUGIN"})
    with pytest.raises(Invalid, match="claimed by"):
        providers()


def test_a_secret_is_shown_nowhere() -> None:
    secret = Secret("very secret")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>20}", "%s" % secret, repr([secret])]  # noqa: UP031
    assert not any("very" in text for text in shown)
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        msgspec.json.encode({"x": secret})
    assert hide("very secret, or very%20secret", [secret]) == "***, or ***"

"""Providers are found by their entry points; their settings are checked; secrets come from elsewhere."""

import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.domain.secret import Secret, hide
from tidings.ports import ProviderContext
from tidings.providers import registry
from tidings.providers.files import FileProvider
from tidings.providers.registry import check_provider, open_provider, provider_type
from tidings.providers.settings import read_settings
from tidings.providers.sms.twilio import Settings as TwilioSettings
from tidings.providers.sms.twilio import Twilio
from tidings.testing import SimulatedClock

ROOT = Path(__file__).resolve().parent.parent.parent
OTHER = """
import msgspec
from tidings.domain.notifications.delivery import Accepted
from tidings.ports import ProviderType

class Settings(msgspec.Struct):
    word: str

class Pigeon:
    deduplicates = False
    def __init__(self, settings): self.settings = settings
    def accepts(self, channel, address): return True
    async def send(self, message): return Accepted(self.settings.word)
    async def close(self): pass

PROVIDER = ProviderType(channels=("sms",), settings=Settings, open=lambda settings, context: Pigeon(settings))
"""


@pytest.fixture
def context(tmp_path: Path) -> ProviderContext:
    return ProviderContext(clock=SimulatedClock(), folder=tmp_path)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of this project, as a package of its own would bring them, and a folder for others."""
    _install(tmp_path, "tidings_providers", built_in())
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _install(folder: Path, name: str, points: dict[str, str]) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "".join(f"{key} = {value}\n" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[tidings.providers]\n{lines}")


def built_in() -> dict[str, str]:
    """The providers of this project, as its own configuration lists them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    points: dict[str, str] = project["entry-points"]["tidings.providers"]
    return points


def test_every_built_in_provider_loads() -> None:
    assert {channel for name in built_in() for channel in provider_type(name).channels} == set(CHANNEL_NAMES)


def test_an_old_name_is_accepted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry._warn_of_old_name.cache_clear()
    for _ in range(2):
        assert provider_type("outbox") is provider_type("files")
    [record] = caplog.records
    assert record.getMessage().startswith("the provider outbox is now called files: write provider = ")


def test_only_the_kinds_that_are_named_are_imported() -> None:
    """And the metadata of other packages is not read for a kind that comes with Tidings."""
    script = """
import importlib.metadata, sys
from tidings.providers import registry
def no(**_): raise AssertionError("all packages were searched")
registry.entry_points = no
registry.provider_type("in_app")
print(sorted(name for name in sys.modules if name.startswith("tidings.providers.")))
print([name for name in ("aiosmtplib", "cryptography", "h2", "httpx2", "ssl") if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours, foreign = ran.stdout.splitlines()
    assert "tidings.providers.in_app" in ours
    assert not any(name in ours for name in ("email", "sms", "push", "webhook", "files"))
    assert foreign == "[]"


def test_every_file_of_a_provider_has_its_entry_point() -> None:
    folder = ROOT / "src/tidings/providers"
    files = {path.stem for path in folder.rglob("*.py") if "PROVIDER = Prov" in path.read_text("utf-8")}
    assert files == set(built_in())


def test_a_channel_is_opened_with_a_secret_from_the_environment(
    context: ProviderContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWILIO_TOKEN", "very secret")
    settings = {"account": "AC1", "sender": "+15550100", "token": {"env": "TWILIO_TOKEN"}}
    channel = open_provider("twilio", settings, context)
    assert isinstance(channel, Twilio)
    assert isinstance(open_provider("files", {}, context), FileProvider)


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
        check_provider("smtp", given)
    told = {each.field: each.detail for each in refused.value.all}
    assert list(told) == ["hots", "host", "port", "security", "password"]
    assert told["host"] == "is missing: give a text"
    assert told["port"] == "is not a whole number"
    assert told["security"] == 'is not "starttls" or "tls" or "none"'
    assert "oops" not in str(refused.value)


def test_lists_are_told_as_lists() -> None:
    with pytest.raises(Invalid, match="ports: is not a list of whole numbers"):
        check_provider("webhook", {"secret": {"env": "X"}, "ports": 443})


def test_a_provider_that_is_not_installed_is_named(context: ProviderContext) -> None:
    with pytest.raises(Invalid, match="'pigeon' is not installed: available are apns, fcm"):
        open_provider("pigeon", {}, context)


async def test_another_package_brings_its_own(installed: Path, context: ProviderContext) -> None:
    (installed / "pigeons.py").write_text(OTHER)
    _install(
        installed, "pigeons", {"pigeon": "pigeons:PROVIDER", "broken": "pigeons:Settings", "far": "no_such_module:X"}
    )
    channel = open_provider("pigeon", {"word": "coo"}, context)
    assert (await channel.send(None)).id == "coo"  # type: ignore[arg-type,union-attr]
    with pytest.raises(Invalid, match=r"is not a tidings\.ports\.ProviderType"):
        open_provider("broken", {}, context)
    with pytest.raises(Invalid, match="far needs no_such_module, which is not installed"):
        open_provider("far", {}, context)
    sys.modules.pop("pigeons")


def test_a_provider_that_cannot_be_loaded_is_refused(installed: Path) -> None:
    (installed / "halves.py").write_text(OTHER)
    (installed / "crash.py").write_text("raise RuntimeError('no license')")
    _install(installed, "halves", {"half": "halves:NOPE", "crash": "crash:PROVIDER"})
    with pytest.raises(Invalid) as refused:
        provider_type("half")
    assert str(refused.value) == "provider: halves:NOPE cannot be loaded: module 'halves' has no attribute 'NOPE'"
    with pytest.raises(Invalid, match="crash:PROVIDER cannot be loaded: no license"):
        provider_type("crash")
    sys.modules.pop("halves")


def test_two_packages_cannot_claim_one_name(installed: Path) -> None:
    _install(installed, "rivals", {"smtp": "rivals:PROVIDER"})
    with pytest.raises(Invalid, match="claimed by"):
        registry.installed()


def test_a_secret_is_shown_nowhere() -> None:
    secret = Secret("very secret")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>20}", "%s" % secret, repr([secret])]  # noqa: UP031
    assert not any("very" in text for text in shown)
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        msgspec.json.encode({"x": secret})
    assert hide("very secret, or very%20secret", [secret]) == "***, or ***"

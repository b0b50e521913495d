"""From the settings to providers, links and limits; invalid settings are refused without showing a secret."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tidings.clock import SystemClock
from tidings.config import Config, load
from tidings.config.checks import ProviderTable
from tidings.config.settings import Delivery, Node, Store
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.limits.rate_limit import RateLimits
from tidings.delivery.notifications.pruner import Pruner, PrunerService
from tidings.delivery.people import unsubscribe
from tidings.delivery.people.unsubscribe import Unsubscription
from tidings.domain.errors import Invalid
from tidings.domain.fleet import Role
from tidings.domain.notifications.message import CHANNEL_NAMES, ChannelName
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.schedules.schedule import Topic
from tidings.engine import Engine
from tidings.node.delivery import (
    add_delivery,
    check_channels,
    check_delivery,
    link_keys,
    link_of,
    open_providers,
    provider_tables,
    providers_of,
    readers_of,
    served_channels,
    settings_of,
    try_channels,
    webhook_check_of,
)
from tidings.testing import eventually
from tidings.timeline.memory import MemoryStore

KEY = "0123456789abcdef0123"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINK_KEY", KEY)
    monkeypatch.setenv("OLDER_KEY", KEY[::-1])
    monkeypatch.setenv("SHORT", "hunter2")
    monkeypatch.setenv("HOOK_SECRET", SECRET)


def config_of(folder: Path, text: str) -> Config:
    file = folder / "tidings.toml"
    file.write_text(text, "utf-8")
    return load(str(file), {}, {}).config


def test_the_inbox_is_always_open_and_files_come_last() -> None:
    assert [table.name for table in provider_tables(Config())] == ["in_app", "files"]
    given = (ProviderTable(name="files", provider="files"), ProviderTable(name="mail", provider="smtp"))
    assert [table.name for table in provider_tables(Config(channels=given))] == ["mail", "in_app", "files"]
    assert [table.name for table in provider_tables(Config(channels=given[1:]))] == ["mail", "in_app"]


def test_served_channels_are_known_only_on_a_node_that_delivers() -> None:
    mail = (ProviderTable(name="mail", provider="smtp"),)
    assert served_channels(Config()) == frozenset(CHANNEL_NAMES)
    assert sorted(served_channels(Config(channels=mail)) or ()) == ["email", "in_app"]
    assert served_channels(Config(node=Node(roles=("api",)), channels=mail)) is None


async def test_files_accept_only_what_no_other_provider_accepts(tmp_path: Path) -> None:
    own = (
        ProviderTable(name="kept", provider="files"),
        ProviderTable(name="mail", provider="smtp", settings={"host": "127.0.0.1", "sender": "t@e.com"}),
    )
    config = Config(store=Store(str(tmp_path / "tidings.db")), channels=own)
    async with open_providers(config, SystemClock()) as channels:
        assert [name for name, each in channels.items() if each.accepts("email", "ada@example.org")] == ["mail"]
        assert [name for name, each in channels.items() if each.accepts("sms", "+15550100")] == ["kept"]
    async with open_providers(Config(store=config.store), SystemClock()) as channels:
        assert [name for name, each in channels.items() if each.accepts("email", "ada@example.org")] == ["files"]


def test_files_show_the_channels_left_to_them() -> None:
    def left(*providers: str) -> tuple[str, ...]:
        config = Config(channels=tuple(ProviderTable(name=each, provider=each) for each in (*providers, "files")))
        assert served_channels(config) == frozenset(CHANNEL_NAMES), "by others, or by files"
        return providers_of(config)[-1].channels

    assert left() == ("email", "sms", "push", "webhook")
    assert left("smtp", "apns") == ("sms", "push", "webhook"), "devices of fcm have no provider yet"
    assert left("smtp", "apns", "fcm", "twilio", "webhook") == ()


def test_webhooks_are_refused_by_the_networks_of_the_configuration() -> None:
    def refused(
        url: str,
        *networks: str,
        roles: Sequence[Role] = ("api", "deliver"),
        channels: Sequence[ChannelName] = CHANNEL_NAMES,
    ) -> bool:
        tables = (
            ProviderTable(name=str(number), provider="webhook", settings={"allowed_networks": [network]})
            for number, network in enumerate(networks)
        )
        config = Config(node=Node(roles=tuple(roles), channels=tuple(channels)), channels=tuple(tables))
        try:
            webhook_check_of(config)(url, "to")
        except Invalid as invalid:
            return invalid.field == "to"
        return False

    assert refused("https://127.0.0.1/", "10.1.0.0/16")
    assert not refused("https://10.1.0.1/", "10.1.0.0/16")
    assert not refused("https://localhost/", "10.1.0.0/16"), "what a name resolves to is checked later"
    assert not refused("https://10.2.0.1/", "10.1.0.0/16", "10.2.0.0/16"), "one of two providers may call it"
    assert refused("https://10.3.0.1/", "10.1.0.0/16", "10.2.0.0/16")
    assert not refused("https://127.0.0.1/"), "messages are written to files"
    assert refused("https://127.0.0.1/", "10.1.0.0/16", roles=("api",)), "also if another node delivers"
    assert refused("https://127.0.0.1/", "10.1.0.0/16", channels=("email",))
    assert not refused("https://10.1.0.1/", "10.1.0.0/16", roles=("api",))
    assert not refused("https://127.0.0.1/", roles=("api",)), "the provider is configured elsewhere"


def test_a_link_can_be_read_with_the_current_and_the_older_key() -> None:
    delivery = Delivery(public_url="https://notify.example.com", link_key={"env": "LINK_KEY"})
    url = link_of(delivery)("acme", "email", "ada@example.com", "news") or ""
    base, _, token = url.rpartition("/")
    assert base == "https://notify.example.com/unsubscribe"
    later = Delivery(link_key={"env": "OLDER_KEY"}, older_link_key={"env": "LINK_KEY"})
    unsubscription = unsubscribe.read(link_keys(later), token)
    assert unsubscription == Unsubscription("acme", "email", "ada@example.com", "news")
    assert link_of(Delivery())("acme", "email", "ada@example.com", "news") is None


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"public_url": "https://notify.example.com"}, "delivery.link_key"),
        ({"link_key": {"env": "SHORT"}}, "delivery.link_key"),
        ({"link_key": {"env": "NOWHERE"}}, "delivery.link_key"),
        ({"older_link_key": {"file": "/no/such/file"}}, "delivery.older_link_key"),
        ({"concurrency": 8, "concurrency_reserved": 8}, "delivery.concurrency_reserved"),
    ],
)
def test_contradictory_settings_are_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_delivery(Config(delivery=Delivery(**given)))
    assert refused.value.field == field
    assert "hunter2" not in str(refused.value)


def test_a_claim_outlasts_a_call() -> None:
    settings = settings_of(Delivery(send_timeout_us=2_000_000), RateLimits())
    assert settings.send_s == 2.0
    assert settings.policy.claim_us > 2_000_000 < settings.breaker.trial_us
    default = settings_of(Delivery(), RateLimits())
    assert default.policy.claim_us == 35_000_000, "and not by much: a killed worker's claim is waited for"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('[channels.smtp]\nhost = "a"\nsender = "a@b.c"\npassword = "hunter2"', "channels.smtp.password"),
        ('[channels.smtp]\nhost = "a"\npasword = "hunter2"', "channels.smtp.pasword"),
        ('[channels.mail]\nhost = "a"', "channels.mail.provider"),
        ('[channels.webhook]\nsecret = {env = "HOOK_SECRET", x = "hunter2"}', "channels.webhook.secret"),
        (
            '[channels.webhook]\nsecret = {env = "HOOK_SECRET"}\nreceipts = {secret = "hunter2"}',
            "channels.webhook.receipts.secret",
        ),
        ("[channels.files]\nreceipts = {other = 1}", "channels.files.receipts.other"),
    ],
)
def test_an_invalid_table_is_refused_before_it_is_shown(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_channels(config_of(tmp_path, text))
    assert refused.value.field == field
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[channels.smtp]\nhost = 1", "channels.smtp.host"),
        ('[channels.webhook]\nsecret = {env = "SHORT"}', "channels.webhook.secret"),
        ('[channels.webhook]\nsecret = {env = "NOWHERE"}', "channels.webhook.secret"),
    ],
)
async def test_a_provider_that_cannot_be_opened_is_named(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        await try_channels(config_of(tmp_path, text))
    assert refused.value.field == field
    assert "hunter2" not in str(refused.value)


def test_each_provider_has_its_reader_of_receipts(tmp_path: Path) -> None:
    twilio = '[channels.text]\nprovider = "twilio"\ntoken = {env = "SHORT"}\nreceipts = {}\n'
    hooks = '[channels.webhook]\nsecret = {env = "HOOK_SECRET"}\nreceipts = {secret = {env = "HOOK_SECRET"}}\n'
    with pytest.raises(Invalid, match=r"set delivery\.public_url too"):
        readers_of(config_of(tmp_path, twilio))
    public = '[delivery]\npublic_url = "https://notify.example.com"\n'
    readers = readers_of(config_of(tmp_path, public + twilio + hooks))
    assert {name: type(reader).__name__ for name, reader in readers.items()} == {
        "text": "TwilioReader",
        "webhook": "SignedReader",
    }


async def test_expired_documents_of_all_tenants_are_removed_until_the_node_stops() -> None:
    swept: list[str] = []

    class Recorded(Pruner):
        def __init__(self) -> None:
            """Only what is asked of it counts."""

        async def sweep(self, tenant: str) -> bool:
            swept.append(tenant)
            return swept.count(tenant) % 2 == 1

    class Tenants(MemoryStore):
        async def topics_by_prefix(self, prefix: str) -> list[Any]:
            assert prefix == "notify."
            one, other = (Topic(name, (0,), (0,), 0) for name in ("notify.email", "notify.sms"))
            return [("acme", one), ("globex", one), ("acme", other)]

    sweeper = PrunerService(Tenants(), Recorded(), SystemClock(), pause_s=0.001)
    running = asyncio.create_task(sweeper.run())
    await eventually(lambda: len(swept) >= 8)
    sweeper.stop()
    await asyncio.wait_for(running, 5)
    assert swept[:4] == ["acme", "acme", "globex", "globex"]


async def test_a_node_without_email_does_not_warn_about_its_links(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, f'{MAIL}[node]\nchannels = ["webhook"]\n[store]\npath = "{tmp_path / "t.db"}"\n')
    engine = Engine(MemoryStore(), SystemClock())
    async with AsyncExitStack() as last:
        await add_delivery(engine, config, last)
    await engine.stop()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


MAIL = '[channels.smtp]\nhost = "smtp.example.com"\nsender = "news@example.com"\n'
PUBLIC = '[delivery]\npublic_url = "https://notify.example.com"\nlink_key = {env = "LINK_KEY"}\n'


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("", False),  # files alone: nothing leaves this machine
        ('[channels.twilio]\naccount = "AC1"\ntoken = {env = "SHORT"}\nsender = "+15550100"\n', False),
        (MAIL, True),
        (PUBLIC + MAIL, False),
    ],
)
async def test_email_without_unsubscribe_links_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, lacks: bool
) -> None:
    config = config_of(tmp_path, text + f'[store]\npath = "{tmp_path / "t.db"}"\n')
    engine = Engine(MemoryStore(), SystemClock())
    async with AsyncExitStack() as last:
        people = await add_delivery(engine, config, last)
        services = people.services
        await services.users.put("acme", "ada", {"email": "ada@example.com"})

        async def note(**asked: Any) -> str | None:
            words = InlineContent("Hello", "Hi")
            [made] = await services.acceptance.accept(
                "acme", NotificationRequest(user="ada", content=words, at="PT1H", **asked)
            )
            assert made.outcome == "scheduled"
            return made.note

        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        expected = [unsubscribe.NO_LINK] if lacks else []
        assert warned == expected
        assert list(services.providers.warnings) == expected
        if "email" in {channel for way in providers_of(config) for channel in way.channels}:
            assert await note(channel="email", category="news") == (unsubscribe.NO_LINK if lacks else None)
            assert await note(channel="email") is None
        assert await note(channel="in_app", category="news") is None
    await engine.stop()

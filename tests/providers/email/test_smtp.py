"""SMTP, against a real mail server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import msgspec
import pytest
import uvloop

from tests.providers.messages import Refused, accepted, email
from tests.providers.servers.authority import Authority
from tests.providers.servers.mail import PASSWORD, USER, MailServer, Step, serving
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Broken, Permanent, Temporary
from tidings.domain.secret import Secret
from tidings.providers.email.smtp import Settings, Smtp
from tidings.testing import SimulatedClock

pytestmark = [
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiosmtpd"),
]

SENDER = "news@example.com"


@dataclass(frozen=True, slots=True)
class Site:
    server: MailServer
    make: Callable[..., Smtp]


@pytest.fixture(params=[False, True], ids=["plain", "pipelining"])
async def site(authority: Authority, clock: SimulatedClock, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    serves = serving("starttls", authority.context(), pipelines=request.param)
    async with serves as server, AsyncExitStack() as closing:

        def make(**changes: Any) -> Smtp:
            channel = Smtp(_settings(server, authority, **changes), clock)
            closing.push_async_callback(channel.close)
            return channel

        yield Site(server, make)


def _settings(server: MailServer, authority: Authority, **changes: Any) -> Settings:
    given: dict[str, Any] = {"port": server.port, "ca_file": str(authority.ca), "timeout_s": 0.5}
    login = {"username": USER, "password": Secret(PASSWORD)}
    return Settings(**{"host": "localhost", "sender": SENDER, **given, **login, **changes})


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_an_email_arrives_encrypted_and_with_a_login(
    authority: Authority, clock: SimulatedClock, security: Literal["starttls", "tls"]
) -> None:
    async with serving(security, authority.context()) as server:
        channel = Smtp(_settings(server, authority, security=security, sender_name="Näws, Inc."), clock)
        message = email(html="<p>Té</p>", to_name='Ada "A"', unsubscribe_url="https://t.example/u/x", subject="Té ☕")
        sent = accepted(await channel.send(message))
        await channel.close()
    (mail,) = server.accepted
    assert (mail.sender, mail.recipients, mail.over_tls, mail.user) == (SENDER, ["ada@example.org"], True, USER)
    parsed = mail.message
    assert parsed["subject"] == "Té ☕"
    assert parsed["message-id"] == sent
    assert parsed["from"].addresses[0].display_name == "Näws, Inc."
    assert parsed["to"].addresses[0].display_name == 'Ada "A"'
    assert parsed["list-unsubscribe"] == "<https://t.example/u/x>"
    assert parsed["date"].datetime.timestamp() == clock.now() // 1_000_000
    plain, html = parsed.get_body(("plain",)), parsed.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert plain.get_content().splitlines() == ["Tea at nine."]
    assert html.get_content().splitlines() == ["<p>Té</p>"]


@pytest.mark.parametrize("pipelines", [False, True])
async def test_a_server_without_encryption_and_login(
    authority: Authority, clock: SimulatedClock, pipelines: bool
) -> None:
    async with serving("none", authority.context(), login=False, pipelines=pipelines) as server:
        provider = Smtp(Settings("localhost", SENDER, port=server.port, security="none"), clock)
        for number in range(3):
            accepted(await provider.send(email(id=f"n-{number}")))
        await provider.close()
    assert (len(server.accepted), server.connections) == (3, 1)


@pytest.mark.parametrize("security", ["starttls", "tls", "none"])
def test_on_the_loop_that_a_node_runs_on(authority: Authority, security: Literal["starttls", "tls", "none"]) -> None:
    """Its transports are not those of asyncio."""

    async def main() -> MailServer:
        is_safe = security != "none"
        async with serving(security, authority.context(), login=is_safe, pipelines=True) as server:
            login = {} if is_safe else {"username": None, "password": None}
            provider = Smtp(_settings(server, authority, security=security, **login), SimulatedClock())
            sent = await asyncio.gather(*(provider.send(email(id=f"n-{number}")) for number in range(5)))
            assert all(accepted(verdict) for verdict in sent)
            server.at["rcpt"].then("550 5.1.1 no such user")
            assert isinstance(await provider.send(email()), Permanent)
            await provider.close()
        return server

    assert len(uvloop.run(main()).accepted) == 5


async def test_a_second_attempt_has_the_same_message_id(site: Site) -> None:
    channel = site.make()
    assert accepted(await channel.send(email())) == accepted(await channel.send(email()))
    assert accepted(await channel.send(email(id="n-2/1/1"))) != site.server.accepted[0].message["message-id"]


async def test_lines_that_begin_with_a_dot_stay(site: Site) -> None:
    accepted(await site.make().send(email(text=".\n..hidden\nend\n.\n")))
    assert site.server.accepted[0].message.get_content().splitlines() == [".", "..hidden", "end", "."]


async def test_connections_are_kept_and_shared(site: Site) -> None:
    channel = site.make(connections_max=3)
    verdicts = await asyncio.gather(*(channel.send(email(id=f"n-{number}")) for number in range(30)))
    assert all(accepted(verdict) for verdict in verdicts)
    assert len({mail.message["message-id"] for mail in site.server.accepted}) == 30
    assert site.server.connections <= 3


async def test_a_connection_serves_so_many_messages_and_lies_idle_so_long(site: Site, clock: SimulatedClock) -> None:
    channel = site.make(messages_per_connection=2, idle_s=5.0)
    for _ in range(4):
        accepted(await channel.send(email()))
    assert site.server.connections == 2
    accepted(await channel.send(email()))
    clock.advance(timedelta(seconds=6))
    accepted(await channel.send(email()))
    assert site.server.connections == 4


async def test_a_kept_connection_that_the_server_closed_is_replaced_in_silence(site: Site) -> None:
    channel = site.make()
    accepted(await channel.send(email()))
    site.server.drop_idle()
    accepted(await channel.send(email()))
    site.server.at["mail"].then("421 4.4.2 idle for too long")
    accepted(await channel.send(email()))
    assert len(site.server.accepted) == 3


@pytest.mark.parametrize(
    ("step", "told", "verdict"),
    [
        ("connect", "554 5.3.2 no service for you", Broken("misconfigured")),
        ("connect", "421 4.3.2 come back later", Temporary("provider_error")),
        ("mail", "550 5.1.8 sender unknown", Broken("sender_refused")),
        ("mail", "530 5.7.0 Authentication required", Broken("credentials_refused")),
        ("mail", "552 5.3.4 too big", Permanent("too_large")),
        ("mail", "451 4.3.0 try again", Temporary("provider_error")),
        ("rcpt", "550 5.1.1 no such user", Permanent("address_gone", "", True)),
        ("rcpt", "550 5.1.10 null MX", Permanent("address_gone", "", True)),
        ("rcpt", "550 5.2.1 mailbox disabled", Permanent("address_gone", "", True)),
        ("rcpt", "550 5.7.1 policy", Permanent("address_refused")),
        ("rcpt", "553 who?", Permanent("address_refused")),
        ("rcpt", "450 4.2.0 greylisted", Temporary("address_deferred")),
        ("rcpt", "452 4.2.2 mailbox full", Temporary("address_deferred")),
        ("rcpt", "451 later", Temporary("address_deferred")),
        ("rcpt", "451 4.7.1 greylisted", Temporary("address_deferred")),
        ("rcpt", "450 4.1.2 no such domain today", Temporary("address_deferred")),
        ("data", "452 4.2.2 mailbox full", Temporary("address_deferred")),
        ("data", "451 4.3.0 later", Temporary("provider_error")),
        ("data", "554 5.7.1 spam", Permanent("content_refused")),
        ("data", "552 5.2.3 too long", Permanent("too_large")),
        ("data", "552 too long", Permanent("too_large")),
        ("data", "451 4.7.1 later", Temporary("address_deferred")),
        ("data", "451 4.5.0 the filter cannot read it", Temporary("address_deferred")),
        ("data", "530 5.7.1 not with this content", Permanent("content_refused")),
        ("rcpt", "530 5.7.1 not to this recipient", Permanent("address_refused")),
        ("rcpt", "535 5.7.8 not to this recipient", Permanent("address_refused")),
    ],
)
async def test_refusals_by_step_and_code(site: Site, step: Step, told: str, verdict: Refused) -> None:
    channel = site.make()
    site.server.at[step].then(told)
    heard = await channel.send(email())
    assert isinstance(heard, type(verdict))
    assert heard.reason == verdict.reason
    assert heard.detail == told
    assert getattr(heard, "address_is_dead", None) == getattr(verdict, "address_is_dead", None)
    assert getattr(heard, "may_have_arrived", False) is False
    accepted(await channel.send(email()))
    assert site.server.connections == (2 if step == "connect" else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "act", "reason", "may_have_arrived"),
    [
        ("mail", "cut", "connection_lost", False),
        ("rcpt", "cut", "connection_lost", False),
        ("data", "cut", "connection_lost", True),
        ("rcpt", "silence", "timeout", False),
        ("data", "silence", "timeout", True),
    ],
)
async def test_faults_of_the_network(site: Site, step: Step, act: str, reason: str, may_have_arrived: bool) -> None:
    channel = site.make()
    site.server.at[step].then(act)
    heard = await channel.send(email())
    assert isinstance(heard, Temporary)
    assert (heard.reason, heard.may_have_arrived) == (reason, may_have_arrived)
    accepted(await channel.send(email()))


async def test_a_server_that_is_away(site: Site, authority: Authority) -> None:
    async with serving("none", authority.context()) as gone:
        pass
    heard = await site.make(port=gone.port).send(email())
    assert isinstance(heard, Temporary)
    assert (heard.reason, heard.may_have_arrived) == ("unreachable", False)
    assert heard.detail == f"no connection to localhost: connection refused (port {gone.port})"


async def test_a_wrong_password_breaks_the_channel_and_is_not_shown(site: Site) -> None:
    channel = site.make(password=Secret("not the password"))
    heard = await channel.send(email())
    assert isinstance(heard, Broken)
    assert heard.reason == "credentials_refused"
    assert "not the password" not in repr((heard, channel.__dict__))


async def test_without_starttls_nothing_is_said(authority: Authority, clock: SimulatedClock) -> None:
    async with serving("none", authority.context()) as server:
        channel = Smtp(_settings(server, authority), clock)
        heard = await channel.send(email())
        await channel.close()
    assert isinstance(heard, Broken)
    assert heard.reason == "misconfigured"
    assert server.accepted == []


async def test_a_certificate_that_nobody_trusts_breaks_the_channel(site: Site) -> None:
    heard = await site.make(ca_file=None).send(email())
    assert isinstance(heard, Broken)
    assert heard.reason == "misconfigured"


async def test_an_address_outside_ascii(site: Site) -> None:
    accepted(await site.make().send(email(to="dà@müller.example")))
    assert site.server.accepted[0].recipients == ["dà@xn--mller-kva.example"]


def test_settings_are_checked_and_no_password_travels_in_the_clear(clock: SimulatedClock) -> None:
    with pytest.raises(Invalid, match="sent unencrypted"):
        Smtp(Settings("mail.example", SENDER, security="none", username="u", password=Secret("word")), clock)
    with pytest.raises(Invalid, match="at least 1"):
        Smtp(Settings("mail.example", SENDER, connections_max=0), clock)
    with pytest.raises(Invalid, match="must be given together"):
        Smtp(Settings("mail.example", SENDER, username="u"), clock)


async def test_a_server_that_refuses_smtputf8_refuses_this_recipient_and_not_our_sender(site: Site) -> None:
    channel = site.make()
    site.server.at["mail"].then("555 5.5.4 unsupported parameter")
    heard = await channel.send(email(to="dà@example.org"))
    assert isinstance(heard, Permanent)
    assert heard.reason == "not_supported"


async def test_a_message_that_cannot_be_built_is_refused_without_a_call(site: Site) -> None:
    message = email()
    msgspec.structs.force_setattr(message, "to", "ada@☃.com")  # past the checks of its class
    heard = await site.make().send(message)
    assert isinstance(heard, Permanent)
    assert heard.detail.startswith("the message cannot be built: to: '☃.com' is not a domain name")
    assert not heard.concerns_provider
    assert site.server.connections == 0

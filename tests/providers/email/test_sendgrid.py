"""SendGrid, against a server that asks what its documentation asks."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.providers.messages import accepted, email
from tests.providers.servers.authority import Authority
from tests.providers.servers.http import Answer, Fault, HttpServer, serving
from tests.providers.servers.sendgrid import KEY, SENDER, SendGridServer, error
from tidings.domain.notifications.delivery import Broken, Permanent, Temporary
from tidings.domain.secret import Secret
from tidings.providers.email.sendgrid import SendGrid, Settings
from tidings.testing import SimulatedClock


@dataclass(frozen=True, slots=True)
class Site:
    provider: SendGridServer
    server: HttpServer
    channel: SendGrid
    settings: Settings


@pytest.fixture
async def site(authority: Authority, clock: SimulatedClock) -> AsyncIterator[Site]:
    provider = SendGridServer()
    async with serving(provider, authority.context()) as server:
        settings = Settings(Secret(KEY), SENDER, "News", url=server.url, ca_file=str(authority.ca), timeout_s=0.5)
        channel = SendGrid(settings, clock)
        yield Site(provider, server, channel, settings)
        await channel.close()


async def test_an_email_is_accepted_under_the_providers_id(site: Site) -> None:
    message = email(html="<p>Tea</p>", to_name="Ada", unsubscribe_url="https://t.example/u/x")
    assert accepted(await site.channel.send(message)) == "sg-1"
    (sent,) = site.provider.accepted
    assert sent["personalizations"] == [
        {
            "to": [{"email": "ada@example.org", "name": "Ada"}],
            "custom_args": {"tidings_id": "n-1/1/1", "tidings_tenant": "default"},
        }
    ]
    assert sent["from"] == {"email": SENDER, "name": "News"}
    assert sent["headers"]["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert [part["type"] for part in sent["content"]] == ["text/plain", "text/html"]


async def test_connections_are_kept(site: Site) -> None:
    for _ in range(5):
        accepted(await site.channel.send(email()))
    assert site.server.connections == 1


async def test_an_address_outside_ascii_goes_out_as_dns_writes_it(site: Site) -> None:
    accepted(await site.channel.send(email(to="ada@müller.example")))
    assert site.provider.accepted[0]["personalizations"][0]["to"] == [{"email": "ada@xn--mller-kva.example"}]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (
            error(400, "Does not contain a valid address.", "personalizations.0.to.0.email"),
            Permanent("address_refused"),
        ),
        (error(400, "The subject is required.", "subject"), Permanent("content_refused")),
        (error(400, "The from email does not contain a valid address.", "from.email"), Broken("sender_refused")),
        (error(401, "Maximum credits exceeded", None), Broken("credentials_refused")),
        (error(403, "The from address does not match a verified Sender Identity.", "from"), Broken("sender_refused")),
        (error(406, "Missing Accept header", None), Broken("misconfigured")),
        (error(413, "too large", None), Permanent("too_large")),
        (error(500, "Internal", None), Temporary("provider_error")),
        (Answer(503, {}, b"<html>not JSON</html>"), Temporary("provider_error")),
        (error(503, "Unavailable", None, **{"Retry-After": "7"}), Temporary("provider_error", "", 7_000_000)),
        (error(429, "too many requests", None, **{"Retry-After": "30"}), Temporary("rate_limited", "", 30_000_000)),
        (Answer(302, {"Location": "https://127.0.0.1/"}), Broken("misconfigured")),
    ],
)
async def test_documented_errors(site: Site, answer: Answer, verdict: object) -> None:
    site.provider.script.then(answer)
    told = await site.channel.send(email())
    assert type(told) is type(verdict)
    for name in ("reason", "retry_after_us"):
        assert getattr(told, name, None) == getattr(verdict, name, None)
    assert str(answer.status) in getattr(told, "detail", "")


async def test_a_limit_says_when_it_begins_anew(site: Site, clock: SimulatedClock) -> None:
    reset = clock.now() // 1_000_000 + 42
    site.provider.script.then(error(429, "too many requests", None, **{"X-RateLimit-Reset": str(reset)}))
    told = await site.channel.send(email())
    assert isinstance(told, Temporary)
    assert told.retry_after_us == 42_000_000


async def test_a_wrong_key_breaks_the_channel_and_is_not_shown(site: Site, authority: Authority) -> None:
    settings = Settings(Secret("SG.wrong"), SENDER, url=site.server.url, ca_file=str(authority.ca))
    channel = SendGrid(settings, SimulatedClock())
    told = await channel.send(email())
    await channel.close()
    assert isinstance(told, Broken)
    assert told.reason == "credentials_refused"
    assert "SG.wrong" not in repr((told, settings))


async def test_a_key_that_an_error_repeats_is_not_shown(site: Site) -> None:
    site.provider.script.then(error(401, f"the key {KEY} is\r\nrevoked", None))
    told = await site.channel.send(email())
    assert isinstance(told, Broken)
    assert KEY not in told.detail
    assert "\n" not in told.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("reset", "connection_lost"), ("garbage", "connection_lost"), ("half", "connection_lost"), ("silence", "timeout")],
)
async def test_what_the_network_does_is_temporary_and_may_have_arrived(site: Site, fault: Fault, reason: str) -> None:
    site.provider.script.then(fault)
    told = await site.channel.send(email())
    assert isinstance(told, Temporary)
    assert (told.reason, told.may_have_arrived) == (reason, True)
    accepted(await site.channel.send(email()))


async def test_a_server_that_is_away_has_certainly_got_nothing(site: Site, authority: Authority) -> None:
    async with serving(site.provider, authority.context()) as gone:
        settings = Settings(Secret(KEY), SENDER, url=gone.url, ca_file=str(authority.ca))
    channel = SendGrid(settings, SimulatedClock())
    told = await channel.send(email())
    await channel.close()
    assert isinstance(told, Temporary)
    assert (told.reason, told.may_have_arrived) == ("unreachable", False)


async def test_a_certificate_that_nobody_trusts_breaks_the_channel(site: Site) -> None:
    channel = SendGrid(Settings(Secret(KEY), SENDER, url=site.server.url), SimulatedClock())
    told = await channel.send(email())
    await channel.close()
    assert isinstance(told, Broken)
    assert told.reason == "misconfigured"
    assert site.server.requests == []

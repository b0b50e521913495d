"""Twilio, against a server that asks what its documentation asks."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.providers.messages import Refused, accepted, sms
from tests.providers.servers.authority import Authority
from tests.providers.servers.http import Answer, HttpServer, serving
from tests.providers.servers.twilio import ACCOUNT, SENDER, TOKEN, TwilioServer, error
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Broken, Permanent, Temporary
from tidings.domain.secret import Secret
from tidings.providers.sms.twilio import Settings, Twilio
from tidings.testing import SimulatedClock


@dataclass(frozen=True, slots=True)
class Site:
    provider: TwilioServer
    server: HttpServer
    channel: Twilio


@pytest.fixture
async def site(authority: Authority, clock: SimulatedClock) -> AsyncIterator[Site]:
    provider = TwilioServer()
    async with serving(provider, authority.context()) as server:
        settings = Settings(
            ACCOUNT,
            Secret(TOKEN),
            sender=SENDER,
            callback_url="https://t.example/v1/receipts/twilio",
            url=server.url,
            ca_file=str(authority.ca),
            timeout_s=0.5,
        )
        channel = Twilio(settings, clock)
        yield Site(provider, server, channel)
        await channel.close()


async def test_a_text_is_accepted_and_its_receipts_will_name_it(site: Site) -> None:
    assert accepted(await site.channel.send(sms(text="Grüße & 50% + 🍵"))) == f"SM{1:032d}"
    assert site.provider.accepted == [
        {
            "To": "+15550100",
            "From": SENDER,
            "Body": "Grüße & 50% + 🍵",
            "StatusCallback": "https://t.example/v1/receipts/twilio?id=n-1%2F1%2F1",
        }
    ]


async def test_an_api_key_and_a_messaging_service(authority: Authority, clock: SimulatedClock) -> None:
    provider = TwilioServer(user="SK1")
    async with serving(provider, authority.context()) as server:
        settings = Settings(ACCOUNT, Secret(TOKEN), key="SK1", service="MG1", url=server.url, ca_file=str(authority.ca))
        channel = Twilio(settings, clock)
        accepted(await channel.send(sms()))
        await channel.close()
    assert provider.accepted[0]["MessagingServiceSid"] == "MG1"
    assert "From" not in provider.accepted[0]


@pytest.mark.parametrize(
    ("status", "code", "verdict"),
    [
        (400, 21211, Permanent("address_gone", "", True)),
        (400, 21614, Permanent("address_gone", "", True)),
        (400, 21610, Permanent("unsubscribed", "", True)),
        (400, 21408, Permanent("address_refused")),
        (400, 21612, Permanent("address_refused")),
        (400, 21617, Permanent("too_large")),
        (400, 21602, Permanent("content_refused")),
        (400, 99999, Permanent("content_refused")),
        (400, 21606, Broken("sender_refused")),
        (400, 21660, Broken("sender_refused")),
        (400, 21608, Permanent("address_refused")),
        (400, 21659, Permanent("address_refused")),
        (403, 21999, Permanent("content_refused")),
        (413, 0, Permanent("too_large")),
        (401, 20003, Broken("credentials_refused")),
        (403, 20005, Broken("account_refused")),
        (404, 20404, Broken("misconfigured")),
        (429, 20429, Temporary("rate_limited")),
        (429, 0, Temporary("rate_limited")),
        (429, 21611, Temporary("rate_limited")),
        (400, 30001, Temporary("rate_limited")),
        (500, 20500, Temporary("provider_error")),
        (503, 0, Temporary("provider_error")),
    ],
)
async def test_documented_errors(site: Site, status: int, code: int, verdict: Refused) -> None:
    site.provider.script.then(error(status, code, "as the dictionary says"))
    told = await site.channel.send(sms())
    assert isinstance(told, type(verdict))
    assert told.reason == verdict.reason
    assert getattr(told, "address_is_dead", None) == getattr(verdict, "address_is_dead", None)


async def test_a_wait_is_passed_on(site: Site) -> None:
    site.provider.script.then(error(429, 20429, "slow down", **{"Retry-After": "Fri, 20 Nov 2026 09:01:00 GMT"}))
    told = await site.channel.send(sms())
    assert isinstance(told, Temporary)
    assert told.retry_after_us == 60_000_000


@pytest.mark.slow
async def test_faults_of_the_network(site: Site) -> None:
    site.provider.script.then("reset", "silence", Answer(200, {}, b"[]"))
    lost, late, odd = [await site.channel.send(sms()) for _ in range(3)]
    assert isinstance(lost, Temporary)
    assert isinstance(late, Temporary)
    assert (lost.reason, late.reason) == ("connection_lost", "timeout")
    assert lost.may_have_arrived
    assert late.may_have_arrived
    assert accepted(odd) == ""


async def test_a_wrong_token_breaks_the_channel(site: Site, authority: Authority, clock: SimulatedClock) -> None:
    settings = Settings(ACCOUNT, Secret("wrong-token"), sender=SENDER, url=site.server.url, ca_file=str(authority.ca))
    channel = Twilio(settings, clock)
    told = await channel.send(sms())
    await channel.close()
    assert isinstance(told, Broken)
    assert told.reason == "credentials_refused"
    assert "wrong-token" not in repr((told, settings))


def test_a_sender_is_needed(clock: SimulatedClock) -> None:
    with pytest.raises(Invalid, match="give one of them"):
        Twilio(Settings(ACCOUNT, Secret(TOKEN)), clock)

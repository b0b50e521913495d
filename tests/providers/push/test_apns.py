"""APNs, against an HTTP/2 server that asks what Apple's documentation asks."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import pytest

from tests.providers.messages import APNS_TOKEN, accepted, push
from tests.providers.servers.apns import KEY_ID, TEAM_ID, TOPIC, ApnsServer, Fault, Refusal, serving
from tests.providers.servers.authority import Authority
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Broken, Permanent, Temporary
from tidings.domain.secret import Secret
from tidings.providers.push.apns import Apns, Settings
from tidings.testing import SimulatedClock


@dataclass(frozen=True, slots=True)
class Site:
    server: ApnsServer
    channel: Apns


@pytest.fixture
async def site(authority: Authority, clock: SimulatedClock) -> AsyncIterator[Site]:
    async with serving(ApnsServer(lambda: clock.now() // 1_000_000), authority.context("h2")) as server:
        channel = _channel(server, authority, clock)
        yield Site(server, channel)
        await channel.close()


def _channel(server: ApnsServer, authority: Authority, clock: SimulatedClock, key: str | None = None) -> Apns:
    secret = Secret(key or server.key())
    ca = str(authority.ca)
    return Apns(Settings(secret, KEY_ID, TEAM_ID, TOPIC, url=server.url, ca_file=ca, timeout_s=0.5), clock)


async def test_a_push_is_accepted_under_an_id_that_stays(site: Site, clock: SimulatedClock) -> None:
    message = push(data={"order": "42"}, expires=clock.now() + 90_000_000)
    first = accepted(await site.channel.send(message))
    again = accepted(await site.channel.send(message))
    assert first == again
    pushed = site.server.accepted[0]
    assert pushed.device == APNS_TOKEN
    assert pushed.payload == {"aps": {"alert": {"title": "Tea", "body": "At nine."}, "sound": "default"}, "order": "42"}
    assert pushed.headers["apns-collapse-id"] == "n-1/1/1"
    assert int(pushed.headers["apns-expiration"]) == clock.now() // 1_000_000 + 90
    assert site.server.connections == 1


async def test_a_low_urgency_saves_the_battery(site: Site) -> None:
    accepted(await site.channel.send(push(urgency="normal", collapse="x" * 65)))
    assert site.server.accepted[0].headers["apns-priority"] == "5"
    assert len(site.server.accepted[0].headers["apns-collapse-id"]) == 64


async def test_the_token_is_made_anew_within_an_hour_and_not_too_often(site: Site, clock: SimulatedClock) -> None:
    for _ in range(18):  # three hours
        accepted(await site.channel.send(push()))
        clock.advance(timedelta(minutes=10))
    assert len(site.server.tokens) == 4


async def test_a_token_that_apple_finds_too_old_is_made_anew_once(site: Site, clock: SimulatedClock) -> None:
    accepted(await site.channel.send(push()))
    site.server.script.then(Refusal(403, "ExpiredProviderToken"))
    told = await site.channel.send(push())
    assert isinstance(told, Broken)  # younger than 20 minutes: then it is a clock that is wrong
    clock.advance(timedelta(minutes=30))
    site.server.script.then(Refusal(403, "ExpiredProviderToken"))
    accepted(await site.channel.send(push()))


@pytest.mark.parametrize(
    ("status", "reason", "verdict"),
    [
        (400, "BadDeviceToken", Permanent("address_gone", "", True)),
        (400, "DeviceTokenNotForTopic", Permanent("address_gone", "", True)),
        (410, "Unregistered", Permanent("address_gone", "", True)),
        (410, "ExpiredToken", Permanent("address_gone", "", True)),
        (400, "BadCollapseId", Permanent("content_refused")),
        (400, "BadExpirationDate", Permanent("content_refused")),
        (400, "PayloadEmpty", Permanent("content_refused")),
        (400, "SomethingNew", Permanent("content_refused")),
        (413, "PayloadTooLarge", Permanent("too_large")),
        (400, "TopicDisallowed", Broken("sender_refused")),
        (400, "BadTopic", Broken("sender_refused")),
        (403, "InvalidProviderToken", Broken("credentials_refused")),
        (403, "MissingProviderToken", Broken("credentials_refused")),
        (403, "BadCertificateEnvironment", Broken("credentials_refused")),
        (403, "BadEnvironmentKeyIdInToken", Broken("credentials_refused")),
        (403, "Forbidden", Broken("account_refused")),
        (403, "SomethingNew", Broken("credentials_refused")),
        (404, "BadPath", Broken("misconfigured")),
        (405, "MethodNotAllowed", Broken("misconfigured")),
        (429, "TooManyRequests", Temporary("rate_limited")),
        (429, "TooManyProviderTokenUpdates", Temporary("rate_limited")),
        (500, "InternalServerError", Temporary("provider_error")),
        (503, "ServiceUnavailable", Temporary("provider_error")),
        (503, "Shutdown", Temporary("provider_error")),
    ],
)
async def test_documented_reasons(
    site: Site, status: int, reason: str, verdict: Permanent | Broken | Temporary
) -> None:
    site.server.script.then(Refusal(status, reason))
    told = await site.channel.send(push())
    assert isinstance(told, type(verdict))
    assert told.reason == verdict.reason
    assert reason in told.detail
    assert getattr(told, "address_is_dead", None) == getattr(verdict, "address_is_dead", None)


async def test_a_wait_is_passed_on(site: Site) -> None:
    site.server.script.then(Refusal(429, "TooManyRequests", (("retry-after", "11"),)))
    told = await site.channel.send(push())
    assert isinstance(told, Temporary)
    assert told.retry_after_us == 11_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("reset_stream", "connection_lost"),
        ("cut", "connection_lost"),
        ("goaway", "connection_lost"),
        ("silence", "timeout"),
    ],
)
async def test_faults_of_the_network(site: Site, fault: Fault, reason: str) -> None:
    accepted(await site.channel.send(push()))
    site.server.script.then(fault)
    told = await site.channel.send(push())
    assert isinstance(told, Temporary)
    assert (told.reason, told.may_have_arrived) == (reason, True)
    accepted(await site.channel.send(push()))


@pytest.mark.slow
async def test_a_connection_that_does_not_answer_is_left(site: Site) -> None:
    accepted(await site.channel.send(push()))
    site.server.script.then("silence", "silence")
    told = await asyncio.gather(*(site.channel.send(push(id=f"n-{number}")) for number in range(2)))
    assert all(isinstance(verdict, Temporary) for verdict in told)
    assert site.server.connections == 1
    accepted(await site.channel.send(push()))
    assert site.server.connections == 2


async def test_another_key_breaks_the_channel(site: Site, authority: Authority, clock: SimulatedClock) -> None:
    channel = _channel(site.server, authority, clock, ApnsServer(lambda: 0).key())
    told = await channel.send(push())
    await channel.close()
    assert isinstance(told, Broken)
    assert told.reason == "credentials_refused"


async def test_a_server_without_http2_or_trust_is_not_talked_to(
    site: Site, authority: Authority, clock: SimulatedClock
) -> None:
    channel = Apns(Settings(Secret(site.server.key()), KEY_ID, TEAM_ID, TOPIC, url=site.server.url), clock)
    told = await channel.send(push())
    await channel.close()
    assert isinstance(told, Broken)
    assert told.reason == "misconfigured"
    assert site.server.accepted == []


async def test_a_payload_that_is_too_large_is_not_sent(site: Site) -> None:
    told = await site.channel.send(push(body="x" * 4_096))
    assert isinstance(told, Permanent)
    assert told.reason == "too_large"
    assert site.server.connections == 0


def test_a_key_that_is_none_is_refused_without_showing_it(clock: SimulatedClock) -> None:
    with pytest.raises(Invalid) as refused:
        Apns(Settings(Secret("-----BEGIN PRIVATE KEY-----\nsecret"), KEY_ID, TEAM_ID, TOPIC), clock)
    assert "secret" not in repr(refused.value)

"""FCM, against a server that asks what Google's documentation asks."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import pytest

from tests.providers.messages import FCM_TOKEN, Refused, accepted, push
from tests.providers.servers.authority import Authority
from tests.providers.servers.fcm import FcmServer, error
from tests.providers.servers.http import Answer, HttpServer, serving
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Broken, Permanent, Temporary
from tidings.domain.secret import Secret
from tidings.providers.push.fcm import Fcm, Settings
from tidings.testing import SimulatedClock


@dataclass(frozen=True, slots=True)
class Site:
    provider: FcmServer
    server: HttpServer
    channel: Fcm


@pytest.fixture
async def site(authority: Authority, clock: SimulatedClock) -> AsyncIterator[Site]:
    provider = FcmServer(lambda: clock.now() // 1_000_000)
    async with serving(provider, authority.context()) as server:
        channel = _channel(provider, server, authority, clock)
        yield Site(provider, server, channel)
        await channel.close()


def _channel(provider: FcmServer, server: HttpServer, authority: Authority, clock: SimulatedClock) -> Fcm:
    url, ca = server.url, str(authority.ca)
    return Fcm(Settings(Secret(provider.account()), url, f"{url}/token", ca, timeout_s=0.5), clock)


async def test_a_push_is_accepted(site: Site, clock: SimulatedClock) -> None:
    message = push("fcm", data={"order": "42"}, expires=clock.now() + 90_000_000, collapse="tea")
    assert accepted(await site.channel.send(message)) == "projects/tidings-tests/messages/1"
    assert site.provider.accepted == [
        {
            "token": FCM_TOKEN,
            "notification": {"title": "Tea", "body": "At nine."},
            "data": {"order": "42"},
            "android": {"priority": "HIGH", "collapse_key": "tea", "ttl": "90s"},
        }
    ]


async def test_one_access_token_serves_until_near_its_end(site: Site, clock: SimulatedClock) -> None:
    for _ in range(3):
        accepted(await site.channel.send(push("fcm")))
    clock.advance(timedelta(minutes=50))
    accepted(await site.channel.send(push("fcm")))
    assert len(site.provider.tokens) == 1
    clock.advance(timedelta(minutes=6))
    accepted(await site.channel.send(push("fcm")))
    assert len(site.provider.tokens) == 2


async def test_a_token_that_is_refused_is_asked_for_anew_once(site: Site) -> None:
    accepted(await site.channel.send(push("fcm")))
    site.provider.tokens.append("revoked meanwhile")
    for verdict in await asyncio.gather(*(site.channel.send(push("fcm", id=f"n-{number}")) for number in range(5))):
        accepted(verdict)
    assert len(site.provider.accepted) == 6
    assert len(site.provider.tokens) == 3


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (
            error(404, "NOT_FOUND", "Requested entity was not found.", "UNREGISTERED"),
            Permanent("address_gone", "", True),
        ),
        (
            error(403, "PERMISSION_DENIED", "SenderId mismatch", "SENDER_ID_MISMATCH"),
            Permanent("address_refused", "", True),
        ),
        (
            error(
                400,
                "INVALID_ARGUMENT",
                "The registration token is not a valid FCM registration token",
                "INVALID_ARGUMENT",
            ),
            Permanent("address_refused", "", True),
        ),
        (error(400, "INVALID_ARGUMENT", "Invalid value at 'message.data[0].value'"), Permanent("content_refused")),
        (error(429, "RESOURCE_EXHAUSTED", "quota", "QUOTA_EXCEEDED"), Temporary("rate_limited", "", 60_000_000)),
        (
            error(429, "RESOURCE_EXHAUSTED", "quota", "QUOTA_EXCEEDED", **{"Retry-After": "5"}),
            Temporary("rate_limited", "", 5_000_000),
        ),
        (
            error(503, "UNAVAILABLE", "x", "UNAVAILABLE", **{"Retry-After": "9"}),
            Temporary("provider_error", "", 9_000_000),
        ),
        (error(500, "INTERNAL", "x", "INTERNAL"), Temporary("provider_error")),
        (Answer(502, {}, b"<html>"), Temporary("provider_error")),
        (error(401, "UNAUTHENTICATED", "x", "THIRD_PARTY_AUTH_ERROR"), Temporary("address_deferred")),
        (error(404, "NOT_FOUND", "Requested entity was not found."), Permanent("address_gone")),
        (Answer(413, {}, b""), Permanent("too_large")),
        (error(403, "PERMISSION_DENIED", "the API is disabled"), Broken("account_refused")),
        (Answer(404, {}, b"nothing here"), Broken("misconfigured")),
    ],
)
async def test_documented_errors(site: Site, answer: Answer, verdict: Refused) -> None:
    site.provider.script.then(answer)
    told = await site.channel.send(push("fcm"))
    assert isinstance(told, type(verdict))
    assert told.reason == verdict.reason
    for name in ("address_is_dead", "retry_after_us"):
        assert getattr(told, name, None) == getattr(verdict, name, None)


async def test_without_an_access_token_nothing_was_sent(site: Site) -> None:
    site.provider.token_script.then(Answer(500), "reset", Answer(400, {}, b'{"error": "invalid_grant"}'))
    first, second, third = [await site.channel.send(push("fcm")) for _ in range(3)]
    assert isinstance(first, Temporary)
    assert isinstance(second, Temporary)
    assert isinstance(third, Broken)
    assert not first.may_have_arrived
    assert not second.may_have_arrived
    assert third.reason == "credentials_refused"
    assert site.provider.accepted == []


async def test_a_key_that_google_does_not_know_breaks_the_channel(
    site: Site, authority: Authority, clock: SimulatedClock
) -> None:
    other = FcmServer(lambda: 0, "other")
    channel = _channel(other, site.server, authority, clock)
    told = await channel.send(push("fcm"))
    await channel.close()
    assert isinstance(told, Broken)
    assert told.reason == "credentials_refused"


async def test_what_fcm_would_refuse_is_not_sent(site: Site) -> None:
    large = await site.channel.send(push("fcm", body="x" * 4096))
    reserved = await site.channel.send(push("fcm", data={"google.x": "1"}))
    assert isinstance(large, Permanent)
    assert isinstance(reserved, Permanent)
    assert (large.reason, reserved.reason) == ("too_large", "content_refused")
    assert site.server.requests == []


def test_an_account_that_is_none_is_refused_without_showing_it(clock: SimulatedClock) -> None:
    with pytest.raises(Invalid) as refused:
        Fcm(Settings(Secret('{"private_key": "very secret"}')), clock)
    assert "very secret" not in repr(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__

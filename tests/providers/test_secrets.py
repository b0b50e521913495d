"""What is secret reaches no log, at any level, whether a channel succeeds or fails."""

import logging
from pathlib import Path

import pytest

from tests.providers.messages import APNS_TOKEN, email, push, sms
from tests.providers.servers import apns as apple
from tests.providers.servers import fcm as google
from tests.providers.servers import mail, sendgrid, twilio
from tests.providers.servers.apns import ApnsServer, Refusal
from tests.providers.servers.authority import Authority
from tests.providers.servers.fcm import FcmServer
from tests.providers.servers.http import serving
from tests.providers.servers.sendgrid import SendGridServer
from tests.providers.servers.twilio import TwilioServer
from tidings.domain.secret import Secret
from tidings.providers.email.sendgrid import SendGrid
from tidings.providers.email.sendgrid import Settings as SendGridSettings
from tidings.providers.email.smtp import Settings as SmtpSettings
from tidings.providers.email.smtp import Smtp
from tidings.providers.push.apns import Apns
from tidings.providers.push.apns import Settings as ApnsSettings
from tidings.providers.push.fcm import Fcm
from tidings.providers.push.fcm import Settings as FcmSettings
from tidings.providers.sms.twilio import Settings as TwilioSettings
from tidings.providers.sms.twilio import Twilio
from tidings.testing import SimulatedClock


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def said(caplog: pytest.LogCaptureFixture) -> str:
    """Every record, from our side: what the servers of the tests log is their own business."""
    return "\n".join(repr((r.name, r.getMessage(), r.args)) for r in caplog.records if not r.name.startswith("mail"))


async def test_apns(authority: Authority, clock: SimulatedClock, caplog: pytest.LogCaptureFixture) -> None:
    async with apple.serving(ApnsServer(lambda: clock.now() // 1_000_000), authority.context("h2")) as server:
        key = Secret(server.key())
        ids = (apple.KEY_ID, apple.TEAM_ID, apple.TOPIC)
        channel = Apns(ApnsSettings(key, *ids, url=server.url, ca_file=str(authority.ca)), clock)
        server.script.then(Refusal(403, "InvalidProviderToken"))
        verdicts = [await channel.send(push()) for _ in range(2)]
        await channel.close()
    assert len(server.accepted) == 1
    for secret in (server.tokens[0], APNS_TOKEN, key.reveal().split("\n")[1]):
        assert secret not in said(caplog) + repr(verdicts)


async def test_providers_over_http(
    authority: Authority, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    ca = str(authority.ca)
    firebase = FcmServer(lambda: clock.now() // 1_000_000)
    verdicts: list[object] = []
    async with serving(SendGridServer(), authority.context()) as server:
        for key in (sendgrid.KEY, "SG.wrong-key"):
            mailer = SendGrid(SendGridSettings(Secret(key), sendgrid.SENDER, url=server.url, ca_file=ca), clock)
            verdicts.append(await mailer.send(email()))
            await mailer.close()
    async with serving(TwilioServer(), authority.context()) as server:
        settings = TwilioSettings(twilio.ACCOUNT, Secret(twilio.TOKEN), sender="+1", url=server.url, ca_file=ca)
        texter = Twilio(settings, clock)
        verdicts.append(await texter.send(sms()))
        await texter.close()
    async with serving(firebase, authority.context()) as server:
        pusher = Fcm(FcmSettings(Secret(firebase.account()), server.url, f"{server.url}/token", ca), clock)
        firebase.script.then(google.error(403, "PERMISSION_DENIED", "with ya29.token-1 you may not"))
        verdicts += [await pusher.send(push("fcm")), await pusher.send(push("fcm"))]
        await pusher.close()
    assert len(firebase.accepted) == 1
    for secret in (sendgrid.KEY, "SG.wrong-key", twilio.TOKEN, "ya29.token-1"):
        assert secret not in said(caplog) + repr(verdicts)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:aiosmtpd")
async def test_smtp(authority: Authority, clock: SimulatedClock, caplog: pytest.LogCaptureFixture) -> None:
    verdicts = []
    async with mail.serving("starttls", authority.context()) as server:
        for password in (mail.PASSWORD, "a wrong password"):
            login = {"username": mail.USER, "password": Secret(password)}
            settings = SmtpSettings("localhost", "a@b.example", port=server.port, ca_file=str(authority.ca), **login)  # type: ignore[arg-type]
            channel = Smtp(settings, clock)
            verdicts.append(await channel.send(email()))
            await channel.close()
    assert len(server.accepted) == 1
    for secret in (mail.PASSWORD, "a wrong password"):
        assert secret not in said(caplog) + repr(verdicts)


def test_no_test_of_channels_patches_a_client() -> None:
    """What is proven here is proven over sockets."""
    sources = [path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py") if path != Path(__file__)]
    assert not any("unittest.mock" in source or "monkeypatch.setattr" in source for source in sources)

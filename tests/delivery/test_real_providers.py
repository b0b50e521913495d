"""Deliveries through real providers to servers that fail, while workers are killed."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import msgspec
import pytest

from tests.delivery.world import MS, QUICK, SECOND, Recorder, World, ada, changed, started_world, states, words
from tests.providers.servers import dns, mail
from tests.providers.servers.authority import Authority
from tests.providers.servers.dns import DnsResolver
from tests.providers.servers.http import Answer, Fault, Request, serving
from tidings.delivery.limits.provider_status import ProviderDirectory
from tidings.domain.errors import Invalid
from tidings.domain.facts import Opened
from tidings.domain.notifications.delivery import Verdict
from tidings.domain.notifications.message import Rendered, Sms
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.secret import Secret
from tidings.providers.email.smtp import Settings as SmtpSettings
from tidings.providers.email.smtp import Smtp
from tidings.providers.webhook import Settings as WebhookSettings
from tidings.providers.webhook import WebhookProvider
from tidings.testing import eventually

pytestmark = [
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiosmtpd"),
]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PATIENT = changed(
    QUICK,
    policy=msgspec.structs.replace(
        QUICK.policy, backoff=Backoff(first_us=20 * MS, longest_us=100 * MS, attempts_max=50), claim_us=1_200 * MS
    ),
    send_s=1.0,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


class Receiver:
    """Remembers `webhook-id`, as Standard Webhooks asks of a receiver; `trouble` is what it does first."""

    def __init__(self) -> None:
        self.arrived: Counter[str] = Counter()
        self.trouble: list[Answer | Fault] = []

    def __call__(self, request: Request) -> Answer | Fault:
        trouble = self.trouble.pop() if self.trouble else None
        if trouble is None or trouble == "slow":  # its slow answer may arrive or not
            self.arrived[request.headers["webhook-id"]] += 1
        return trouble or Answer(204)


@asynccontextmanager
async def hooked(authority: Authority, world: World) -> AsyncIterator[tuple[Receiver, WebhookProvider, str]]:
    receiver = Receiver()
    async with serving(receiver, authority.context()) as server, dns.serving() as names:
        names.zone["hooks.example"] = [["127.0.0.1"]]
        settings = WebhookSettings(
            Secret(SECRET),
            ports=(server.port,),
            allowed_networks=("127.0.0.1/32",),
            ca_file=str(authority.ca),
            timeout_s=0.3,
        )
        channel = WebhookProvider(settings, world.clock, DnsResolver(names).resolve)
        url = f"https://hooks.example:{server.port}/in"
        await world.put_user(ada(webhook=url))
        try:
            yield receiver, channel, url
        finally:
            await channel.close()


@pytest.mark.slow
async def test_webhooks_arrive_despite_any_fault_of_the_receiver(authority: Authority) -> None:
    names = [f"n-{k}" for k in range(60)]
    async with started_world() as world, hooked(authority, world) as (receiver, channel, _):
        late = Answer(429, {"Retry-After": "1"})
        faults: list[Answer | Fault] = ["reset", "silence", "half", "garbage", "slow", Answer(500), Answer(503), late]
        receiver.trouble = faults * 3
        random.Random(3).shuffle(receiver.trouble)
        breaker = msgspec.structs.replace(PATIENT.breaker, failures_max=1_000)
        world.start(world.worker({"hooks": channel}, changed(PATIENT, breaker=breaker)))
        await world.notify(*(words(name, "webhook") for name in names))
        found = await world.settled(*(f"{name}/1" for name in names), timeout_s=25)
        assert states(found) == {"sent": 60}
        assert receiver.arrived.keys() == {f"{name}/1" for name in names}
        reasons = {attempt.outcome for each in found for attempt in each.attempts}
        assert reasons >= {"timeout", "connection_lost", "provider_error", "rate_limited", "accepted"}
        limited = [
            (before, after)
            for each in found
            for before, after in pairwise(each.attempts)
            if before.outcome == "rate_limited"
        ]
        assert limited
        assert all(after.begun - (before.ended or 0) >= SECOND for before, after in limited), "Retry-After is kept"


@pytest.mark.slow
async def test_webhooks_arrive_once_although_workers_are_killed(authority: Authority) -> None:
    """A receiver that deduplicates sees each message once, although workers crash during calls."""
    names = [f"n-{k}" for k in range(120)]
    async with started_world() as world, hooked(authority, world) as (receiver, channel, _):
        receiver.trouble = ["reset", "silence", Answer(500)] * 8
        breaker = msgspec.structs.replace(PATIENT.breaker, failures_max=1_000)
        settings = changed(PATIENT, breaker=breaker)
        await world.notify(*(words(name, "webhook") for name in names))
        for kill in range(6):
            worker = world.worker({"hooks": channel}, settings)
            world.start(worker)
            await eventually(partial(_has, receiver, 10 * (kill + 1)), 15)
            await world.kill(worker)
        world.start(world.worker({"hooks": channel}, settings))
        found = await world.settled(*(f"{name}/1" for name in names), timeout_s=30)
        assert states(found) == {"sent": 120}
        assert receiver.arrived.keys() == {f"{name}/1" for name in names}, "under the same ids, and no others"


async def test_mail_to_a_refused_address_on_a_real_server(authority: Authority) -> None:
    async with started_world() as world, mail.serving("starttls", authority.context()) as server:
        await world.put_user(ada())
        server.at["rcpt"].then("451 4.3.0 try later", "550 5.1.1 no such user")
        settings = SmtpSettings(
            "localhost",
            "news@example.com",
            port=server.port,
            username=mail.USER,
            password=Secret(mail.PASSWORD),
            ca_file=str(authority.ca),
            timeout_s=1.0,
        )
        channel, phone = Smtp(settings, world.clock), Recorder("sms")
        one_at_a_time = changed(PATIENT, windows=msgspec.structs.replace(PATIENT.windows, read_max=1))
        world.start(world.worker({"smtp": channel, "phone": phone}, one_at_a_time))
        await world.notify(words("n-1", "email", "sms"))
        [first] = await world.settled("n-1/1")
        assert (first.state, first.channel) == ("sent", "sms")
        assert [attempt.outcome for attempt in first.attempts] == ["address_deferred", "address_gone", "accepted"]
        await world.notify(words("n-2", user=None, to="bob@example.com"))
        [second] = await world.settled("n-2/1")
        assert second.state == "sent"
        assert [each.recipients for each in server.accepted] == [["bob@example.com"]]
        assert second.provider_id == server.accepted[0].message["Message-ID"]
        await channel.close()


async def test_messages_that_cannot_be_built_do_not_stop_mail_of_other_tenants(authority: Authority) -> None:
    """Thirty messages of one tenant, as a store of version 0.1 may contain them; then one of another tenant."""
    async with started_world() as world, mail.serving("starttls", authority.context()) as server:
        settings = SmtpSettings(
            "localhost",
            "news@example.com",
            port=server.port,
            username=mail.USER,
            password=Secret(mail.PASSWORD),
            ca_file=str(authority.ca),
            timeout_s=1.0,
        )
        channel = Smtp(settings, world.clock)
        world.start(world.worker({"smtp": channel}, PATIENT))
        domains = ["ⅷ☃.com", "xn--a", "ü" * 60 + ".de"]
        await world.notify(*(words(f"bad-{k}", user=None, to=f"a@{domains[k % 3]}") for k in range(30)))
        found = await world.settled(*(f"bad-{k}/1" for k in range(30)), timeout_s=15)
        assert states(found) == {"failed": 30}
        assert {each.reason.partition(":")[0] for each in found} == {"content_refused"}
        assert not [fact for fact in world.facts if isinstance(fact, Opened)]
        await world.notify(words("good", user=None, to="bob@example.com"))
        [good] = await world.settled("good/1")
        assert good.state == "sent"
        await channel.close()


async def test_a_provider_that_fails_on_some_content_is_called_for_other_content() -> None:
    class Fragile(Recorder):
        async def send(self, message: Rendered) -> Verdict:
            assert isinstance(message, Sms)
            if "bug" in message.text:
                raise LookupError("a bug that this text brings out")
            if "unfit" in message.text:
                raise Invalid("text", "is not fit for this provider")
            return await super().send(message)

    async with started_world() as world:
        channel = Fragile("sms")
        world.start(world.worker({"phone": channel}))
        texts = ["bug", "unfit"] * 10
        made = [
            words(f"bad-{k}", "sms", user=None, to="+15550100", words=InlineContent(text))
            for k, text in enumerate(texts)
        ]
        await world.notify(*made)
        found = await world.settled(*(f"bad-{k}/1" for k in range(20)), timeout_s=15)
        assert {(each.state, each.reason) for each in found} == {
            ("failed", "provider_error"),
            ("failed", "content_refused"),
        }
        assert {len(each.attempts) for each in found if each.reason == "content_refused"} == {1}
        assert not [fact for fact in world.facts if isinstance(fact, Opened)]
        await world.notify(words("good", "sms", user=None, to="+15550100"))
        [good] = await world.settled("good/1")
        assert good.state == "sent"


@pytest.mark.slow
async def test_a_wrong_password_stops_mail_and_loses_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with started_world() as world, mail.serving("starttls", authority.context()) as server:
        await world.put_user(ada())
        wrong = "a wrong password"
        settings = SmtpSettings(
            "localhost",
            "news@example.com",
            port=server.port,
            username=mail.USER,
            password=Secret(wrong),
            ca_file=str(authority.ca),
            timeout_s=1.0,
        )
        bad = Smtp(settings, world.clock)
        worker = world.worker({"smtp": bad}, PATIENT)
        world.start(worker)
        await world.notify(*(words(f"n-{k}") for k in range(10)))

        async def all_wait() -> bool:
            found = [await world.delivery(f"n-{k}/1") for k in range(10)]
            return all(each is not None and each.state == "pending" and not each.attempts for each in found)

        await eventually(all_wait, 15)
        [notice] = await ProviderDirectory(world.store.tables, world.clock).notices()
        assert "credentials_refused" in notice
        await world.stop(worker)
        right = Smtp(msgspec.structs.replace(settings, password=Secret(mail.PASSWORD)), world.clock)
        world.start(world.worker({"smtp": right}, PATIENT))
        found = await world.settled(*(f"n-{k}/1" for k in range(10)), timeout_s=15)
        assert states(found) == {"sent": 10}
        assert len(server.accepted) == 10
        assert wrong not in caplog.text + repr(world.facts) + repr(found)
        await bad.close()
        await right.close()


def _has(receiver: Receiver, wanted: int) -> bool:
    return receiver.arrived.total() >= wanted

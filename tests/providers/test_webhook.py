"""Webhooks: signed as Standard Webhooks says, and never sent inside."""

import base64
import hashlib
import hmac
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import pytest

from tests.providers.hostile_addresses import LITERAL_4, LITERAL_6, NAMES, SPELLINGS, URLS
from tests.providers.messages import accepted, webhook
from tests.providers.servers import dns
from tests.providers.servers.authority import Authority
from tests.providers.servers.dns import DnsResolver, DnsServer
from tests.providers.servers.http import Answer, Fault, HttpServer, Request, serving
from tests.providers.servers.script import Script
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Permanent, Temporary
from tidings.domain.secret import Secret, read_key, verify
from tidings.providers.http.caller import Caller
from tidings.providers.http.client import trusted
from tidings.providers.http.guard import AddressInfo, Guard
from tidings.providers.webhook import Settings, WebhookProvider, receiver_secret
from tidings.testing import SimulatedClock

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLDER = "whsec_" + "b2xk" * 8
WATCHED: list[tuple[str, int]] = []  # what this process connected to, as the interpreter itself saw it
_watching = False


def redirect(status: int) -> Answer:
    return Answer(status, {"Location": "https://127.0.0.1/"})


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event == "socket.connect":
        sock, address = arguments
        if isinstance(sock, socket.socket) and sock.type & socket.SOCK_STREAM and isinstance(address, tuple):
            WATCHED.append((str(address[0]), int(address[1])))


@pytest.fixture(scope="session")
def hook() -> None:
    sys.addaudithook(_audit)


@contextmanager
def watched() -> Iterator[list[tuple[str, int]]]:
    """Every TCP connection that is begun meanwhile."""
    global _watching  # noqa: PLW0603 - an audit hook stays for ever; it looks only when told to
    WATCHED.clear()
    _watching = True
    try:
        yield WATCHED
    finally:
        _watching = False


@dataclass(frozen=True, slots=True)
class Site:
    server: HttpServer
    names: DnsServer
    script: Script[Answer | Fault]
    make: Callable[..., WebhookProvider]

    @property
    def url(self) -> str:
        return f"https://hooks.example:{self.server.port}/in"


@pytest.fixture
async def site(authority: Authority, clock: SimulatedClock) -> AsyncIterator[Site]:
    """A receiver at 127.0.0.1, known as hooks.example, which these tests allow and the hostile ones do not."""
    script: Script[Answer | Fault] = Script()
    made: list[WebhookProvider] = []

    def answer(_: Request) -> Answer | Fault:
        return script.next() or Answer(204)

    async with serving(answer, authority.context()) as server, dns.serving() as names:
        names.zone["hooks.example"] = [["127.0.0.1"]]

        def make(
            *allowed: str, ports: tuple[int, ...] = (), older: str | None = None, per_receiver: bool = False
        ) -> WebhookProvider:
            settings = Settings(
                Secret(SECRET),
                Secret(older) if older else None,
                per_receiver,
                ports=(443, server.port, *ports),
                allowed_networks=allowed,
                ca_file=str(authority.ca),
                timeout_s=0.5,
            )
            made.append(WebhookProvider(settings, clock, DnsResolver(names).resolve))
            return made[-1]

        yield Site(server, names, script, make)
        for channel in made:
            await channel.close()


def by_the_specification(secret: str, headers: Mapping[str, str], body: bytes) -> str:
    """The signature as the specification of Standard Webhooks has it, with nothing of ours."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = headers["webhook-id"].encode() + b"." + headers["webhook-timestamp"].encode() + b"." + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


async def test_a_call_is_signed_with_the_configured_secret(site: Site, clock: SimulatedClock) -> None:
    assert accepted(await site.make("127.0.0.1/32").send(webhook(site.url))) == "n-1/1/1"
    (request,) = site.server.requests
    assert request.headers["webhook-signature"] == by_the_specification(SECRET, request.headers, request.body)
    assert (request.headers["webhook-id"], len(request.body)) == ("n-1/1/1", int(request.headers["content-length"]))
    key = read_key(Secret(SECRET), "secret")
    assert verify([key], request.headers, request.body, clock.now() // 1_000_000) == "n-1/1/1"
    assert request.body == b'{"tea": 9}'
    assert (request.method, request.path) == ("POST", "/in")
    assert request.headers["host"] == f"hooks.example:{site.server.port}"
    with pytest.raises(Invalid):
        verify([key], request.headers, request.body + b" ", clock.now() // 1_000_000)


async def test_each_receiver_can_have_a_key_of_its_own(site: Site) -> None:
    urls = (site.url, "https://x.example/")
    secrets = {receiver_secret(SECRET, tenant, url) for tenant in ("a", "acme") for url in urls}
    assert len(secrets) == 4
    own = receiver_secret(SECRET, "acme", site.url)
    assert own == receiver_secret(SECRET, "acme", site.url + "?other=path")
    accepted(await site.make("127.0.0.1/32", per_receiver=True).send(webhook(site.url)))
    (request,) = site.server.requests
    assert request.headers["webhook-signature"] == by_the_specification(own, request.headers, request.body)


def test_a_receiver_has_so_many_connections_of_all() -> None:
    settings = Settings(Secret(SECRET), connections_max=50, connections_per_host_max=5)
    channel = WebhookProvider(settings, SimulatedClock())
    assert channel.connections("https://A.example/x?y") == {"https://a.example:443": 5, "": 50}
    assert channel.connections("https://a.example:8443/x") == {"https://a.example:8443": 5, "": 50}


async def test_while_a_secret_is_replaced_both_sign(site: Site, clock: SimulatedClock) -> None:
    changing = site.make("127.0.0.1/32", older=OLDER)
    accepted(await changing.send(webhook(site.url)))
    (request,) = site.server.requests
    assert len(request.headers["webhook-signature"].split()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "reason", "wait_us"),
    [
        (Answer(429, {"Retry-After": "3"}), "rate_limited", 3_000_000),
        (Answer(500), "provider_error", None),
        (Answer(502), "provider_error", None),
        (Answer(503, {"Retry-After": "99999999"}), "provider_error", 86_400_000_000),
        (Answer(408), "provider_error", None),
        ("reset", "connection_lost", None),
        ("half", "connection_lost", None),
        ("garbage", "connection_lost", None),
        ("silence", "timeout", None),
    ],
)
async def test_what_passes(site: Site, answer: Answer | Fault, reason: str, wait_us: int | None) -> None:
    channel = site.make("127.0.0.1/32")
    site.script.then(answer)
    told = await channel.send(webhook(site.url))
    assert isinstance(told, Temporary)
    assert (told.reason, told.retry_after_us) == (reason, wait_us)
    accepted(await channel.send(webhook(site.url)))


async def test_a_slow_answer_is_waited_for(site: Site) -> None:
    site.script.then("slow")
    accepted(await site.make("127.0.0.1/32").send(webhook(site.url)))


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Answer(410), Permanent("address_gone", "", True)),
        (Answer(400), Permanent("content_refused")),
        (Answer(401), Permanent("content_refused")),
        (Answer(404), Permanent("content_refused")),
        (Answer(413), Permanent("too_large")),
        (Answer(501), Permanent("content_refused")),
        *[
            (Answer(code, {"Location": "https://127.0.0.1/"}), Permanent("address_refused"))
            for code in (301, 302, 307, 308)
        ],
    ],
)
async def test_what_stays(site: Site, answer: Answer, verdict: Permanent) -> None:
    site.script.then(answer)
    told = await site.make("127.0.0.1/32").send(webhook(site.url))
    assert isinstance(told, Permanent)
    assert (told.reason, told.address_is_dead) == (verdict.reason, verdict.address_is_dead)
    assert len(site.server.requests) == 1


@pytest.mark.usefixtures("hook")
async def test_the_watch_sees_what_is_allowed(site: Site) -> None:
    channel = site.make("127.0.0.1/32")
    with watched() as connections:
        accepted(await channel.send(webhook(site.url)))
    assert connections == [("127.0.0.1", site.server.port)]


def _hosts() -> list[str]:
    return [*LITERAL_4, *(f"[{text}]" for text in LITERAL_6), *SPELLINGS]


@pytest.mark.usefixtures("hook")
async def test_no_spelling_of_an_inside_address_is_connected_to(site: Site) -> None:
    channel, port = site.make(), site.server.port
    targets = [f"https://{host}{at}/" for host in _hosts() for at in ("", f":{port}")] + URLS
    targets += [f"https://{name}:{port}/" for name in NAMES]
    site.names.zone.update({name: [list(one) for one in answers] for name, answers in NAMES.items()})
    assert len({*_hosts(), *URLS, *NAMES}) >= 150
    refused = 0
    with watched() as connections:
        for url in targets:
            try:
                message = webhook(url)
            except Invalid:
                refused += 1
                continue
            told = await channel.send(message)
            assert isinstance(told, Permanent), url
            assert told.reason == "address_refused"
            refused += 1
    assert refused == len(targets)
    assert connections == []
    assert site.server.connections == 0


@pytest.mark.usefixtures("hook")
async def test_a_name_that_turns_inside_between_two_questions_is_not_connected_to(site: Site) -> None:
    """Whatever is asked first, the address that is connected to is the one that was judged."""
    site.names.zone["turning.example"] = [["93.184.216.34"], ["127.0.0.1"]]
    channel = site.make()
    await DnsResolver(site.names).resolve("turning.example")  # somebody's check, which finds it public
    with watched() as connections:
        told = await channel.send(webhook(f"https://turning.example:{site.server.port}/"))
    assert isinstance(told, Permanent)
    assert told.detail == "turning.example resolves to 127.0.0.1, which is not a public address"
    assert site.names.questions == ["turning.example", "turning.example"]
    assert connections == []
    assert site.server.connections == 0


@pytest.mark.usefixtures("hook")
async def test_without_a_judge_of_names_no_socket_is_made_either(site: Site, authority: Authority) -> None:
    """The last guard alone: the answers of this resolver are believed, and still nothing is connected to."""

    class Trusting(Guard):
        def check_addresses(self, host: str, found: Sequence[AddressInfo]) -> None:
            del host, found

    caller = Caller(
        SimulatedClock(),
        timeout_s=0.5,
        connections_max=1,
        tls=trusted(str(authority.ca)),
        guard=Trusting((site.server.port,), plain_http=False),
        resolve=DnsResolver(site.names).resolve,
    )
    with watched() as connections:
        told = await caller.post(site.url, {}, b"{}")
    await caller.close()
    assert isinstance(told, Permanent)
    assert "may not be called" in told.detail
    assert connections == []


@pytest.mark.parametrize("address", [*LITERAL_4, *LITERAL_6])
def test_an_inside_address_gets_no_socket(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with pytest.raises(OSError, match="may not be called"):
        Guard((443,), plain_http=False).make_socket((family, socket.SOCK_STREAM, 6, "", (address, 443)))


def test_another_port_or_family_gets_no_socket() -> None:
    guard = Guard((443,), plain_http=False)
    with pytest.raises(OSError, match="may not be called"):
        guard.make_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 22)))
    with pytest.raises(OSError, match="may not be called"):
        guard.make_socket((socket.AF_UNIX, socket.SOCK_STREAM, 0, "", ("93.184.216.34", 443)))


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:2800:220:1:248:1893:25c8:1946", "2a00:1450::1"])
def test_public_addresses_may_be_called_unless_the_settings_say_no(address: str) -> None:
    assert Guard((443,), plain_http=False).permits(ip_address(address))
    refusing = Guard((443,), plain_http=False, refused=("93.184.216.0/24", "1.0.0.0/8", "2000::/3"))
    assert not refusing.permits(ip_address(address))


def test_settings_are_checked() -> None:
    with pytest.raises(Invalid, match="base64 of 24 to 64"):
        WebhookProvider(Settings(Secret("whsec_c2hvcnQ=")), SimulatedClock())
    with pytest.raises(Invalid, match="is not a network"):
        WebhookProvider(Settings(Secret(SECRET), allowed_networks=("here",)), SimulatedClock())


async def test_a_receiver_with_a_bad_certificate_may_get_a_better_one(site: Site, clock: SimulatedClock) -> None:
    settings = Settings(Secret(SECRET), ports=(site.server.port,), allowed_networks=("127.0.0.1/32",))
    channel = WebhookProvider(settings, clock, DnsResolver(site.names).resolve)
    told = await channel.send(webhook(site.url))
    await channel.close()
    assert isinstance(told, Temporary)
    assert told.reason == "unreachable"


def test_only_webhooks_are_accepted(site: Site) -> None:
    assert site.make().accepts("webhook", "https://x.example/")
    assert not site.make().accepts("email", "ada@example.org")


def test_a_port_that_may_not_be_called_is_told_with_the_setting_that_allows_it() -> None:
    guard = Guard((443, 8443), plain_http=False)
    for url, setting in (
        ("https://hooks.example.com:9192/x", "channels.webhook.ports"),
        ("http://hooks.example.com/x", "plain_http = true in channels.webhook"),
        ("https://10.1.2.3/x", "channels.webhook.allowed_networks"),
    ):
        with pytest.raises(Invalid, match=setting):
            guard.check_target(url)

"""E-mail through any SMTP server: STARTTLS or TLS, a login, connections that are kept and shared.

What a refusal means follows from the step at which it came and from its code (RFC 5321, RFC 3463, RFC 4954).
"""

import asyncio
import re
import ssl
from typing import Literal, cast

import aiosmtplib
import msgspec

from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import literal_ip
from tidings.domain.notifications.delivery import (
    Accepted,
    Broken,
    Permanent,
    Temporary,
    TemporaryReason,
    Verdict,
    unbuildable,
)
from tidings.domain.notifications.message import ChannelName, Email, Rendered
from tidings.domain.secret import Secret, shortened
from tidings.ports import Address, ProviderContext, ProviderType
from tidings.providers.email.mime import Sender, ascii_domain, compose, message_id
from tidings.providers.email.session import (
    Dialogue,
    Exchange,
    Pool,
    Session,
    SessionLost,
    SessionTimeout,
    dot_stuffed,
)
from tidings.providers.http.client import not_connected, trusted
from tidings.tasks import Deadlines

Security = Literal["starttls", "tls", "none"]
Step = Literal["connect", "mail", "rcpt", "data"]

_PORTS: dict[Security, int] = {"starttls": 587, "tls": 465, "none": 25}
_ENHANCED = re.compile(r"\b([245]\.[0-9]{1,3}\.[0-9]{1,3})\b")
_LOGIN = frozenset({530, 534, 535, 538})  # RFC 4954: a login is needed, too weak, wrong, must be encrypted
_DEAD = frozenset({"5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10", "5.2.1"})  # no such mailbox or domain; moved; disabled
_TOO_LARGE = frozenset({"5.2.3", "5.3.4"})
_OF_MESSAGE = ("4.1.", "4.2.", "4.5.", "4.6.", "4.7.")  # RFC 3463: address, mailbox, protocol, content, policy
_STORAGE = 552  # exceeded storage allocation
_CLOSING = 421  # "closing transmission channel", which a server says to a connection that lay idle
_GO_AHEAD = 354
_NO_UTF8 = "504 this mail server does not support non-ASCII addresses (SMTPUTF8)"
_STEPS: tuple[Step, ...] = ("mail", "rcpt", "data", "data")
_ACCEPTED = Accepted("")
_RESET = Exchange(b"RSET\r\n", (2,))
_EMPTY = Exchange(b".\r\n", (5,))  # ends a DATA that was accepted without a recipient (RFC 2920, 3.1)


class Settings(msgspec.Struct, frozen=True):
    """Where the server is, who we are there, and how many connections are kept."""

    host: str
    sender: str
    sender_name: str = ""
    port: int | None = None
    security: Security = "starttls"
    username: str | None = None
    password: Secret | None = None
    ca_file: str | None = None
    connections_max: int = 16
    messages_per_connection: int = 100
    idle_s: float = 30.0
    timeout_s: float = 30.0


class Smtp:
    """Sends e-mail through an SMTP server."""

    deduplicates = False

    def __init__(self, settings: Settings, clock: Clock) -> None:
        _check(settings)
        self._settings = settings
        self._port = settings.port or _PORTS[settings.security]
        self._clock = clock
        self._sender = Sender(settings.sender, settings.sender_name)
        self._mail = f"MAIL FROM:<{self._sender.address}>".encode()
        self._secrets = (settings.password,) if settings.password else ()
        self._tls = trusted(settings.ca_file)
        self._hostname: str | None = None  # of this machine: what it is called is looked up once
        self._deadlines: Deadlines[Session] = Deadlines(clock, Session.time_out)
        self._pool: Pool[Session] = Pool(
            self._connect,
            Session.quit,
            clock,
            size=settings.connections_max,
            uses_max=settings.messages_per_connection,
            idle_us=int(settings.idle_s * 1_000_000),
        )

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        del address
        return channel == "email"

    def connections(self, address: Address) -> dict[str, int]:
        del address
        return {"": self._settings.connections_max}

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Email)
        try:
            content = dot_stuffed(compose(message, self._sender, self._clock.now()))
        except Exception as error:  # noqa: BLE001 - this one message cannot be built
            return unbuildable(error)
        to = message.to
        verdict = await self._attempt(to, content, fresh=False)
        verdict = verdict or await self._attempt(to, content, fresh=True) or Temporary("connection_lost")
        return Accepted(message_id(message, self._sender)) if verdict is _ACCEPTED else verdict

    async def close(self) -> None:
        self._pool.close()

    async def _attempt(self, to: str, content: bytes, *, fresh: bool) -> Verdict | None:
        """One try over one connection; None if a kept one was closed before it accepted anything."""
        try:
            lease = (None if fresh else self._pool.take_idle()) or await self._pool.take(fresh=fresh)
        except aiosmtplib.SMTPResponseException as error:
            return judge("connect", error.code, self._detail(f"{error.code} {error.message}"))
        except (aiosmtplib.SMTPException, OSError) as error:
            return self._not_connected(error)
        session, is_usable = lease.connection, False
        dialogue = self._dialogue(to, content, pipelines=session.pipelines)
        try:
            if not to.isascii() and not session.takes_utf8 and _needs_utf8(to):
                is_usable = True
                return Permanent("not_supported", _NO_UTF8)
            await session.hold(dialogue)
            is_usable = dialogue.refused is None or await _reset(session, dialogue)
        except SessionLost as error:
            if dialogue.refused is None:
                return None if lease.is_kept and not dialogue.received else self._lost(dialogue, error)
        finally:
            if not is_usable:
                session.close()
            self._pool.give(lease, usable=is_usable)
        return _ACCEPTED if dialogue.refused is None else self._refused(dialogue, to, is_kept=lease.is_kept)

    def _dialogue(self, to: str, content: bytes, *, pipelines: bool) -> Dialogue:
        """The whole transaction of a message, its commands together where the server allows it."""
        options = b""
        if not to.isascii():
            options = b" SMTPUTF8 BODY=8BITMIME" if _needs_utf8(to) else b""
            to = ascii_domain(to)
        mail, rcpt, data = b"%b%b\r\n" % (self._mail, options), b"RCPT TO:<%b>\r\n" % to.encode(), b"DATA\r\n"
        last = Exchange(content, (2,))
        if pipelines:
            return Dialogue(Exchange(b"%b%b%b" % (mail, rcpt, data), (2, 2, 3)), last)
        return Dialogue(Exchange(mail, (2,)), Exchange(rcpt, (2,)), Exchange(data, (3,)), last)

    def _refused(self, dialogue: Dialogue, to: str, *, is_kept: bool) -> Verdict | None:
        """What the refusal of a message means; None if the server closed a kept connection."""
        refused, step = dialogue.refused, _STEPS[dialogue.accepted]
        assert refused is not None
        if refused.code == _CLOSING and is_kept and step == "mail":
            return None
        if refused.code >= 500 and _needs_utf8(to) and step == "mail":
            return Permanent("not_supported", self._detail(str(refused)))  # of this recipient; it is not our sender
        return judge(step, refused.code, self._detail(str(refused)))

    async def _connect(self) -> Session:
        settings = self._settings
        client = aiosmtplib.SMTP(
            hostname=settings.host,
            port=self._port,
            local_hostname=self._hostname,
            username=settings.username,
            password=settings.password.reveal() if settings.password else None,
            use_tls=settings.security == "tls",
            start_tls=settings.security == "starttls",
            tls_context=self._tls if settings.security != "none" else None,
            timeout=settings.timeout_s,
        )
        try:
            await client.connect()
            if client.is_ehlo_or_helo_needed:  # without a login, or after STARTTLS
                await _greet(client)
            if client.transport is None:
                raise aiosmtplib.SMTPServerDisconnected("the server closed the connection at once")
            self._hostname = client.local_hostname
            return Session(
                cast(asyncio.Transport, client.transport),
                self._clock,
                self._deadlines,
                settings.timeout_s,
                pipelines=client.supports_extension("pipelining"),
                takes_utf8=client.supports_extension("smtputf8"),
            )
        except BaseException:
            client.close()
            raise

    def _detail(self, text: str) -> str:
        return shortened(text, self._secrets)

    def _not_connected(self, error: Exception) -> Verdict:
        cause = error.__cause__ if isinstance(error, aiosmtplib.SMTPConnectError) else error
        text = str(error) or type(error).__name__
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError | ssl.SSLError):
            text = not_connected(self._settings.host, self._port, cause)
        detail = self._detail(text)
        if type(error) is aiosmtplib.SMTPException or _is_distrust(error):
            return Broken("misconfigured", detail)  # no STARTTLS or AUTH there, or a certificate that is not trusted
        return Temporary("timeout" if isinstance(error, TimeoutError) else "unreachable", detail)

    def _lost(self, dialogue: Dialogue, error: SessionLost) -> Verdict:
        """Only a message whose content was written may have arrived."""
        reason: TemporaryReason = "timeout" if isinstance(error, SessionTimeout) else "connection_lost"
        is_written = dialogue.written == len(dialogue.exchanges)
        return Temporary(reason, self._detail(str(error)), may_have_arrived=is_written)


def _needs_utf8(to: str) -> bool:
    """Whether a server must know SMTPUTF8 (RFC 6531) for an address: its domain can be written in ASCII."""
    return not to.rpartition("@")[0].isascii()


async def _reset(session: Session, refused: Dialogue) -> bool:
    """Whether the connection can be used for the next message after a refusal."""
    if refused.last_code == _GO_AHEAD:
        await session.hold(Dialogue(_EMPTY))
    reset = Dialogue(_RESET)
    await session.hold(reset)
    return reset.refused is None


def judge(step: Step, code: int, detail: str) -> Verdict:
    """What a refusal means, by the step at which it came, its code, and its enhanced code if it has one.

    From RCPT on it depends on the recipient and the content, which are a tenant's: only what tells of the server itself
    counts against it there.
    """
    found = _ENHANCED.search(detail)
    enhanced = found[1] if found else ""
    if code in _LOGIN and step in {"connect", "mail"}:
        return Broken("credentials_refused", detail)
    if code < 500:
        return Temporary("address_deferred" if _is_of_recipient(step, code, enhanced) else "provider_error", detail)
    if step == "connect":
        return Broken("misconfigured", detail)
    if enhanced in _TOO_LARGE or (code == _STORAGE and not enhanced):
        return Permanent("too_large", detail)
    if step == "mail":
        return Broken("sender_refused", detail)
    if step == "rcpt":
        is_dead = enhanced in _DEAD
        return Permanent("address_gone" if is_dead else "address_refused", detail, address_is_dead=is_dead)
    return Permanent("content_refused", detail)


def _is_of_recipient(step: Step, code: int, enhanced: str) -> bool:
    """Whether a "not now" is about this recipient or this content (greylisted, a full mailbox, a filter that cannot
    read it), not about the server."""
    if code == _CLOSING:
        return False
    return step == "rcpt" or (step == "data" and enhanced.startswith(_OF_MESSAGE))


async def _greet(client: aiosmtplib.SMTP) -> None:
    try:
        await client.ehlo()
    except aiosmtplib.SMTPHeloError:  # a server that knows no extensions
        await client.helo()


def _is_distrust(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _check(settings: Settings) -> None:
    if settings.connections_max < 1:
        raise Invalid("connections_max", "must be at least 1")
    if (settings.username is None) != (settings.password is None):
        raise Invalid("username", "and password must be given together: give both or neither")
    address = literal_ip(settings.host)
    is_here = settings.host == "localhost" or (address is not None and address.is_loopback)
    if settings.password is not None and settings.security == "none" and not is_here:
        raise Invalid("security", "is none: the password would be sent unencrypted; use starttls or tls")


def _open(settings: Settings, context: ProviderContext) -> Smtp:
    return Smtp(settings, context.clock)


PROVIDER = ProviderType(channels=("email",), settings=Settings, open=_open)

"""E-mail through any SMTP server: STARTTLS or TLS, a login, connections that are kept and shared.

What a refusal means follows from the step at which it came and from its code (RFC 5321, RFC 3463, RFC 4954).
"""

import re
import ssl
from typing import Literal

import aiosmtplib
import msgspec

from tidings.channels.details import shortened
from tidings.channels.http import trusted
from tidings.channels.mime import Sender, ascii_domain, compose, message_id
from tidings.channels.pool import Lease, Pool
from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import literal_ip
from tidings.domain.notifications.delivery import Accepted, Broken, Permanent, Temporary, Verdict, built
from tidings.domain.notifications.message import Email, Rendered
from tidings.domain.secret import Secret
from tidings.ports import Plugin, ProviderContext

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
_QUIT_S = 2.0


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
    """A channel for e-mail."""

    deduplicates = False

    def __init__(self, settings: Settings, clock: Clock) -> None:
        _check(settings)
        self._settings = settings
        self._clock = clock
        self._sender = Sender(settings.sender, settings.sender_name)
        self._secrets = (settings.password,) if settings.password else ()
        self._tls = trusted(settings.ca_file)
        self._pool: Pool[aiosmtplib.SMTP] = Pool(
            self._connect,
            _disconnect,
            clock,
            size=settings.connections_max,
            uses_max=settings.messages_per_connection,
            idle_us=int(settings.idle_s * 1_000_000),
        )

    def takes(self, message: Rendered) -> bool:
        return isinstance(message, Email)

    def lines(self, message: Rendered) -> dict[str, int]:
        del message
        return {"": self._settings.connections_max}

    async def send(self, message: Rendered) -> Verdict:
        assert isinstance(message, Email)
        content = built(lambda: compose(message, self._sender, self._clock.now()))
        if isinstance(content, Permanent):
            return content
        verdict = await self._attempt(message, content, fresh=False)
        return verdict or await self._attempt(message, content, fresh=True) or Temporary("connection_lost")

    async def close(self) -> None:
        await self._pool.close()

    async def _attempt(self, message: Email, content: bytes, *, fresh: bool) -> Verdict | None:
        """One try over one connection; None if a kept one was closed before it took anything."""
        try:
            lease = await self._pool.take(fresh=fresh)
        except aiosmtplib.SMTPResponseException as error:
            return self._judge("connect", error)
        except (aiosmtplib.SMTPException, OSError) as error:
            return self._failure("connect", error)
        usable, transaction = False, _Transaction(lease.connection)
        try:
            await transaction.run(self._sender.address, message, content)
            usable = True
            return Accepted(message_id(message, self._sender))
        except aiosmtplib.SMTPNotSupported as error:
            usable = True
            return Permanent("not_supported", str(error))
        except aiosmtplib.SMTPResponseException as error:
            usable = await _is_reset(lease.connection)
            if error.code == _CLOSING and transaction.is_untouched(lease):
                return None
            if error.code >= 500 and transaction.is_refused_utf8:
                return Permanent("not_supported", shortened(f"{error.code} {error.message}", self._secrets))
            return self._judge(transaction.step, error)
        except (aiosmtplib.SMTPException, OSError) as error:
            return None if transaction.is_untouched(lease) else self._failure(transaction.step, error)
        finally:
            if not usable:
                lease.connection.close()
            await self._pool.give(lease, usable=usable)

    async def _connect(self) -> aiosmtplib.SMTP:
        settings = self._settings
        client = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port or _PORTS[settings.security],
            username=settings.username,
            password=settings.password.reveal() if settings.password else None,
            use_tls=settings.security == "tls",
            start_tls=settings.security == "starttls",
            tls_context=self._tls if settings.security != "none" else None,
            timeout=settings.timeout_s,
        )
        await client.connect()
        return client

    def _judge(self, step: Step, error: aiosmtplib.SMTPResponseException) -> Verdict:
        return judge(step, error.code, shortened(f"{error.code} {error.message}", self._secrets))

    def _failure(self, step: Step, error: Exception) -> Verdict:
        detail = shortened(str(error) or type(error).__name__, self._secrets)
        if step == "connect" and (type(error) is aiosmtplib.SMTPException or _is_distrust(error)):
            return Broken("misconfigured", detail)  # no STARTTLS or AUTH there, or a certificate that is not trusted
        lost = step == "data"
        if isinstance(error, TimeoutError):
            return Temporary("timeout", detail, may_have_arrived=lost)
        return Temporary("unreachable" if step == "connect" else "connection_lost", detail, may_have_arrived=lost)


class _Transaction:
    """One message on one connection; remembers how far it came."""

    def __init__(self, client: aiosmtplib.SMTP) -> None:
        self._client = client
        self._is_utf8 = False
        self.step: Step = "mail"

    async def run(self, sender: str, message: Email, content: bytes) -> None:
        is_ascii = message.to.rpartition("@")[0].isascii()
        if not is_ascii and not self._client.supports_extension("smtputf8"):
            raise aiosmtplib.SMTPNotSupported("this mail server does not support non-ASCII addresses (SMTPUTF8)")
        self._is_utf8 = not is_ascii
        encoding, options = ("ascii", ()) if is_ascii else ("utf-8", ("SMTPUTF8", "BODY=8BITMIME"))
        await self._client.mail(sender, options=options, encoding=encoding)
        self.step = "rcpt"
        await self._client.rcpt(ascii_domain(message.to), encoding=encoding)
        self.step = "data"
        await self._client.data(content)

    @property
    def is_refused_utf8(self) -> bool:
        """Whether what was refused may be the extension that only this recipient needs, not our sender."""
        return self._is_utf8 and self.step == "mail"

    def is_untouched(self, lease: Lease[aiosmtplib.SMTP]) -> bool:
        """Whether a kept connection failed at its first word: then a fresh one may try, nothing was sent."""
        return lease.is_kept and self.step == "mail"


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


async def _is_reset(client: aiosmtplib.SMTP) -> bool:
    """Whether a connection that heard a refusal can go on with the next message."""
    try:
        await client.rset()
    except (aiosmtplib.SMTPException, OSError):
        return False
    return True


async def _disconnect(client: aiosmtplib.SMTP) -> None:
    try:
        await client.quit(timeout=_QUIT_S)
    except (aiosmtplib.SMTPException, OSError):
        client.close()


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


def _open(settings: Settings, surroundings: ProviderContext) -> Smtp:
    return Smtp(settings, surroundings.clock)


PLUGIN = Plugin(Settings, _open)

"""A real SMTP server (aiosmtpd) with STARTTLS, TLS and a login, which can refuse and misbehave at every step."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Literal, cast

from aiosmtpd.smtp import SMTP, AuthResult

from tests.providers.servers.script import Script

USER, PASSWORD = "tidings", "a password of the tests"

Step = Literal["connect", "mail", "rcpt", "data"]
Act = str | Literal["cut", "silence"]


@dataclass(frozen=True, slots=True)
class Mail:
    sender: str
    recipients: list[str]
    raw: bytes
    over_tls: bool
    user: str | None

    @property
    def message(self) -> EmailMessage:
        """As the standard library's parser reads it."""
        parsed = message_from_bytes(self.raw, policy=policy.default)
        assert isinstance(parsed, EmailMessage)
        return parsed


class MailServer:
    """A handler of aiosmtpd: `at` says what to do at the next occurrence of a step."""

    def __init__(self, *, pipelines: bool = False) -> None:
        self.at: dict[Step, Script[Act]] = {"connect": Script(), "mail": Script(), "rcpt": Script(), "data": Script()}
        self.pipelines = pipelines
        self.accepted: list[Mail] = []
        self.connections = 0
        self.port = 0
        self.over = asyncio.Event()
        self.open: list[SMTP] = []

    async def handle_EHLO(self, _server: SMTP, session: Any, _e: Any, name: str, replies: list[str]) -> list[str]:  # noqa: N802
        session.host_name = name
        return [*replies[:-1], "250-PIPELINING", replies[-1]] if self.pipelines else replies

    async def handle_MAIL(self, server: SMTP, _s: Any, envelope: Any, address: str, options: list[str]) -> str:  # noqa: N802
        told = await self._act("mail", server)
        if told is None:
            envelope.mail_from = address
            envelope.mail_options.extend(options)
        return told or "250 OK"

    async def handle_RCPT(self, server: SMTP, _s: Any, envelope: Any, address: str, _o: list[str]) -> str:  # noqa: N802
        told = await self._act("rcpt", server)
        if told is None:
            envelope.rcpt_tos.append(address)
        return told or "250 OK"

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Any) -> str:  # noqa: N802
        told = await self._act("data", server)
        if told is not None:
            return told
        login = session.auth_data.login.decode() if session.auth_data else None
        over_tls = _transport(server).get_extra_info("ssl_object") is not None
        self.accepted.append(Mail(envelope.mail_from, envelope.rcpt_tos, envelope.content, over_tls, login))
        return "250 2.0.0 Ok: queued as 4F5A"

    def authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        known = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=known, handled=False, auth_data=data)

    async def _act(self, step: Step, server: SMTP) -> str | None:
        match self.at[step].next():
            case "cut":
                _transport(server).abort()
                return "250 never heard"
            case "silence":
                await self.over.wait()
                return "421 over"
            case told:
                return told

    def drop_idle(self) -> None:
        """Close every connection, as a server does with those that lie idle."""
        for server in self.open:
            if server.transport is not None:
                server.transport.close()


def _transport(server: SMTP) -> asyncio.Transport:
    assert server.transport is not None
    return cast(asyncio.Transport, server.transport)  # uvloop has classes of its own


class _Counted(SMTP):
    """Counts the connections, and can refuse one with its first word."""

    def __init__(self, owner: MailServer, **options: Any) -> None:
        super().__init__(owner, **options)
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._original_transport is None:
            self._owner.connections += 1
            self._owner.open.append(self)
            told = self._owner.at["connect"].next()
            if told is not None:
                assert isinstance(transport, asyncio.Transport)
                transport.write(told.encode() + b"\r\n")
                transport.close()
                return
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.session is not None:  # else it was refused with its first word
            super().connection_lost(error)


@asynccontextmanager
async def serving(
    security: Literal["starttls", "tls", "none"], tls: ssl.SSLContext, *, login: bool = True, pipelines: bool = False
) -> AsyncIterator[MailServer]:
    """The server on a port of its own, until the end of the block."""
    owner = MailServer(pipelines=pipelines)
    loop = asyncio.get_running_loop()

    def make() -> SMTP:
        return _Counted(
            owner,
            loop=loop,
            hostname="localhost",
            enable_SMTPUTF8=True,
            authenticator=owner.authenticate,
            auth_required=login,
            auth_require_tls=security == "starttls",
            tls_context=tls if security == "starttls" else None,
            require_starttls=security == "starttls",
        )

    listening = await loop.create_server(make, "127.0.0.1", 0, ssl=tls if security == "tls" else None)
    owner.port = listening.sockets[0].getsockname()[1]
    try:
        yield owner
    finally:
        owner.over.set()
        owner.drop_idle()
        listening.close()
        await listening.wait_closed()

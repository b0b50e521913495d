"""One HTTPS call to a provider, and what its failure means. Shared by the channels that speak HTTP/1.1.

No redirects, no proxies from the environment, no cookies; an answer is read up to a bound and never unpacked.
"""

import asyncio
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from tidings.channels.details import shortened
from tidings.domain.notifications.delivery import Broken, Permanent, Temporary

REPLY_BYTES_MAX = 64 * 1024
RETRY_AFTER_US_MAX = 86_400_000_000
CONNECT_SHARE = 0.5  # of the time: for a name, a connection and TLS, before which nothing was sent
AGENT = "Tidings"
SECOND_US = 1_000_000

Refusal = Temporary | Permanent | Broken


class Refused(OSError):
    """An address that a guard does not let us call."""


class Reply(msgspec.Struct, frozen=True):
    """A provider's whole answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; an empty object where it is none."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return {}


class Caller:
    """A kept set of connections. Opened at the first call, in the loop that calls."""

    def __init__(
        self,
        *,
        timeout_s: float,
        connections_max: int,
        tls: ssl.SSLContext | None = None,
        connector: Mapping[str, Any] | None = None,
    ) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=timeout_s * CONNECT_SHARE)
        self._connector = {"limit": connections_max, "ssl": tls or True, **(connector or {})}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply | Refusal:
        """Send and read the answer; a failure of the way there is a verdict."""
        try:
            async with self._open().post(url, headers=headers, data=body, allow_redirects=False) as answer:
                headers = {name.lower(): text for name, text in answer.headers.items()}
                return Reply(answer.status, headers, await _bounded(answer.content))
        except (aiohttp.InvalidURL, UnicodeError) as error:
            return Permanent("address_refused", shortened(f"is not a URL that can be called: {error}"))
        except aiohttp.ClientConnectorCertificateError as error:
            return Broken("misconfigured", shortened(f"the certificate is not trusted: {error.certificate_error}"))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, Refused):
                return Permanent("address_refused", shortened(str(error.os_error.strerror)))
            return Temporary("unreachable", shortened(str(error)))
        except TimeoutError:
            return Temporary("timeout", "no answer in time", may_have_arrived=True)
        except (aiohttp.ClientError, OSError) as error:
            return Temporary("connection_lost", shortened(str(error) or type(error).__name__), may_have_arrived=True)

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # lets the transports see that they are closed

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(**self._connector),
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": AGENT, "Accept-Encoding": "identity"},
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """All of a body, or its beginning if it is larger than anything that a provider says."""
    body = b""
    while len(body) < REPLY_BYTES_MAX and (part := await content.read(REPLY_BYTES_MAX - len(body))):
        body += part
    return body


def trusted(ca_file: str | None) -> ssl.SSLContext:
    """TLS that trusts the system's authorities, or those of one file."""
    return ssl.create_default_context(cafile=ca_file)


def retry_after(headers: Mapping[str, str], now: int) -> int | None:
    """What `Retry-After` asks for (seconds, or a date), in microseconds from now, bounded by a day."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(int(text[:12]) * SECOND_US, RETRY_AFTER_US_MAX)
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0, int(moment * SECOND_US) - now), RETRY_AFTER_US_MAX)

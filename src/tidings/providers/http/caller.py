"""One call to a provider over HTTP/1.1, and what its failure means."""

import ssl
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tidings.clock import Clock
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import Broken, Permanent, Temporary
from tidings.domain.secret import Secret, shortened
from tidings.providers.http.client import (
    BadRequest,
    ConnectionLost,
    HttpClient,
    HttpError,
    NoResponse,
    NotAllowed,
    Resolve,
    Response,
    Untrusted,
)
from tidings.providers.http.guard import Guard

HALF_BYTES = 32  # of an ES256 signature: r, then s

Key = EllipticCurvePrivateKey | RSAPrivateKey


def read_key(pem: Secret, field: str) -> Key:
    """A private key for one of the two algorithms."""
    try:
        key = load_pem_private_key(pem.reveal().encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if isinstance(key, RSAPrivateKey) or (
        isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1)
    ):
        return key
    raise Invalid(field, "is not a private key: give the PEM file (.p8, or of a service account) as it was downloaded")


def sign(key: Key, header: Mapping[str, str], claims: Mapping[str, object]) -> str:
    """A token for these claims; its algorithm follows from the key."""
    name = "ES256" if isinstance(key, EllipticCurvePrivateKey) else "RS256"
    signed = b".".join((_part({"alg": name, **header}), _part(claims)))
    return (signed + b"." + _encoded(_signature(key, signed))).decode()


def _signature(key: Key, data: bytes) -> bytes:
    if isinstance(key, RSAPrivateKey):
        return key.sign(data, PKCS1v15(), SHA256())
    first, second = decode_dss_signature(key.sign(data, ECDSA(SHA256())))
    return first.to_bytes(HALF_BYTES, "big") + second.to_bytes(HALF_BYTES, "big")


def _part(values: Mapping[str, object]) -> bytes:
    return _encoded(msgspec.json.encode(values))


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


RETRY_AFTER_US_MAX = 86_400_000_000
SECOND_US = 1_000_000

Failure = Temporary | Permanent | Broken


class Caller:
    """A client whose failures are verdicts."""

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float,
        connections_max: int,
        per_origin_max: int | None = None,
        tls: ssl.SSLContext | None = None,
        guard: Guard | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._client = HttpClient(
            clock,
            timeout_s=timeout_s,
            connections_max=connections_max,
            per_origin_max=per_origin_max,
            tls=tls,
            guard=guard,
            resolve=resolve,
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Response | Failure:
        """Send a request and return its response, or the verdict on the failure."""
        try:
            return await self._client.post(url, headers, body)
        except HttpError as error:
            return _verdict(error)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def _verdict(error: HttpError) -> Failure:
    detail = shortened(str(error))
    match error:
        case BadRequest() | NotAllowed():
            return Permanent("address_refused", detail)
        case Untrusted():
            return Broken("misconfigured", detail)
        case NoResponse():
            return Temporary("timeout", detail, may_have_arrived=True)
        case ConnectionLost():
            return Temporary("connection_lost", detail, may_have_arrived=True)
        case _:
            return Temporary("unreachable", detail)


def retry_after(headers: Mapping[str, str], now: int) -> int | None:
    """What `Retry-After` asks for (seconds, or a date), in microseconds from now, at most a day."""
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

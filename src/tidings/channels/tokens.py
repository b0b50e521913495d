"""Signed tokens (RFC 7515, 7518): ES256 as Apple asks for, RS256 as Google does."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tidings.domain.errors import Invalid
from tidings.domain.secret import Secret

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

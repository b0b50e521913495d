"""Reading signed tokens with other code than that which makes them."""

import json
from base64 import urlsafe_b64decode
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256


def opened(token: str, key: EllipticCurvePublicKey | RSAPublicKey) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims; raises `InvalidSignature` if another key made it."""
    head, claims, signature = token.split(".")
    signed, raw = f"{head}.{claims}".encode(), _bytes(signature)
    if isinstance(key, RSAPublicKey):
        key.verify(raw, signed, PKCS1v15(), SHA256())
    else:
        assert len(raw) == 64
        halves = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
        key.verify(encode_dss_signature(*halves), signed, ECDSA(SHA256()))
    return json.loads(_bytes(head)), json.loads(_bytes(claims))


def _bytes(part: str) -> bytes:
    assert "=" not in part
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))

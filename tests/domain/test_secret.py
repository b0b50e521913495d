"""Signatures of messages, compared with the standard library's HMAC."""

import hashlib
import hmac
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from tidings.domain.secret import sign, verify


@given(keys=st.lists(st.binary(max_size=200), min_size=1, max_size=3), body=st.binary(max_size=5_000))
def test_a_signature_is_the_hmac_of_id_time_and_body(keys: list[bytes], body: bytes) -> None:
    headers = sign(keys, "n-1/1", 1_700_000_000, body)
    signed = b"n-1/1.1700000000." + body
    expected = [b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys]
    assert headers["webhook-signature"] == " ".join(f"v1,{each}" for each in expected)
    assert verify(keys[-1:], headers, body, 1_700_000_000) == "n-1/1"

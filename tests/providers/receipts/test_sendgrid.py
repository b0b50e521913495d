"""SendGrid's events: the example of its own libraries, and what each event means."""

import json
from base64 import b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import DeliveryReceipt
from tidings.providers.email.sendgrid import SIGNATURE, TIMESTAMP, read, read_key, verify

# Published with SendGrid's libraries for exactly this purpose.
KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1"
    "flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g=="
)
HEADERS = {
    SIGNATURE: "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLtEZtM=",
    TIMESTAMP: "1600112502",
}
BODY = (
    b'[{"email":"hello@world.com","event":"dropped","reason":"Bounced Address",'
    b'"sg_event_id":"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",'
    b'"sg_message_id":"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0",'
    b'"smtp-id":"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>","timestamp":1600112492}]\r\n'
)
NOW_S = 1_600_112_510


def test_the_published_example_is_sendgrids() -> None:
    verify(read_key(KEY), HEADERS, BODY, NOW_S)
    assert read(BODY) == [
        DeliveryReceipt(
            "failed",
            provider_id="LRzXl_NHStOGhQ4kofSm_A",
            event="ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",
            address="hello@world.com",
            at=1_600_112_492_000_000,
            reason="Bounced Address",
            suppress=True,
        )
    ]


@pytest.mark.parametrize(
    ("headers", "body", "now_s"),
    [
        (HEADERS, BODY.replace(b"hello", b"eve"), NOW_S),
        (HEADERS, BODY.rstrip(), NOW_S),
        ({**HEADERS, TIMESTAMP: "1600112503"}, BODY, NOW_S),
        ({**HEADERS, SIGNATURE: ""}, BODY, NOW_S),
        ({**HEADERS, SIGNATURE: "not base64!"}, BODY, NOW_S),
        ({SIGNATURE: HEADERS[SIGNATURE]}, BODY, NOW_S),
        ({}, BODY, NOW_S),
        (HEADERS, BODY, NOW_S + 601),
        (HEADERS, BODY, NOW_S - 700),
    ],
)
def test_anything_else_is_refused(headers: dict[str, str], body: bytes, now_s: int) -> None:
    with pytest.raises(Invalid):
        verify(read_key(KEY), headers, body, now_s)


def test_another_key_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    other = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(Invalid):
        verify(read_key(b64encode(other).decode()), HEADERS, BODY, NOW_S)
    mine = b64encode(key.sign(b"1600112502" + BODY, ec.ECDSA(SHA256()))).decode()
    verify(key.public_key(), {**HEADERS, SIGNATURE: mine}, BODY, NOW_S)


@pytest.mark.parametrize("text", ["", "AAAA", "not base64", KEY[:-4]])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        read_key(text)


@pytest.mark.parametrize(
    ("event", "state", "suppress"),
    [
        ({"event": "delivered"}, "delivered", False),
        ({"event": "bounce", "type": "bounce"}, "bounced", True),
        ({"event": "bounce", "type": "blocked"}, "failed", False),
        ({"event": "spamreport"}, "complained", True),
        ({"event": "unsubscribe"}, "unsubscribed", True),
        ({"event": "group_unsubscribe"}, "unsubscribed", True),
        ({"event": "dropped", "reason": "Unsubscribed Address"}, "failed", True),
        ({"event": "dropped", "reason": "Spam Content (if Spam Checker app enabled)"}, "failed", False),
        ({"event": "processed"}, None, False),
        ({"event": "deferred"}, None, False),
        ({"event": "open"}, None, False),
        ({}, None, False),
    ],
)
def test_what_events_mean(event: dict[str, Any], state: str | None, suppress: bool) -> None:
    common = {"sg_message_id": "m.filter", "sg_event_id": "e", "tidings_id": "n-1/1/1", "unknown": [1]}
    receipts = read(json.dumps([{**common, **event}]).encode())
    if state is None:
        assert receipts == []
    else:
        (receipt,) = receipts
        assert (receipt.state, receipt.suppress) == (state, suppress)
        assert (receipt.message, receipt.provider_id) == ("n-1/1/1", "m")


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"event": 5}]', b"\xff", b"[" * 100_000])
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        read(body)

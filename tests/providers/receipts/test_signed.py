"""The generic receipt, and the signatures of Standard Webhooks."""

import json

import pytest

from tidings.domain.errors import Invalid
from tidings.domain.secret import Secret, read_key, sign, verify
from tidings.providers.signed_receipts import read

SECRET = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
NOW_S = 1_614_265_330


def test_the_published_example_of_standard_webhooks() -> None:
    headers = sign([read_key(SECRET, "s")], "msg_p5jXN8AQM9LWM0D4loKWxJek", NOW_S, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert verify([read_key(SECRET, "s")], headers, b'{"test": 2432232314}', NOW_S) == "msg_p5jXN8AQM9LWM0D4loKWxJek"


def signed(body: bytes, at_s: int = NOW_S, secret: Secret = SECRET) -> dict[str, str]:
    return sign([read_key(secret, "s")], "evt-1", at_s, body)


def test_a_receipt_is_read() -> None:
    news = {"state": "bounced", "message": "n-1/1/1", "reason": "no\r\nmailbox", "suppress": True}
    body = json.dumps({**news, "at": "2026-11-20T09:00:00Z"}).encode()
    receipt = read([SECRET], signed(body), body, NOW_S)
    assert (receipt.state, receipt.message, receipt.event, receipt.suppress) == ("bounced", "n-1/1/1", "evt-1", True)
    assert receipt.reason == "no mailbox"
    assert receipt.at == 1_795_165_200_000_000


def test_a_complaint_suppresses_by_itself() -> None:
    body = b'{"state": "complained", "provider_id": "x"}'
    assert read([Secret("whsec_" + "b2xk" * 8), SECRET], signed(body), body, NOW_S).suppress


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"state": "sent", "message": "x"}',
        b'{"state": "bounced"}',
        b'{"state": "bounced", "message": "x", "more": 1}',
        b'{"state": "bounced", "message": "x", "at": "2026-11-20T09:00:00"}',
        b'{"state": "bounced", "message": "x", "reason": "' + b"x" * 70_000 + b'"}',
    ],
)
def test_a_body_that_says_nothing_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        read([SECRET], signed(body), body, NOW_S)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"bogus", "body: is not valid JSON (invalid character (byte 0)): correct it there"),
        (
            b'{"state": "bounced", "message": "x", "bogus": 1}',
            "bogus: unknown field: use one of address, at, message, provider_id, reason, state, suppress",
        ),
        (b'{"state": "bounced", "message": 5}', "message: is a number: send text"),
        (b'{"message": "x"}', "state: is missing: give it"),
        (
            b'{"state": "lost", "message": "x"}',
            "state: is not a known state: use one of delivered, bounced, complained, unsubscribed, failed",
        ),
    ],
)
def test_a_wrong_body_is_refused_as_elsewhere_in_the_api(body: bytes, text: str) -> None:
    with pytest.raises(Invalid) as refused:
        read([SECRET], signed(body), body, NOW_S)
    assert str(refused.value) == text


def test_what_was_not_signed_or_long_ago_is_refused() -> None:
    body = b'{"state": "bounced", "message": "x"}'
    good = signed(body)
    other = signed(body, secret=Secret("whsec_" + "b2xk" * 8))
    for headers, now_s in [
        (other, NOW_S),
        (good, NOW_S + 301),
        (good, NOW_S - 301),
        ({**good, "webhook-id": "evt-2"}, NOW_S),
        ({**good, "webhook-timestamp": str(NOW_S + 1)}, NOW_S),
        ({**good, "webhook-timestamp": "soon"}, NOW_S),
        ({**good, "webhook-signature": good["webhook-signature"].replace("v1,", "v2,")}, NOW_S),
        ({**good, "webhook-signature": "v1,é"}, NOW_S),
        ({}, NOW_S),
    ]:
        with pytest.raises(Invalid):
            read([SECRET], headers, body, now_s)
    two = {**good, "webhook-signature": f"{other['webhook-signature']} {good['webhook-signature']}"}
    assert read([SECRET], two, body, NOW_S).state == "bounced"


def test_a_state_that_is_none_is_told_with_those_that_are() -> None:
    body = b'{"state": "eaten", "message": "m"}'
    with pytest.raises(Invalid, match="state: is not a known state: use one of delivered, bounced, complained"):
        read([SECRET], sign([read_key(SECRET, "secret")], "e", NOW_S, body), body, NOW_S)

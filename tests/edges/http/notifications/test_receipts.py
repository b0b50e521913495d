"""Receipts of providers are authenticated only by their signature."""

import hashlib
import hmac
import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.edges.http.notifications.notification_server import (
    NINE,
    PUBLIC,
    SECRET,
    TOKEN,
    NotificationServer,
    notification_server,
)
from tests.edges.http.site import Reply
from tests.edges.http.test_keys import made
from tidings.delivery.rows import change, provider_message_put
from tidings.domain.errors import Invalid
from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.secret import Secret, read_key, sign
from tidings.providers import signed_receipts
from tidings.providers.email import sendgrid
from tidings.providers.email.sendgrid import SendGridReader
from tidings.providers.sms.twilio import TwilioReader
from tidings.timeline.memory import MemoryStore

TENANT = {"tidings_tenant": DEFAULT_TENANT}


async def sent_delivery(server: NotificationServer, provider: str) -> tuple[str, str]:
    """A notification that a provider accepted: its delivery and the provider id."""
    await server.create_users()
    accepted = await server.ok("POST", "/v1/notifications", NINE)
    sent = await server.settled(accepted["id"])
    about = Delivery(sent["name"], accepted["id"], 0)
    clock = server.site.engine.clock
    put = provider_message_put(DEFAULT_TENANT, about, provider, sent["provider_id"], clock.now())
    await change(server.site.engine.store.tables, [[put]], clock.now())
    return sent["name"], sent["provider_id"]


async def post(server: NotificationServer, path: str, body: bytes, headers: dict[str, str]) -> Reply:
    return await server.call("POST", path, data=body, headers=headers)


def standard(
    server: NotificationServer, document: Any, event: str = "event-1", secret: Secret = SECRET
) -> tuple[bytes, dict[str, str]]:
    body = json.dumps(document).encode()
    now_s = server.site.engine.clock.now() // 1_000_000
    return body, sign([read_key(secret, "secret")], "event-1", now_s, body)


@pytest.mark.slow
async def test_a_signed_receipt_moves_the_delivery_once(server_on_each_store: NotificationServer) -> None:
    name, provider_id = await sent_delivery(server_on_each_store, "generic")
    news = {"state": "bounced", "provider_id": provider_id, "reason": "550 no such user", "suppress": True}
    body, headers = standard(server_on_each_store, news)
    first = await post(server_on_each_store, "/receipts/generic", body, headers)
    assert first.document == {"received": 1, "applied": 1, "unchanged": 0, "kept": 0, "unknown": 0}
    again = await post(server_on_each_store, "/receipts/generic", body, headers)
    assert again.document == {"received": 1, "applied": 0, "unchanged": 1, "kept": 0, "unknown": 0}
    shown = await server_on_each_store.ok("GET", f"/v1/deliveries/{name}")
    assert (shown["state"], shown["news"][0]["state"], len(shown["news"])) == ("bounced", "bounced", 1)
    [kept] = (await server_on_each_store.ok("GET", "/v1/suppressions"))["suppressions"]
    assert kept["address"] == "ada@example.com"


async def test_a_receipt_with_our_message_id_and_the_tenant_is_matched(server: NotificationServer) -> None:
    name, _ = await sent_delivery(server, "generic")
    body, headers = standard(server, {"state": "delivered", "message": name})
    assert (await post(server, f"/receipts/generic/{DEFAULT_TENANT}", body, headers)).document["applied"] == 1
    assert (await server.ok("GET", f"/v1/deliveries/{name}"))["state"] == "delivered"


async def test_a_receipt_with_our_message_id_alone_is_not_matched(server: NotificationServer) -> None:
    name, _ = await sent_delivery(server, "generic")
    reply = await post(server, "/receipts/generic", *standard(server, {"state": "delivered", "message": name}))
    assert (reply.status, "POST /receipts/generic/TENANT" in reply.problem["detail"]) == (400, True)


async def test_receipts_about_unknown_messages_are_accepted_and_kept(server: NotificationServer) -> None:
    body, headers = standard(server, {"state": "delivered", "provider_id": "of-another-system"})
    reply = await post(server, "/receipts/generic", body, headers)
    assert reply.status == 200
    assert reply.document == {"received": 1, "applied": 0, "unchanged": 0, "kept": 1, "unknown": 0}


async def test_an_unsigned_receipt_is_refused(server: NotificationServer) -> None:
    name, provider_id = await sent_delivery(server, "generic")
    body, headers = standard(server, {"state": "bounced", "provider_id": provider_id})
    other = Secret("whsec_" + b64encode(b"x" * 32).decode())
    for sent_body, sent_headers in (
        (body, {}),
        (body + b" ", headers),
        (body, headers | {"webhook-timestamp": "1"}),
        standard(server, {"state": "bounced", "provider_id": provider_id}, secret=other),
    ):
        reply = await post(server, "/receipts/generic", sent_body, sent_headers)
        assert (reply.status, reply.problem["type"]) == (401, "urn:tidings:problem:unsigned")
        assert SECRET.reveal() not in reply.body.decode()
    assert (await server.ok("GET", f"/v1/deliveries/{name}"))["state"] == "sent"


async def test_wrong_requests(server: NotificationServer) -> None:
    unknown = await post(server, "/receipts/nobody", b"{}", {})
    assert (unknown.status, "configure the key" in unknown.problem["detail"]) == (404, True)
    assert (await server.call("GET", "/receipts/generic")).status == 405
    assert (await post(server, "/receipts/generic/a%20b", b"{}", {})).status == 400
    assert (await post(server, "/receipts/generic", b"x" * (signed_receipts.BODY_BYTES_MAX + 1), {})).status == 413
    for document in ({}, {"state": "eaten", "message": "m"}, {"state": "bounced"}, {"state": "bounced", "x": 1}):
        assert (await post(server, "/receipts/generic", *standard(server, document))).status == 400, document


async def test_receipts_need_no_api_key(server: NotificationServer) -> None:
    _, provider_id = await sent_delivery(server, "generic")
    await made(server.site, "boss", "default", admin=True)
    assert (await server.call("GET", "/v1/users/ada")).status == 401
    reply = await post(
        server, "/receipts/generic", *standard(server, {"state": "delivered", "provider_id": provider_id})
    )
    assert (reply.status, reply.document["applied"]) == (200, 1)


async def test_twilio_signs_the_url_that_it_called(server: NotificationServer) -> None:
    name, provider_id = await sent_delivery(server, "text")
    form = [("MessageSid", provider_id), ("MessageStatus", "delivered"), ("To", "+15550100")]
    path = "/receipts/text?id=1"
    plain = PUBLIC + path + "".join(key + value for key, value in sorted(form))
    signature = b64encode(hmac.digest(TOKEN.reveal().encode(), plain.encode(), hashlib.sha1)).decode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    body = urlencode(form).encode()
    assert (await post(server, "/receipts/text?id=2", body, kind | {"X-Twilio-Signature": signature})).status == 401
    assert (await post(server, path, body, kind)).status == 401
    reply = await post(server, path, body, kind | {"X-Twilio-Signature": signature})
    assert reply.document["applied"] == 1
    assert (await server.ok("GET", f"/v1/deliveries/{name}"))["state"] == "delivered"
    with pytest.raises(Invalid, match="public_url"):
        TwilioReader(TOKEN, "notify.example.com")


async def test_sendgrid_signs_batches_of_events(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = b64encode(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()
    async with notification_server(MemoryStore(), tmp_path, sendgrid=SendGridReader(public)) as server:
        name, provider_id = await sent_delivery(server, "sendgrid")
        events = [
            {"event": "open", "sg_event_id": "0", "sg_message_id": f"{provider_id}.x"},
            {"event": "delivered", "sg_event_id": "1", "sg_message_id": f"{provider_id}.x"},
            {"event": "spamreport", "sg_event_id": "2", "sg_message_id": "lost", "tidings_id": name} | TENANT,
        ]
        body, at = json.dumps(events).encode(), str(server.site.engine.clock.now() // 1_000_000)
        signature = b64encode(key.sign(at.encode() + body, ec.ECDSA(SHA256()))).decode()
        headers = {sendgrid.SIGNATURE: signature, sendgrid.TIMESTAMP: at}
        reply = await post(server, "/receipts/sendgrid", body, headers)
        assert reply.document == {"received": 2, "applied": 2, "unchanged": 0, "kept": 0, "unknown": 0}
        assert (await server.ok("GET", f"/v1/deliveries/{name}"))["state"] == "complained"
        assert (await post(server, "/receipts/sendgrid", body + b" ", headers)).status == 401

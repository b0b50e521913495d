"""APNs' provider API as documented: HTTP/2 over TLS, its headers, a token that it verifies, its reasons."""

import asyncio
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from tests.providers.servers.script import Script
from tests.providers.servers.tokens import opened

KEY_ID, TEAM_ID, TOPIC = "ABC1234567", "TEAM123456", "com.example.news"
TOKEN_AGE_S_MAX = 3_600
FIELDS = {"aps", "order"}

Fault = Literal["reset_stream", "cut", "silence", "goaway"]


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Pushed:
    device: str
    headers: dict[str, str]
    payload: dict[str, Any]


class ApnsServer:
    """Checks first, then does what the script says, or accepts."""

    def __init__(self, now_s: Callable[[], int]) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._now_s = now_s
        self.script: Script[Refusal | Fault] = Script()
        self.accepted: list[Pushed] = []
        self.tokens: list[str] = []
        self.connections = 0
        self.port = 0
        self.over = asyncio.Event()

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def key(self) -> str:
        """The .p8 file that Apple offers."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def judge(self, headers: dict[str, str], body: bytes) -> Refusal | Fault | Pushed:
        """What becomes of one request."""
        path = headers[":path"].split("/")
        if headers[":method"] != "POST":
            return Refusal(405, "MethodNotAllowed")
        if path[:3] != ["", "3", "device"] or len(path) != 4:
            return Refusal(404, "BadPath")
        wrong = self._wrong_token(headers.get("authorization", "")) or self._wrong_header(headers)
        if wrong is not None:
            return wrong
        if not body:
            return Refusal(400, "PayloadEmpty")
        if len(body) > 4096:
            return Refusal(413, "PayloadTooLarge")
        payload = json.loads(body)
        assert payload.keys() <= FIELDS
        return self.script.next() or Pushed(path[3], headers, payload)

    def _wrong_token(self, authorization: str) -> Refusal | None:
        kind, _, token = authorization.partition(" ")
        if kind != "bearer" or not token:
            return Refusal(403, "MissingProviderToken")
        try:
            head, claims = opened(token, self._key.public_key())
        except InvalidSignature:
            return Refusal(403, "InvalidProviderToken")
        if head != {"alg": "ES256", "kid": KEY_ID} or claims["iss"] != TEAM_ID:
            return Refusal(403, "InvalidProviderToken")
        if not -60 < self._now_s() - claims["iat"] < TOKEN_AGE_S_MAX:
            return Refusal(403, "ExpiredProviderToken")
        if token not in self.tokens:
            self.tokens.append(token)
        return None

    def _wrong_header(self, headers: dict[str, str]) -> Refusal | None:
        try:
            canonical = str(uuid.UUID(headers["apns-id"])) == headers["apns-id"]
        except ValueError:
            canonical = False
        if not canonical:
            return Refusal(400, "BadMessageId")
        if headers.get("apns-topic") != TOPIC:
            return Refusal(400, "TopicDisallowed")
        if headers.get("apns-priority") not in {"10", "5", "1"}:
            return Refusal(400, "BadPriority")
        if headers.get("apns-push-type") != "alert":
            return Refusal(400, "InvalidPushType")
        if len(headers.get("apns-collapse-id", "").encode()) > 64:
            return Refusal(400, "BadCollapseId")
        if not headers.get("apns-expiration", "0").isdigit():
            return Refusal(400, "BadExpirationDate")
        return None


class _Conversation(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: ApnsServer) -> None:
        self._server = server
        self._streams: dict[int, tuple[dict[str, str], bytearray]] = {}
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        assert transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        self._transport = transport
        self._server.connections += 1
        self._h2.initiate_connection()
        transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            match event:
                case RequestReceived(stream_id=int(number), headers=list(headers)):
                    self._streams[number] = ({str(name): str(text) for name, text in headers}, bytearray())
                case DataReceived(stream_id=int(number), data=bytes(part)):
                    self._streams[number][1].extend(part)
                    self._h2.acknowledge_received_data(len(part), number)
                case StreamEnded(stream_id=int(number)):
                    self._answer(number, *self._streams.pop(number))
                case _:
                    pass
        if not self._transport.is_closing():
            self._transport.write(self._h2.data_to_send())

    def _answer(self, number: int, headers: dict[str, str], body: bytearray) -> None:
        match self._server.judge(headers, bytes(body)):
            case Pushed() as pushed:
                self._server.accepted.append(pushed)
                answer = [(":status", "200"), ("apns-id", headers["apns-id"])]
                self._h2.send_headers(number, answer, end_stream=True)
            case Refusal(status, reason, more):
                content = {"reason": reason} | ({"timestamp": 1_795_000_000_000} if status == 410 else {})
                answer = [(":status", str(status)), ("apns-id", headers.get("apns-id", "")), *more]
                self._h2.send_headers(number, answer)
                self._h2.send_data(number, json.dumps(content).encode(), end_stream=True)
            case "reset_stream":
                self._h2.reset_stream(number, 7)  # REFUSED_STREAM
            case "goaway":
                self._h2.close_connection(0)
                self._transport.write(self._h2.data_to_send())
                self._transport.close()
            case "cut":
                self._transport.abort()
            case "silence":
                pass


@asynccontextmanager
async def serving(server: ApnsServer, tls: ssl.SSLContext) -> AsyncIterator[ApnsServer]:
    """The server on a port of its own, until the end of the block."""
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: _Conversation(server), "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()

"""Google's token endpoint and FCM's HTTP v1 API as documented, on one server."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import parse_qs

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.providers.servers.http import Answer, Fault, Request
from tests.providers.servers.script import Script
from tests.providers.servers.tokens import opened

PROJECT = "tidings-tests"
EMAIL = "sender@tidings-tests.iam.gserviceaccount.com"
TOKEN_URI = "https://oauth2.googleapis.com/token"
SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class FcmServer:
    """Gives access tokens for assertions that are right, and takes messages that come with one."""

    def __init__(self, now_s: Callable[[], int], account: str = "tests") -> None:
        self._key = _private_key(account)
        self._now_s = now_s
        self.script: Script[Answer | Fault] = Script()
        self.token_script: Script[Answer | Fault] = Script()
        self.accepted: list[dict[str, Any]] = []
        self.tokens: list[str] = []

    def account(self) -> str:
        """The file that the console offers."""
        pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        fields = {"type": "service_account", "project_id": PROJECT, "private_key_id": "k1", "private_key": pem}
        return json.dumps({**fields, "client_email": EMAIL, "token_uri": TOKEN_URI})

    def __call__(self, request: Request) -> Answer | Fault:
        return self._token(request) if request.path == "/token" else self._send(request)

    def _token(self, request: Request) -> Answer | Fault:
        step = self.token_script.next()
        if step is not None:
            return step
        form = parse_qs(request.body.decode())
        assert form["grant_type"] == [GRANT]
        try:
            head, claims = opened(form["assertion"][0], self._key.public_key())
        except InvalidSignature:
            return Answer(400, {}, b'{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}')
        assert head == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
        assert (claims["iss"], claims["scope"], claims["aud"]) == (EMAIL, SCOPE, TOKEN_URI)
        if not claims["iat"] <= self._now_s() <= claims["exp"] <= claims["iat"] + 3600:
            return Answer(400, {}, b'{"error": "invalid_grant", "error_description": "reasonable timeframe"}')
        self.tokens.append(f"ya29.token-{len(self.tokens) + 1}")
        body = {"access_token": self.tokens[-1], "expires_in": 3599, "token_type": "Bearer"}
        return Answer(200, {}, json.dumps(body).encode())

    def _send(self, request: Request) -> Answer | Fault:
        if (request.method, request.path) != ("POST", f"/v1/projects/{PROJECT}/messages:send"):
            return Answer(404, {}, b"not found")
        if not self.tokens or request.headers.get("authorization") != f"Bearer {self.tokens[-1]}":
            return error(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
        step = self.script.next()
        if step is not None:
            return step
        message = json.loads(request.body)["message"]
        assert message.keys() <= {"token", "notification", "data", "android"}
        assert all(isinstance(text, str) for text in message["data"].values())
        self.accepted.append(message)
        return Answer(200, {}, json.dumps({"name": f"projects/{PROJECT}/messages/{len(self.accepted)}"}).encode())


def error(status: int, name: str, message: str, code: str | None = None, **headers: str) -> Answer:
    """An error in Google's form; `code` is FCM's own."""
    details = [{"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code}] if code else []
    body = {"error": {"code": status, "message": message, "status": name, "details": details}}
    return Answer(status, headers, json.dumps(body).encode())


@cache
def _private_key(account: str) -> rsa.RSAPrivateKey:
    """One for each account, not for each server: it takes a tenth of a second to make."""
    del account
    return rsa.generate_private_key(65537, 2048)

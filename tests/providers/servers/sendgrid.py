"""SendGrid's Mail Send as documented: the key, the path, the body's required fields, and its errors."""

import json
from typing import Any

from tests.providers.servers.http import Answer, Fault, Request
from tests.providers.servers.script import Script

KEY = "SG.a-secret-of-the-tests"
SENDER = "news@example.com"


class SendGridServer:
    """Checks first, then does what the script says, or accepts."""

    def __init__(self) -> None:
        self.script: Script[Answer | Fault] = Script()
        self.accepted: list[dict[str, Any]] = []

    def __call__(self, request: Request) -> Answer | Fault:
        wrong = self._wrong(request)
        if wrong is not None:
            return wrong
        step = self.script.next()
        if step is not None:
            return step
        self.accepted.append(json.loads(request.body))
        return Answer(202, {"X-Message-Id": f"sg-{len(self.accepted)}"})

    def _wrong(self, request: Request) -> Answer | None:
        if (request.method, request.path) != ("POST", "/v3/mail/send"):
            return Answer(404)
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return error(401, "The provided authorization grant is invalid, expired, or revoked", None)
        if request.headers.get("content-type") != "application/json":
            return error(415, "Content-Type must be application/json", None)
        body = json.loads(request.body)
        unknown = body.keys() - {"personalizations", "from", "subject", "content", "headers", "mail_settings"}
        if unknown:
            return error(400, f"Additional property {unknown} is not allowed", "")
        if body["from"]["email"] != SENDER:
            return error(403, "The from address does not match a verified Sender Identity.", "from")
        kinds = [part["type"] for part in body["content"]]
        if kinds not in (["text/plain"], ["text/plain", "text/html"]):
            return error(400, "text/plain must come first, followed by text/html", "content")
        if not body["subject"] or not all(part["value"] for part in body["content"]):
            return error(400, "must be at least one character in length", "content.0.value")
        (person,) = body["personalizations"]
        if "@" not in person["to"][0]["email"] or not person["to"][0]["email"].isascii():
            return error(400, "Does not contain a valid address.", "personalizations.0.to.0.email")
        return None


def error(status: int, message: str, field: str | None, **headers: str) -> Answer:
    """An error in SendGrid's form."""
    body = {"errors": [{"message": message, "field": field, "help": None}]}
    return Answer(status, headers, json.dumps(body).encode())

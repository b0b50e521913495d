"""Twilio's Messages resource as documented: Basic login, a form with its required fields, numbered errors."""

import json
from base64 import b64encode
from urllib.parse import parse_qs

from tests.providers.servers.http import Answer, Fault, Request
from tests.providers.servers.script import Script

ACCOUNT = "AC" + "0" * 32
TOKEN = "a-token-of-the-tests"
SENDER = "+15005550006"


class TwilioServer:
    """Checks first, then does what the script says, or accepts."""

    def __init__(self, user: str = ACCOUNT) -> None:
        self.script: Script[Answer | Fault] = Script()
        self.accepted: list[dict[str, str]] = []
        self._login = "Basic " + b64encode(f"{user}:{TOKEN}".encode()).decode()

    def __call__(self, request: Request) -> Answer | Fault:
        if (request.method, request.path) != ("POST", f"/2010-04-01/Accounts/{ACCOUNT}/Messages.json"):
            return error(404, 20404, "The requested resource was not found")
        if request.headers.get("authorization") != self._login:
            return error(401, 20003, "Authenticate")
        assert request.headers["content-type"] == "application/x-www-form-urlencoded"
        form = {name: values[0] for name, values in parse_qs(request.body.decode(), strict_parsing=True).items()}
        if "To" not in form:
            return error(400, 21604, "A 'To' phone number is required.")
        if "From" not in form and "MessagingServiceSid" not in form:
            return error(400, 21603, "A 'From' phone number is required.")
        if len(form.get("Body", "")) > 1600:
            return error(400, 21617, "The concatenated message body exceeds the 1600 character limit.")
        step = self.script.next()
        if step is not None:
            return step
        self.accepted.append(form)
        return Answer(201, {}, json.dumps({"sid": f"SM{len(self.accepted):032d}", "status": "queued"}).encode())


def error(status: int, code: int, message: str, **headers: str) -> Answer:
    """An error in Twilio's form."""
    more = f"https://www.twilio.com/docs/errors/{code}"
    body = {"code": code, "message": message, "more_info": more, "status": status}
    return Answer(status, headers, json.dumps(body).encode())

"""Providers on real sockets that fail at random, and the settings file of a node that calls them."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.providers.servers import mail
from tests.providers.servers.authority import Authority
from tests.providers.servers.http import Answer, Fault, HttpServer, Request, serving
from tests.providers.servers.mail import Act, MailServer, Step

SECRETS = {"HOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MAIL_PASSWORD": mail.PASSWORD}
REFUSED = "refused"  # in the text of a webhook: the receiver always refuses it
FAULTS: tuple[Answer | Fault, ...] = (
    "reset",
    "silence",
    "half",
    "slow",
    "garbage",
    Answer(500),
    Answer(503),
    Answer(429, {"Retry-After": "1"}),
)
MAIL_FAULTS: tuple[tuple[Step, Act], ...] = (
    ("connect", "421 4.3.2 too busy"),
    ("mail", "451 4.3.0 try later"),
    ("rcpt", "450 4.2.1 try later"),
    ("data", "cut"),
    ("data", "silence"),
    ("data", "451 4.3.0 try later"),
)


class Receiver:
    """A receiver of webhooks that deduplicates by message id.

    `ids` are the message ids it accepted, by the text of the message.
    """

    def __init__(self, chance: random.Random, trouble: float) -> None:
        self._chance = chance
        self.trouble = trouble
        self.ids: dict[str, set[str]] = {}
        self.calls: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def __call__(self, request: Request) -> Answer | Fault:
        text = str(msgspec.json.decode(request.body)["text"])
        self.calls[text] += 1
        answer: Answer | Fault = Answer(204)
        if self._chance.random() < self.trouble:
            answer = self._chance.choice(FAULTS)
            self.faults[answer if isinstance(answer, str) else str(answer.status)] += 1
        if answer in ("half", "slow") or answer == Answer(204):  # accepted, although its answer may not arrive
            if text.startswith(REFUSED):
                return Answer(413)
            self.ids.setdefault(text, set()).add(request.headers["webhook-id"])
        return answer


class Providers:
    """A receiver of webhooks, and a mail server, which does not deduplicate."""

    def __init__(self, receiver: Receiver, hooks: HttpServer, post: MailServer, ca: Path) -> None:
        self.receiver = receiver
        self.hooks = hooks
        self.post = post
        self._ca = ca

    @property
    def webhook(self) -> str:
        return f"https://127.0.0.1:{self.hooks.port}/in"

    def mails(self) -> Counter[str]:
        """How often the mail server accepted each message, by its text."""
        return Counter(str(each.message.get_content()).strip() for each in self.post.accepted)

    def settings(self, **delivery: Any) -> str:
        """The file for a node."""
        lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in delivery.items()]
        return "\n".join(
            [
                "[delivery]",
                *lines,
                "[channels.webhook]",
                'secret = {env = "HOOK_SECRET"}',
                f"ports = [{self.hooks.port}]",
                'allowed_networks = ["127.0.0.1/32"]',
                f'ca_file = "{self._ca}"',
                "[channels.smtp]",
                'host = "localhost"',
                'sender = "news@example.com"',
                f"port = {self.post.port}",
                f'username = "{mail.USER}"',
                'password = {env = "MAIL_PASSWORD"}',
                f'ca_file = "{self._ca}"',
            ]
        )

    def calm(self) -> None:
        """Stop all faults."""
        self.receiver.trouble = 0.0
        for script in self.post.at.values():
            while script.next() is not None:
                pass

    def trouble_mail(self, chance: random.Random) -> None:
        """Add a fault of the mail server."""
        step, act = chance.choice(MAIL_FAULTS)
        self.post.at[step].then(act)


@asynccontextmanager
async def started_providers(folder: Path, chance: random.Random, trouble: float = 0.0) -> AsyncIterator[Providers]:
    """Both servers, until the end of the block."""
    authority = Authority.make(folder)
    receiver = Receiver(chance, trouble)
    async with (
        serving(receiver, authority.context()) as hooks,
        mail.serving("starttls", authority.context()) as post,
    ):
        yield Providers(receiver, hooks, post, authority.ca)

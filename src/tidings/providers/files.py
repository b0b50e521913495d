"""Messages as readable files beside the database, and on the terminal: a whole notification without any account.

One message is one file, named by its channel and its id, so that a second attempt finds the first.
"""

import asyncio
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, assert_never

import msgspec

from tidings.clock import Clock
from tidings.domain.notifications.delivery import Accepted, Permanent, Temporary, Verdict, built
from tidings.domain.notifications.message import (
    ChannelName,
    Email,
    InApp,
    Push,
    Rendered,
    Sms,
    Webhook,
    channel_of,
    segments,
)
from tidings.domain.secret import shortened
from tidings.ports import Address, Provider, ProviderContext, ProviderType
from tidings.providers.email.mime import Sender, compose

FOLDER = "outbox"  # the name since version 0.1: files of users who are to be erased may be in such a folder
CHANNELS: tuple[ChannelName, ...] = ("email", "sms", "push", "webhook")
NAME_CHARACTERS_MAX = 60
ENDS: dict[ChannelName, str] = {"email": "eml", "sms": "txt", "push": "txt", "webhook": "txt", "in_app": "txt"}


class Settings(msgspec.Struct, frozen=True):
    """Where the files go, if not beside the database; whether each is shown on the terminal.

    By default it is if there is one: else messages would be mixed with log lines.
    """

    folder: str | None = None
    sender: str = "tidings@localhost"
    terminal: bool | None = None


class FileProvider:
    """Writes to files what no other provider accepts.

    `others` are the other providers. If a file were written when one of them fails for a while, nothing would be sent.
    """

    deduplicates = True

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        folder: Path,
        others: Sequence[Provider] = (),
        screen: TextIO | None = None,
    ) -> None:
        self._clock = clock
        self._folder = Path(settings.folder) if settings.folder else folder / FOLDER
        self._sender = Sender(settings.sender)
        self._others = tuple(others)
        screen = screen or sys.stderr
        is_shown = screen.isatty() if settings.terminal is None else settings.terminal
        self._screen = screen if is_shown else None

    def accepts(self, channel: ChannelName, address: Address) -> bool:
        return channel in CHANNELS and not any(other.accepts(channel, address) for other in self._others)

    async def send(self, message: Rendered) -> Verdict:
        name = file_name(message)
        content = built(lambda: self._content(message))
        if isinstance(content, Permanent):
            return content
        try:
            is_new = await asyncio.to_thread(self._write, name, content)
        except OSError as error:
            return Temporary("provider_error", shortened(f"{self._folder} cannot be written: {error.strerror}"))
        if is_new and self._screen is not None:
            self._screen.write(f"{self._folder / name}\n{shown(message)}\n")
            self._screen.flush()
        return Accepted(name)

    async def close(self) -> None:
        """Nothing is kept open."""

    async def erase(self, tenant: str, message_ids: Sequence[str]) -> int:
        """Their files in this folder, whichever channel they are of, and drafts that a crash left behind."""
        return await asyncio.to_thread(self._erase, tenant, message_ids)

    def _erase(self, tenant: str, message_ids: Sequence[str]) -> int:
        names = [f"{channel}-{_stem(tenant, each)}.{end}" for each in message_ids for channel, end in ENDS.items()]
        gone = 0
        for name in names:
            (self._folder / f".{name}.new").unlink(missing_ok=True)
            path = self._folder / name
            if path.exists():
                path.unlink(missing_ok=True)
                gone += 1
        return gone

    def _content(self, message: Rendered) -> bytes:
        if isinstance(message, Email):
            return compose(message, self._sender, self._clock.now())
        return shown(message).encode("utf-8", "replace")

    def _write(self, name: str, content: bytes) -> bool:
        """Put the whole file in its place at once; False if it is there already."""
        path = self._folder / name
        if path.exists():
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{name}.new"
        draft.write_bytes(content)
        draft.replace(path)
        return True


def file_name(message: Rendered) -> str:
    """Readable, of safe characters, and its own for each id of a tenant."""
    channel = channel_of(message)
    return f"{channel}-{_stem(message.tenant, message.id)}.{ENDS[channel]}"


def _stem(tenant: str, message_id: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9]+", "-", message_id).strip("-")[:NAME_CHARACTERS_MAX]
    return f"{readable}-{hashlib.sha256(f'{tenant} {message_id}'.encode()).hexdigest()[:8]}"


def shown(message: Rendered) -> str:
    """A message for a person's eyes. What could move a terminal's cursor is left out."""
    match message:
        case Email():
            lines = [f"To: {message.to}", f"Subject: {message.subject}", "", message.text]
        case Sms():
            counted = segments(message.text)
            lines = [f"To: {message.to}", f"Segments: {counted.count} ({counted.encoding})", "", message.text]
        case Push():
            data = [f"{name}: {text}" for name, text in message.data.items()]
            lines = [
                f"To: {message.to.platform} {message.to.token}",
                f"Title: {message.title}",
                *data,
                "",
                message.body,
            ]
        case Webhook():
            lines = [f"POST {message.to}", f"webhook-id: {message.id}", "", message.body.decode("utf-8", "replace")]
        case InApp():
            lines = [f"To: {message.to}", f"Title: {message.title}", "", message.body]
        case _:
            assert_never(message)
    text = "\n".join(lines).replace("\r\n", "\n").rstrip("\n") + "\n"
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def _open(settings: Settings, context: ProviderContext) -> FileProvider:
    return FileProvider(settings, context.clock, context.folder, context.others)


PROVIDER = ProviderType(channels=CHANNELS, settings=Settings, open=_open, is_fallback=True)

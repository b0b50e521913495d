"""An e-mail as bytes (RFC 5322, 2045-2047), with the headers that mailboxes ask for; stable for one message id.

Written out by hand because it is on the path of every e-mail: the standard library's takes ten times as long. Its
parser reads this in the tests, and every value was refused before if it had a line break.
"""

import binascii
import hashlib
from datetime import UTC, datetime
from email.header import Header
from email.utils import format_datetime
from functools import lru_cache

from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import check_email, check_line, domain_to_ascii
from tidings.domain.notifications.message import Email

LINE_BYTES_MAX = 990  # RFC 5321 allows 998
DIGESTS_KEPT = 256  # of ids of messages: one is needed when a message is written, and when it was accepted
PLAIN_CHARACTERS_MAX = 60  # a longer header value is folded
LINES_KEPT, KEPT_CHARACTERS_MAX = 4_096, 512  # quoted-printable

_ENCODED_WORD = "=?"  # how one begins (RFC 2047)
_ATOM = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 !#$%&'*+-/=?^_`{|}~")


class Sender:
    """Who an e-mail comes from: the address that bounces go to as well, and the name that is shown."""

    def __init__(self, address: str, name: str = "") -> None:
        self.address = ascii_domain(check_email(address, "sender"))
        self.domain = self.address.rpartition("@")[2]
        self.header = mailbox(self.address, check_line(name, "sender_name"))


def message_id(message: Email, sender: Sender) -> str:
    """The Message-ID: the same in every attempt, so that a mailbox can see that two are one."""
    return f"<{_digest(message.id)}@{sender.domain}>"


def compose(message: Email, sender: Sender, now: int) -> bytes:
    """The whole e-mail. Its lines end with CRLF, and it has no other CR or LF."""
    digest, to = _digest(message.id), message.to
    head = (
        f"From: {sender.header}\r\n"
        f"To: {mailbox(to if to.isascii() else ascii_domain(to), message.to_name or '')}\r\n"
        f"Subject: {_words(message.subject)}\r\n"
        f"Date: {_date(now // 1_000_000)}\r\n"
        f"Message-ID: <{digest}@{sender.domain}>\r\n"
        "MIME-Version: 1.0\r\n"
    )
    if message.unsubscribe_url is not None:
        one_click = "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
        head = f"{head}List-Unsubscribe: <{message.unsubscribe_url}>\r\n{one_click}"
    _check_line_ends(head)
    text_head, text = _part("plain", message.text)
    if message.html is None:
        return b"%b%b" % (f"{head}{text_head}".encode(), text)
    html_head, html = _part("html", message.html)
    boundary = _boundary(digest, text, html)
    # The line break before a boundary is not part of the body before it.
    before = f'{head}Content-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n--{boundary}\r\n{text_head}'
    between = f"\r\n--{boundary}\r\n{html_head}"
    return b"%b%b%b%b\r\n--%b--\r\n" % (before.encode(), text, between.encode(), html, boundary.encode())


@lru_cache(DIGESTS_KEPT)
def _digest(message: str) -> str:
    return hashlib.sha256(message.encode()).hexdigest()[:40]


@lru_cache(maxsize=8)
def _date(second: int) -> str:
    return format_datetime(datetime.fromtimestamp(second, UTC))


def ascii_domain(address: str) -> str:
    """An address whose domain is written as DNS knows it (`müller.de` is `xn--mller-kva.de`)."""
    if address.isascii():
        return address
    local, _, domain = address.rpartition("@")
    try:
        return f"{local}@{domain_to_ascii(domain)}"
    except ValueError as error:
        raise Invalid("to", f"{domain[:80]!r} is not a domain name: {error}") from None


def mailbox(address: str, name: str) -> str:
    """`Ada <ada@example.com>`, the name quoted or encoded as it needs.

    A name that looks like an encoded word (`=?utf-8?q?x?=`) is encoded, so that it is shown as it was written: many
    mail programs decode such words even inside quotes.
    """
    if not name:
        return address
    if not name.isascii() or _ENCODED_WORD in name:
        return f"{_words(name)} <{address}>"
    if _ATOM.issuperset(name):
        return f"{name} <{address}>"
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}" <{address}>'


def _words(text: str) -> str:
    """A header's text: as it is where it is short ASCII, else encoded words, folded."""
    if text.isascii() and len(text) <= PLAIN_CHARACTERS_MAX and _ENCODED_WORD not in text:
        return text
    return Header(text, "utf-8", maxlinelen=70).encode(linesep="\r\n")


def _check_line_ends(head: str) -> None:
    """Refuse a header with a bare CR or LF, whatever was checked before: servers would read it in different ways."""
    if not head.count("\r\n") == head.count("\n") == head.count("\r"):
        raise Invalid("headers", "have a line break")


def _part(kind: str, text: str) -> tuple[str, bytes]:
    """The headers of one body, and the body: plain where the mail system leaves it alone, else quoted-printable."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.endswith("\n"):
        text += "\n"
    if text.isascii() and _has_short_lines(text):
        coding, body = "7bit", text.replace("\n", "\r\n").encode()
    else:
        coding, body = "quoted-printable", quoted_printable(text)
    return f'Content-Type: text/{kind}; charset="utf-8"\r\nContent-Transfer-Encoding: {coding}\r\n\r\n', body


def quoted_printable(text: str) -> bytes:
    """A text (RFC 2045, 6.7) with lines ended by CRLF. Most lines are the same in many e-mails: these are kept."""
    lines = text.split("\n")
    return b"\r\n".join(
        [_kept_line(line) if len(line) <= KEPT_CHARACTERS_MAX else _quoted_line(line) for line in lines]
    )


def _quoted_line(line: str) -> bytes:
    quoted = binascii.b2a_qp(line.encode("utf-8", "replace"), istext=True)
    return quoted.replace(b"\n", b"\r\n")  # those that it adds to long lines


_kept_line = lru_cache(LINES_KEPT)(_quoted_line)


def _has_short_lines(text: str) -> bool:
    return len(text) <= LINE_BYTES_MAX or max(map(len, text.split("\n"))) <= LINE_BYTES_MAX


def _boundary(digest: str, text: bytes, html: bytes) -> str:
    """A line that stands in neither body."""
    boundary = f"=_{digest[:32]}"
    while boundary.encode() in text or boundary.encode() in html:
        boundary = "=_" + hashlib.sha256(boundary.encode()).hexdigest()[:32]
    return boundary

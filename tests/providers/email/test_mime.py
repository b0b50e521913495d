"""E-mails as bytes: what the standard library's parser reads is what was meant, whatever was meant."""

import binascii
import quopri
import re
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.headerregistry import Address as HeaderAddress
from email.message import EmailMessage
from email.utils import unquote
from typing import cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.providers.messages import email
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import Email
from tidings.providers.email.mime import Sender, ascii_domain, compose, quoted_printable
from tidings.testing import START


class Unchecked(msgspec.Struct):
    """An e-mail without the checks of `Email`."""

    id: str
    to: str
    subject: str
    text: str
    html: str | None
    to_name: str | None
    unsubscribe_url: str | None


SENDER = Sender("news@example.com", "News")
LINE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=200)
TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
)


def parsed(raw: bytes) -> EmailMessage:
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
    assert raw.replace(b"\r\n", b"").count(b"\n") == 0
    assert raw.count(b"\r") == raw.count(b"\r\n")
    message = message_from_bytes(raw, policy=policy.default)
    assert isinstance(message, EmailMessage)
    assert message.defects == []
    return message


def shown_name(header: str) -> str:
    """By RFC 2047: the standard library's newer parser puts a space between two encoded words of a name."""
    name = header.rpartition("<")[0].strip()
    if name.startswith("=?"):
        return " ".join(str(make_header(decode_header(name))).split())
    return unquote(name) if name.startswith('"') else name


@pytest.mark.slow
@given(text=TEXT, html=TEXT)
def test_bodies_come_back(text: str, html: str) -> None:
    message = parsed(compose(email(text=text, html=html), SENDER, START))
    for kind, body in (("plain", text), ("html", html)):
        part = message.get_body((kind,))
        assert part is not None
        read = part.get_content().replace("\r\n", "\n")
        assert read == (body if body.endswith("\n") else body + "\n")


@given(st.text("aé.=_ \t\x7f\n", max_size=40) | TEXT | st.text("é \n", min_size=500, max_size=600))
@example("é" * 1_000 + " \n.\n. \n\t\n")
def test_lines_quoted_one_by_one_are_those_of_the_whole_text(text: str) -> None:
    quoted = quoted_printable(text)
    assert all(len(line) <= 76 for line in quoted.split(b"\r\n"))
    assert quopri.decodestring(quoted).replace(b"\r\n", b"\n") == text.encode()
    if not re.search(r"[ \t]$", text, re.MULTILINE):  # the standard library makes some of such lines too long
        assert quoted == binascii.b2a_qp(text.encode(), istext=True).replace(b"\n", b"\r\n")


@given(subject=LINE.map(str.strip), name=LINE.map(str.strip))
def test_subjects_and_names_come_back(subject: str, name: str) -> None:
    subject, name = " ".join(subject.split()), " ".join(name.split())  # a parser may fold white space
    message = parsed(compose(email(subject=subject, to_name=name), SENDER, START))
    assert " ".join(str(message["subject"]).split()) == subject
    assert [address.addr_spec for address in message["to"].addresses] == ["ada@example.org"]
    assert shown_name(message_from_bytes(compose(email(to_name=name), SENDER, START))["to"]) == name


def by_standard_library(message: Email) -> EmailMessage:
    """The same e-mail as the standard library composes it."""
    composed = EmailMessage(policy=policy.SMTP)
    composed["From"] = HeaderAddress("News", addr_spec="news@example.com")
    composed["To"] = HeaderAddress(message.to_name or "", addr_spec=message.to)
    composed["Subject"] = message.subject
    composed["Date"] = datetime.fromtimestamp(START // 1_000_000, UTC)
    if message.unsubscribe_url is not None:
        composed["List-Unsubscribe"] = f"<{message.unsubscribe_url}>"
        composed["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    composed.set_content(message.text)
    if message.html is not None:
        composed.add_alternative(message.html, subtype="html")
    return parsed(composed.as_bytes())


def shown(message: EmailMessage) -> list[tuple[object, ...]]:
    """What a mailbox shows of an e-mail: its headers and its parts."""
    names = ("from", "to", "subject", "date", "list-unsubscribe", "list-unsubscribe-post", "mime-version")
    headers = [(name, None if message[name] is None else " ".join(str(message[name]).split())) for name in names]
    parts = [
        (part.get_content_type(), part.get_content_charset(), part.get_content().splitlines())
        for part in message.walk()
        if not part.is_multipart()
    ]
    return [*headers, message.get_content_type(), *parts]  # type: ignore[list-item]


@pytest.mark.slow
@given(
    subject=st.sampled_from(["Tea", "Tea at nine, Ada", "Té ☕ à neuf heures", "ü" * 120, "x" * 200]),
    name=st.sampled_from(["", "Ada", "Ada Lovelace", "Lovelace, Ada", 'Ada "A"', "Adä Løvelace"]),
    text=TEXT.map(lambda text: text.replace("\n.", "\n ")),
    html=st.none() | st.just("<p>Té at nine</p>\n<p>.</p>\n") | st.just("<p>" + "long " * 400 + "</p>\n"),
    link=st.none() | st.just("https://t.example/u/x"),
)
def test_it_means_what_the_standard_library_would_write(
    subject: str, name: str, text: str, html: str | None, link: str | None
) -> None:
    message = email(subject=subject, to_name=name, text=text + "\n", html=html, unsubscribe_url=link)
    assert shown(parsed(compose(message, SENDER, START))) == shown(by_standard_library(message))


def test_a_boundary_does_not_stand_in_a_body() -> None:
    first = parsed(compose(email(html="<p>Tea</p>"), SENDER, START)).get_boundary()
    assert first is not None
    hostile = email(text=f"--{first}\nContent-Type: text/html\n\n<p>Eve</p>\n--{first}--\n", html="<p>Tea</p>")
    message = parsed(compose(hostile, SENDER, START))
    assert message.get_boundary() != first
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]


@pytest.mark.parametrize("field", ["subject", "to", "to_name", "id", "unsubscribe_url"])
@pytest.mark.parametrize(
    "evil", ["\r\nBcc: eve@example.net", "\nBcc: eve@example.net", "\rX: y", "\x00", "\u2028X: y", "\x85"]
)
def test_no_header_can_be_smuggled_in(field: str, evil: str) -> None:
    good = {"to": "ada@example.org", "unsubscribe_url": "https://t.example/u"}.get(field, "text")
    with pytest.raises(Invalid):
        email(**{field: good + evil})
    with pytest.raises(Invalid):
        Sender("news@example.com", "News" + evil)


@pytest.mark.parametrize("field", ["subject", "to_name", "to", "unsubscribe_url"])
@pytest.mark.parametrize("evil", ["\n.\n", "\r.\r", "\n", "\n\r"])
def test_a_bare_line_break_is_refused_even_if_a_message_was_not_checked(field: str, evil: str) -> None:
    """Servers that take it for the end of a line would read another message (SMTP smuggling)."""
    unchecked = msgspec.convert({**msgspec.to_builtins(email()), "unsubscribe_url": "https://t.example/u"}, Unchecked)
    hostile = msgspec.structs.replace(unchecked, **{field: f"a{evil}b"})
    with pytest.raises(Invalid, match="line break"):
        compose(cast(Email, hostile), SENDER, START)


@pytest.mark.parametrize("subject", ["=?utf-8?q?=0D=0ABcc:_eve@example.net?=", "=?utf-8?b?DQpCY2M6IGV2ZQ==?="])
def test_encoded_words_in_a_subject_stay_text(subject: str) -> None:
    message = parsed(compose(email(subject=subject), SENDER, START))
    assert message["bcc"] is None
    assert str(message["subject"]) == subject


def test_an_address_keeps_its_local_part() -> None:
    assert ascii_domain("dà@bücher.example") == "dà@xn--bcher-kva.example"
    with pytest.raises(Invalid, match="is not a domain name"):
        ascii_domain("a@\u2e80.example\u0300..")


@pytest.mark.parametrize(
    "name",
    [
        "=?utf-8?q?x?=",
        "=?utf-8?b?RXZl?= of Example",
        '"=?utf-8?q?x?="',
        "Ada =?utf-8?q?=0D=0ABcc:_eve=40example.com?=",
        "=?utf-8?q?=3Ceve=40example.com=3E?=",
        "=?",
    ],
)
def test_a_name_that_looks_like_an_encoded_word_is_shown_as_it_was_written(name: str) -> None:
    raw = compose(email(to_name=name), SENDER, START)
    header = message_from_bytes(raw)["to"]
    assert str(make_header(decode_header(header.rpartition(" <")[0]))) == name
    message = parsed(raw)
    assert [address.addr_spec for address in message["to"].addresses] == ["ada@example.org"]
    assert message["bcc"] is None
    assert Sender("news@example.com", name).header.startswith("=?utf-8?")

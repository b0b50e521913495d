"""SMTP conversations: replies in pieces, closed connections and refusals at every step, and the verdicts then."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.providers.messages import accepted, email
from tests.providers.servers.smtp_steps import Step as ServerStep
from tests.providers.servers.smtp_steps import StepServer, serving_steps
from tidings.domain.notifications.delivery import Accepted, Permanent, Temporary
from tidings.providers.email.mime import Sender, compose
from tidings.providers.email.session import Dialogue, Exchange, Session, SessionLost, dot_stuffed
from tidings.providers.email.smtp import Settings, Smtp
from tidings.tasks import Deadlines
from tidings.testing import SimulatedClock

SENDER = "news@example.com"


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_aborted = False

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        """The test calls it itself."""

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_aborted = True


def dialogue() -> Dialogue:
    return Dialogue(Exchange(b"MAIL, RCPT, DATA", (2, 2, 3)), Exchange(b"content", (2,)))


ENVELOPE = b"250-sender\r\n250 2.1.0 OK\r\n250\r\n354 go on\r\n"
QUEUED = b"250-2.0.0 your message\n250-\r\n250 was queued\r\n"


async def held(*pieces: bytes) -> tuple[Dialogue, Transport, bool]:
    """A dialogue after these pieces; and whether it ended well."""
    transport, ours = Transport(), dialogue()
    clock = SimulatedClock()
    deadlines = Deadlines(clock, Session.time_out)
    session = Session(cast(asyncio.Transport, transport), clock, deadlines, 5.0, pipelines=True, takes_utf8=True)

    async def feed() -> None:
        for piece in pieces:
            session.data_received(piece)
        session.eof_received()

    error, _ = await asyncio.gather(session.hold(ours), feed(), return_exceptions=True)
    assert error is None or isinstance(error, SessionLost)
    return ours, transport, error is None


@pytest.mark.parametrize("split", [*range(1, len(ENVELOPE)), None])
async def test_replies_may_be_split_anywhere(split: int | None) -> None:
    pieces = [ENVELOPE[:split], ENVELOPE[split:]] if split else [ENVELOPE[at : at + 1] for at in range(len(ENVELOPE))]
    ours, transport, is_well = await held(*pieces, QUEUED[: split or 3], QUEUED[split or 3 :])
    assert is_well
    assert transport.written == [b"MAIL, RCPT, DATA", b"content"]
    assert (ours.refused, ours.received, ours.accepted, ours.written) == (None, 4, 4, 2)


@pytest.mark.parametrize(
    ("came", "accepted_count"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", 0),
        (b"250x OK\r\n", 0),
        (b"199 OK\r\n", 0),
        (b"600 OK\r\n", 0),
        (b"25\r\n", 0),
        (b"\r\n", 0),
        (b"\xff\xfe\r\n", 0),
        (b"250 OK\r\n250 OK\r\n354 go\r\n250 before the content\r\n", 3),
        (b"250 OK\r\n250 OK\r\n354 go\r\n", 3),
        (b"250 O" + b"K" * 70_000, 0),
        (b"250-OK\r\n" * 10_000, 0),
    ],
)
async def test_what_is_not_smtp_ends_the_connection(came: bytes, accepted_count: int) -> None:
    ours, transport, is_well = await held(came)
    assert (is_well, transport.is_aborted, ours.accepted) == (False, True, accepted_count)


@pytest.mark.parametrize(
    ("came", "refused"),
    [
        (b"550 no\r\n250 OK\r\n354 go\r\n", "550 no"),
        (b"250 OK\r\n550 no\r\n503 no recipient\r\n", "550 no"),
        (b"250 OK\r\n250 OK\r\n250 what?\r\n", "250 what?"),
        (b"354 what?\r\n250 OK\r\n354 go\r\n", "354 what?"),
        (b"250 OK\r\n550-2.1.5 no\n550-\r\n550 such user\r\n503\r\n", "550 2.1.5 no\n\nsuch user"),
    ],
)
async def test_the_first_reply_that_is_not_as_wanted_counts_and_no_content_follows(came: bytes, refused: str) -> None:
    ours, transport, is_well = await held(came)
    assert is_well
    assert str(ours.refused) == refused
    assert transport.written == [b"MAIL, RCPT, DATA"]
    assert (ours.written, ours.last_code) == (1, int(came.split(b"\n")[-2][:3]))


LINES = st.builds(
    lambda code, rest, end: code + rest + end,
    st.sampled_from([b"250", b"250", b"250", b"354", b"354", b"550", b"199", b"25"]),
    st.sampled_from([b" OK", b" OK", b" OK", b"", b"-more", b" \xff\r", b"x"]),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"]),
)


@given(envelope=st.lists(LINES, max_size=5).map(b"".join) | st.just(b"250 OK\r\n250\r\n354 go\r\n"), content=LINES)
async def test_replies_taken_at_once_mean_what_they_mean_line_by_line(envelope: bytes, content: bytes) -> None:
    at_once = outcome(*await held(envelope, content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dialogue, "take_all", lambda *_: False)
        assert outcome(*await held(envelope, content)) == at_once


def outcome(ours: Dialogue, transport: Transport, is_well: bool) -> tuple[object, ...]:
    last_code = ours.last_code if ours.refused is not None else 0
    counts = ours.received, ours.accepted, ours.written
    return ours.refused, last_code, counts, transport.written, transport.is_aborted, is_well


@pytest.fixture(params=[False, True], ids=["plain", "pipelining"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[StepServer]:
    async with serving_steps(pipelines=request.param) as server:
        yield server


def provider(server: StepServer, clock: SimulatedClock, timeout_s: float = 20.0) -> Smtp:
    return Smtp(Settings("127.0.0.1", SENDER, port=server.port, security="none", timeout_s=timeout_s), clock)


@pytest.mark.parametrize("pipelines", [False, True])
async def test_a_server_that_sends_byte_by_byte(clock: SimulatedClock, pipelines: bool) -> None:
    async with serving_steps(pipelines=pipelines, in_bytes=True) as server:
        smtp = provider(server, clock)
        for number in range(3):
            accepted(await smtp.send(email(id=f"n-{number}")))
        await smtp.close()
    assert server.connections == 1


@pytest.mark.parametrize(
    ("step", "may_have_arrived"), [("mail", False), ("rcpt", False), ("data", False), ("content", True)]
)
@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_connection_that_is_closed_at_any_step(
    server: StepServer, clock: SimulatedClock, step: ServerStep, may_have_arrived: bool, is_kept: bool
) -> None:
    """Only a kept one that answers nothing at all is replaced in silence."""
    smtp = provider(server, clock)
    if is_kept:
        accepted(await smtp.send(email(id="before")))
    server.closes = step
    heard = await smtp.send(email())
    if is_kept and step == "mail":
        assert isinstance(heard, Accepted)
    else:
        assert isinstance(heard, Temporary)
        assert (heard.reason, heard.may_have_arrived) == ("connection_lost", may_have_arrived)
    accepted(await smtp.send(email(id="after")))
    await smtp.close()
    contents = [each for each in server.heard if b"Subject: " in each]
    is_heard = step == "content" or isinstance(heard, Accepted)
    assert len(contents) == int(is_kept) + int(is_heard) + 1


async def test_one_refused_recipient_leaves_the_connection_to_the_next_message(clock: SimulatedClock) -> None:
    """This server accepts DATA all the same, as RFC 2920 allows: it gets an empty message, never the content."""
    async with serving_steps(pipelines=True) as server:
        smtp = provider(server, clock)
        server.replies = {"rcpt": b"550 5.1.1 no such user\r\n", "content": b"554 5.5.1 no valid recipients\r\n"}
        heard = await smtp.send(email(to="nobody@example.org"))
        assert isinstance(heard, Permanent)
        assert (heard.reason, heard.detail) == ("address_gone", "550 5.1.1 no such user")
        accepted(await smtp.send(email()))
        await smtp.close()
    verbs = [each[:4] for each in server.heard]
    assert verbs == [b"MAIL", b"RCPT", b"DATA", b"", b"RSET", b"MAIL", b"RCPT", b"DATA", b"From"]
    assert server.connections == 1


@pytest.mark.parametrize("reset", ["closes", "refuses"])
async def test_a_refusal_stands_if_the_connection_cannot_be_used_again(
    server: StepServer, clock: SimulatedClock, reset: str
) -> None:
    smtp = provider(server, clock)
    server.replies = {"content": b"554 5.7.1 spam\r\n"}
    if reset == "closes":
        server.closes = "reset"
    else:
        server.replies["reset"] = b"421 4.3.2 closing\r\n"
    heard = await smtp.send(email())
    assert isinstance(heard, Permanent)
    assert heard.reason == "content_refused"
    accepted(await smtp.send(email()))
    await smtp.close()
    assert server.connections == 2


@pytest.mark.parametrize("step", ["mail", "rcpt", "data", "content"])
async def test_a_reply_that_comes_late_is_not_taken_for_the_next_message(
    server: StepServer, clock: SimulatedClock, step: ServerStep
) -> None:
    smtp = provider(server, clock, timeout_s=0.3)
    server.holds = step
    heard = await smtp.send(email())
    assert isinstance(heard, Temporary)
    assert (heard.reason, heard.may_have_arrived) == ("timeout", step == "content")
    server.replies = {"rcpt": b"550 5.1.1 no such user\r\n"}
    server.over.set()  # the late reply
    assert isinstance(await smtp.send(email()), Permanent)
    await smtp.close()
    assert server.connections == 2


async def test_a_call_that_is_cancelled_closes_its_connection_and_frees_its_place(
    server: StepServer, clock: SimulatedClock
) -> None:
    smtp = Smtp(Settings("127.0.0.1", SENDER, port=server.port, security="none", connections_max=1), clock)
    server.holds = "content"
    sending = asyncio.create_task(smtp.send(email()))
    await asyncio.wait_for(server.waits.wait(), 5)
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending
    assert sending.cancelled()
    accepted(await asyncio.wait_for(smtp.send(email()), 5))
    await smtp.close()
    assert server.connections == 2


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (b"a\r\n", b"a\r\n.\r\n"),
        (b"a\r\n.\r\n", b"a\r\n..\r\n.\r\n"),
        (b"a\r\n.\r\n.\r\n", b"a\r\n..\r\n..\r\n.\r\n"),
        (b"a\r\n.\r\nMAIL FROM:<eve@example.net>\r\n", b"a\r\n..\r\nMAIL FROM:<eve@example.net>\r\n.\r\n"),
    ],
)
def test_dots_at_the_beginning_of_a_line_are_doubled(content: bytes, sent: bytes) -> None:
    assert dot_stuffed(content) == sent


@given(
    st.text(st.characters(exclude_characters="\x00"), max_size=50) | st.text("\r\n.a€", max_size=20),
    st.none() | st.text("\r\n.a€", max_size=20),
)
def test_the_end_of_a_message_cannot_stand_inside_it(text: str, html: str | None) -> None:
    """Whatever a server takes for the end of a line."""
    sent = dot_stuffed(compose(email(text=text, html=html), Sender(SENDER), 0))
    assert sent.endswith(b"\r\n.\r\n")
    assert re.findall(rb"(?:\r\n|\r|\n)\.(?=[\r\n])", sent) == [b"\r\n."]
    assert re.search(rb"(?<!\r)\n|\r(?!\n)", sent) is None
    assert sent[:1] != b"."

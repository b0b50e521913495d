"""Addresses that nothing may be sent to."""

from pathlib import Path
from unicodedata import normalize

import msgspec
import pytest

from tests.delivery.office import ACME, SECOND, Office
from tests.delivery.world import words
from tidings.delivery.deciding import Case
from tidings.delivery.filing import encode, suppressed_key
from tidings.delivery.looking import Looking
from tidings.delivery.profile import Profile
from tidings.delivery.suppressions import KeyUpgrade, Place, Suppression
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import DeliveryJob
from tidings.ports import Key, Put


async def test_add_ask_list_remove(office: Office) -> None:
    suppressions = office.suppressions
    assert await suppressions.add(ACME, "email", "Ada@Example.com", "bounced")
    assert not await suppressions.add(ACME, "email", "ada@example.com", "complained")  # the first reason stays
    office.clock.advance(SECOND)
    device = Device("fcm", "x" * 20)
    assert await suppressions.add(ACME, "push", device, "gone")
    places = [Place("email", "ada@example.com"), Place("sms", "+15550100"), Place("push", device)]
    found = await suppressions.of(ACME, places)
    assert [None if one is None else one.reason for one in found] == ["bounced", None, "gone"]
    assert await suppressions.of("other", places) == [None] * 3
    page = await suppressions.page(ACME, limit=1)
    assert [one.channel for one in page.suppressions] == ["push"]
    rest = await suppressions.page(ACME, cursor=page.cursor)
    assert ([one.address for one in rest.suppressions], rest.cursor) == (["ada@example.com"], None)
    assert [one.channel for one in (await suppressions.page(ACME, "email")).suppressions] == ["email"]
    assert await suppressions.remove(ACME, "email", "ADA@example.com")
    assert not await suppressions.remove(ACME, "email", "ada@example.com")
    assert await suppressions.of(ACME, places[:1]) == [None]


async def test_one_category_alone(office: Office) -> None:
    await office.suppressions.add(ACME, "email", "a@example.com", "unsubscribed", category="news")
    asked = [Place("email", "a@example.com", category) for category in ("news", "offers", "transactional")]
    found = await office.suppressions.of(ACME, asked)
    assert [one is not None for one in found] == [True, False, False]
    await office.suppressions.add(ACME, "email", "a@example.com", "bounced")
    assert all(await office.suppressions.of(ACME, asked))


async def test_wrong_addresses_and_cursors_are_refused(office: Office) -> None:
    for channel, address in (("email", "x"), ("sms", "5"), ("push", "token"), ("email", Device("fcm", "x" * 20))):
        with pytest.raises(Invalid):
            await office.suppressions.add(ACME, channel, address, "no")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await office.suppressions.add(ACME, "email", "a@example.com", "two\nlines")
    with pytest.raises(Invalid):
        await office.suppressions.page(ACME, cursor="nonsense")


@pytest.mark.parametrize(
    ("channel", "suppressed", "others"),
    [
        (
            "email",
            "Ada@Müller.de",
            ["ada@xn--mller-kva.de", normalize("NFD", "ada@müller.de"), "ADA@MÜLLER.DE"],
        ),
        ("email", "ada@xn--mller-kva.de", ["ada@müller.de"]),
        ("sms", "+1 555 010-0123", ["+15550100123"]),
        ("webhook", "HTTPS://Example.com:443/a/../hook", ["https://example.com/hook", "https://example.com/h%6fok"]),
    ],
)
async def test_an_address_is_suppressed_however_it_is_written(
    office: Office, channel: ChannelName, suppressed: str, others: list[str]
) -> None:
    assert await office.suppressions.add(ACME, channel, suppressed, "bounced")
    assert not await office.suppressions.add(ACME, channel, others[0], "bounced")
    found = await office.suppressions.of(ACME, [Place(channel, each) for each in [suppressed, *others]])
    assert None not in found
    assert await office.suppressions.remove(ACME, channel, others[-1])
    assert await office.suppressions.of(ACME, [Place(channel, suppressed)]) == [None]


async def test_an_erased_person_is_still_suppressed_however_the_address_is_written(office: Office) -> None:
    await office.users.put(ACME, "eve", Profile(email="eve@bücher.example"))
    await office.suppressions.add(ACME, "email", "eve@xn--bcher-kva.example", "bounced")
    erased = await office.erasing.erase(ACME, "eve")
    assert erased.suppressions == 1
    [found] = await office.suppressions.of(ACME, [Place("email", "Eve@Bücher.example")])
    assert found is not None
    assert found.address is None


async def _load_0_1(office: Office) -> None:
    """What version 0.1 wrote, document for document."""
    lines = (Path(__file__).parent / "suppressions-0.1.ndjson").read_bytes().splitlines()
    documents = [msgspec.json.decode(line) for line in lines]
    puts = [
        Put(
            Key(ACME, each["kind"], each["name"]),
            msgspec.json.encode(each["body"]),
            0,
            tuple(each["tags"]),
            each["order"],
        )
        for each in documents
    ]
    assert 0 not in await office.documents.change([[put] for put in puts], office.clock.now())


async def test_suppressions_of_version_0_1_are_found_however_the_address_is_written(office: Office) -> None:
    await _load_0_1(office)
    news = [
        Place("email", each, "news")
        for each in (
            "ada@müller.de",
            "ada@xn--mller-kva.de",
            "bob@müller.de",
            "bob@xn--mller-kva.de",
            normalize("NFD", "bob@müller.de"),
            "cleo@müller.de",
            "dora@xn--bcher-kva.example",
            "Zoe@Example.com",
            "eve@bücher.example",  # was erased: only the digest is left
            "eve@xn--bcher-kva.example",
        )
    ]
    others = [
        Place("webhook", "https://example.com/hook"),
        Place("webhook", "HTTPS://Example.com:443/a/../hook"),
        Place("sms", "+1 555-0100"),
    ]
    assert None not in await office.suppressions.of(ACME, [*news, *others])
    assert await office.suppressions.of(ACME, [Place("email", "dora@bücher.example", "offers")]) == [None]
    page = await office.suppressions.page(ACME, "webhook")
    assert [each.address for each in page.suppressions] == ["https://example.com/hook"]
    for each in (*news[:2], news[3], *news[5:8], news[9], *others[1:]):
        category = "news" if "dora" in str(each.address) else None
        removed = await office.suppressions.remove(ACME, each.channel, each.address, category)
        assert removed == (each != news[1])  # the same as the one before
    assert (await office.suppressions.page(ACME)).suppressions == ()


async def test_a_worker_heeds_suppressions_of_version_0_1(office: Office) -> None:
    await _load_0_1(office)
    looking = Looking(office.documents, office.clock)
    made = words("n", "webhook", user=None, to="https://example.com/hook")
    case = Case(ACME, DeliveryJob(notification="n"), made, Delivery("n/1", "n", 0), 0)
    assert await looking._suppressed(case, ["https://example.com/hook"], urgent=False)


async def test_an_upgrade_of_keys_that_is_cut_off_goes_on(office: Office) -> None:
    """Half of the suppressions moved, one of them suppressed anew under today's key meanwhile."""
    await _load_0_1(office)
    upgrade = KeyUpgrade(office.documents, office.clock)
    found = await office.documents.find(ACME, "suppressed", "all", office.clock.now())
    for document in found[:3]:
        await upgrade._move(document)
    now = office.clock.now()
    made = Suppression("webhook", "https://example.com/hook", "by hand", now)
    put = Put(suppressed_key(ACME, "webhook", "https://example.com/hook"), encode(made), 0, ("all",), now)
    assert await office.documents.change([[put]], now) != [0]
    places = [Place("email", "ada@müller.de"), Place("webhook", "https://example.com/hook")]
    reasons = [each.reason for each in await office.suppressions.of(ACME, places) if each is not None]
    assert reasons == ["bounced: gone", "by hand"]
    assert len((await office.suppressions.page(ACME)).suppressions) == 8


async def test_users_of_version_0_1_are_found_by_their_address(office: Office) -> None:
    await _load_0_1(office)
    for address in ("eve@bücher.example", "eve@xn--bcher-kva.example"):
        assert [user.id for user in await office.users.with_address(ACME, "email", address)] == ["eve"]

"""Addresses that nothing may be sent to."""

from pathlib import Path
from unicodedata import normalize

import msgspec
import pytest

from tests.delivery.services import ACME, SECOND, Services
from tests.delivery.world import words
from tidings.delivery.people.profile import Profile
from tidings.delivery.people.suppressions import Recipient
from tidings.delivery.rows import change, notification_put
from tidings.delivery.worker.context import ContextLoader, DeliveryContext
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import DeliveryJob
from tidings.domain.schedules.schedule import Record
from tidings.timeline.document_rows import Document, group_of


async def test_add_get_list_and_remove(services: Services) -> None:
    suppressions = services.suppressions
    assert await suppressions.add(ACME, "email", "Ada@Example.com", "bounced")
    assert not await suppressions.add(ACME, "email", "ada@example.com", "complained")  # the first reason stays
    services.clock.advance(SECOND)
    device = Device("fcm", "x" * 20)
    assert await suppressions.add(ACME, "push", device, "gone")
    places = [Recipient("email", "ada@example.com"), Recipient("sms", "+15550100"), Recipient("push", device)]
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


async def test_a_suppression_may_be_for_one_category(services: Services) -> None:
    await services.suppressions.add(ACME, "email", "a@example.com", "unsubscribed", category="news")
    asked = [Recipient("email", "a@example.com", category) for category in ("news", "offers", "transactional")]
    found = await services.suppressions.of(ACME, asked)
    assert [one is not None for one in found] == [True, False, False]
    await services.suppressions.add(ACME, "email", "a@example.com", "bounced")
    assert all(await services.suppressions.of(ACME, asked))


async def test_wrong_addresses_and_cursors_are_refused(services: Services) -> None:
    for channel, address in (("email", "x"), ("sms", "5"), ("push", "token"), ("email", Device("fcm", "x" * 20))):
        with pytest.raises(Invalid):
            await services.suppressions.add(ACME, channel, address, "no")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await services.suppressions.add(ACME, "email", "a@example.com", "two\nlines")
    with pytest.raises(Invalid):
        await services.suppressions.page(ACME, cursor="nonsense")


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
    services: Services, channel: ChannelName, suppressed: str, others: list[str]
) -> None:
    assert await services.suppressions.add(ACME, channel, suppressed, "bounced")
    assert not await services.suppressions.add(ACME, channel, others[0], "bounced")
    found = await services.suppressions.of(ACME, [Recipient(channel, each) for each in [suppressed, *others]])
    assert None not in found
    assert await services.suppressions.remove(ACME, channel, others[-1])
    assert await services.suppressions.of(ACME, [Recipient(channel, suppressed)]) == [None]


async def test_an_erased_user_is_still_suppressed_however_the_address_is_written(services: Services) -> None:
    await services.users.put(ACME, "eve", Profile(email="eve@bücher.example"))
    await services.suppressions.add(ACME, "email", "eve@xn--bcher-kva.example", "bounced")
    erased = await services.erasure.erase(ACME, "eve")
    assert erased.suppressions == 1
    [found] = await services.suppressions.of(ACME, [Recipient("email", "Eve@Bücher.example")])
    assert found is not None
    assert found.address is None


async def _load_0_1(services: Services) -> None:
    """Write the documents of version 0.1 as rows, as the migration of a store does."""
    groups = []
    for line in (Path(__file__).parent / "suppressions-0.1.ndjson").read_bytes().splitlines():
        stored = msgspec.json.decode(line)
        body, tags = msgspec.json.encode(stored["body"]), tuple(stored["tags"])
        document = Document(ACME, stored["kind"], stored["name"], body, 1, tags, stored["order"], None)
        group = group_of(document)
        groups += [] if group is None else [group]
    await services.tables.commit(groups, services.clock.now())


async def test_suppressions_of_version_0_1_are_found_however_the_address_is_written(services: Services) -> None:
    await _load_0_1(services)
    news = [
        Recipient("email", each, "news")
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
        Recipient("webhook", "https://example.com/hook"),
        Recipient("webhook", "HTTPS://Example.com:443/a/../hook"),
        Recipient("sms", "+1 555-0100"),
    ]
    assert None not in await services.suppressions.of(ACME, [*news, *others])
    assert await services.suppressions.of(ACME, [Recipient("email", "dora@bücher.example", "offers")]) == [None]
    page = await services.suppressions.page(ACME, "webhook")
    assert [each.address for each in page.suppressions] == ["https://example.com/hook"]
    for each in (*news[:2], news[3], *news[5:8], news[9], *others[1:]):
        category = "news" if "dora" in str(each.address) else None
        removed = await services.suppressions.remove(ACME, each.channel, each.address, category)
        assert removed == (each != news[1])  # the same as the one before
    assert (await services.suppressions.page(ACME)).suppressions == ()


async def test_a_worker_respects_suppressions_of_version_0_1(services: Services) -> None:
    await _load_0_1(services)
    made = words("n", "webhook", user=None, to="https://example.com/hook")
    await change(
        services.tables, [[notification_put(msgspec.structs.replace(made, tenant=ACME), 0)]], services.clock.now()
    )
    record = Record("notify.webhook", 0, 0, "n", 1, 1, 0, 0, b"")
    loader = ContextLoader(services.tables, services.clock)
    [context] = await loader.load([(ACME, record, DeliveryJob(notification="n"))])
    assert isinstance(context, DeliveryContext)
    assert context.suppressed == {"https://example.com/hook"}


async def test_users_of_version_0_1_are_found_by_their_address(services: Services) -> None:
    await _load_0_1(services)
    for address in ("eve@bücher.example", "eve@xn--bcher-kva.example"):
        assert [user.id for user in await services.users.with_address(ACME, "email", address)] == ["eve"]

"""Receipts and unsubscriptions."""

import pytest

from tests.delivery.office import ACME, KEY, Office
from tidings.delivery.suppressions import Place
from tidings.delivery.unsubscribe import Unsubscription, link
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import DeliveryReceipt
from tidings.domain.notifications.user import accepts


def receipt(state: str, event: str, provider_id: str = "p-a", **more: object) -> DeliveryReceipt:
    return DeliveryReceipt(state, provider_id, event, **more)  # type: ignore[arg-type]


async def test_receipts_move_forward_once(office: Office) -> None:
    await office.deliver("a")
    first = await office.receiving.apply("smtp", receipt("delivered", "e1"))
    assert (first.outcome, first.delivery, first.state) == ("applied", "a/1", "delivered")
    assert (await office.receiving.apply("smtp", receipt("delivered", "e1"))).outcome == "unchanged"
    await office.receiving.apply("smtp", receipt("complained", "e2"))
    late = await office.receiving.apply("smtp", receipt("delivered", "e3"))
    assert late.state == "complained"
    delivery = await office.lookup.delivery(ACME, "a/1")
    assert delivery is not None
    assert [news.event for news in delivery.news] == ["e1", "e2", "e3"]
    assert (await office.receiving.apply("smtp", receipt("delivered", "e1", "p-unknown"))).outcome == "unknown"
    assert (await office.receiving.apply("twilio", receipt("delivered", "e1"))).outcome == "unknown"


async def test_by_our_own_id(office: Office) -> None:
    await office.deliver("a", provider_id=None)
    told = receipt("delivered", "e1", "unheard", message="a/1@acme")
    assert (await office.receiving.apply("smtp", told)).outcome == "unknown"
    assert (await office.receiving.apply("smtp", told, "default")).outcome == "unknown"
    anothers = receipt("delivered", "e1", "unheard", message="a/1")
    assert (await office.receiving.apply("smtp", anothers, ACME)).outcome == "unknown"
    assert (await office.receiving.apply("smtp", told, ACME)).state == "delivered"


async def test_a_receipt_for_one_tenant_moves_no_other_ones_delivery(office: Office) -> None:
    """A provider's id that came twice stands for the first; who was told under our own id is found by that."""
    await office.deliver("a")
    assert (await office.receiving.apply("smtp", receipt("bounced", "e1"), "beta")).outcome == "unknown"
    told = receipt("bounced", "e1", tenant="beta", message="a/1@beta")
    assert (await office.receiving.apply("smtp", told)).outcome == "unknown"
    kept = await office.lookup.delivery(ACME, "a/1")
    assert kept is not None
    assert kept.state == "sent"
    assert (await office.receiving.apply("smtp", receipt("bounced", "e1"), ACME)).state == "bounced"


async def test_a_receipt_ends_what_was_about_to_be_sent_again(office: Office) -> None:
    await office.deliver("a", state="pending", next_try=office.clock.now() + 5)
    applied = await office.receiving.apply("smtp", receipt("delivered", "e1"))
    assert applied.state == "delivered"
    delivery = await office.lookup.delivery(ACME, "a/1")
    assert delivery is not None
    assert delivery.next_try is None


async def test_hard_bounces_and_complaints_close_the_address(office: Office) -> None:
    await office.deliver("a")
    soft, hard = await office.receiving.apply_all(
        "smtp",
        [receipt("bounced", "e1", reason="full"), receipt("bounced", "e2", reason="no such\nuser", suppress=True)],
    )
    assert (soft.suppressed, hard.suppressed) == (False, True)
    [found] = await office.suppressions.of(ACME, [Place("email", "ADA@example.com")])
    assert found is not None
    assert (found.reason, found.user) == ("bounced: no such user", "ada")
    again = await office.receiving.apply("smtp", receipt("bounced", "e2", suppress=True))
    assert (again.outcome, again.suppressed) == ("unchanged", False)


async def test_a_nonsense_address_in_a_receipt_does_no_harm(office: Office) -> None:
    await office.deliver("a")
    applied = await office.receiving.apply("smtp", receipt("bounced", "e1", suppress=True, address="<>"))
    assert (applied.state, applied.suppressed) == ("bounced", False)


async def test_unsubscribe(office: Office) -> None:
    wish = Unsubscription(ACME, "email", "ada@example.com", "news")
    token = link("https://x.example/u", KEY, wish).rpartition("/")[2]
    done = await office.receiving.unsubscribe(token)
    assert (done.users, done.changed) == (("ada",), True)
    ada = await office.users.get(ACME, "ada")
    assert ada is not None
    assert not accepts(ada.user, "news", "email")
    assert accepts(ada.user, "news", "sms")
    asked = [Place("email", "ada@example.com", category) for category in ("news", "offers", "transactional")]
    assert [one is not None for one in await office.suppressions.of(ACME, asked)] == [True, False, False]
    assert not (await office.receiving.unsubscribe(token)).changed
    bare = link("https://x.example/u", KEY, Unsubscription(ACME, "email", "x@example.com", "news")).rpartition("/")[2]
    assert (await office.receiving.unsubscribe(bare)).users == ()


async def test_wrong_links_are_refused(office: Office) -> None:
    forged = link("https://x.example/u", b"other" * 8, Unsubscription(ACME, "email", "ada@example.com", "news"))
    closed = link("https://x.example/u", KEY, Unsubscription(ACME, "email", "ada@example.com", "transactional"))
    for token in (forged, closed, "x/nonsense"):
        with pytest.raises(Invalid):
            await office.receiving.unsubscribe(token.rpartition("/")[2])
    assert (await office.suppressions.page(ACME)).suppressions == ()

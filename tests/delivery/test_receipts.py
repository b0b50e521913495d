"""Receipts and unsubscriptions."""

import pytest

from tests.delivery.services import ACME, KEY, Services
from tidings.delivery.people.suppressions import Recipient
from tidings.delivery.people.unsubscribe import Unsubscription, link
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import DeliveryReceipt
from tidings.domain.notifications.user import accepts


def receipt(state: str, event: str, provider_id: str = "p-a", **more: object) -> DeliveryReceipt:
    return DeliveryReceipt(state, provider_id, event, **more)  # type: ignore[arg-type]


async def test_receipts_only_advance_the_state_and_only_once(services: Services) -> None:
    await services.deliver("a")
    first = await services.receipts.apply("smtp", receipt("delivered", "e1"))
    assert (first.outcome, first.delivery, first.state) == ("applied", "a/1", "delivered")
    assert (await services.receipts.apply("smtp", receipt("delivered", "e1"))).outcome == "unchanged"
    await services.receipts.apply("smtp", receipt("complained", "e2"))
    late = await services.receipts.apply("smtp", receipt("delivered", "e3"))
    assert late.state == "complained"
    delivery = await services.reader.delivery(ACME, "a/1")
    assert delivery is not None
    assert [news.event for news in delivery.news] == ["e1", "e2", "e3"]
    assert (await services.receipts.apply("smtp", receipt("delivered", "e1", "p-unknown"))).outcome == "kept"
    assert (await services.receipts.apply("twilio", receipt("delivered", "e1"))).outcome == "kept"


async def test_a_receipt_is_matched_by_our_message_id(services: Services) -> None:
    await services.deliver("a", provider_id=None)
    event = receipt("delivered", "e1", "unheard", message="a/1@acme")
    assert (await services.receipts.apply("smtp", event)).outcome == "kept"
    assert (await services.receipts.apply("smtp", event, "default")).outcome == "unknown"
    anothers = receipt("delivered", "e1", "unheard", message="a/1")
    assert (await services.receipts.apply("smtp", anothers, ACME)).outcome == "unknown"
    assert (await services.receipts.apply("smtp", event, ACME)).state == "delivered"


async def test_a_receipt_of_one_tenant_does_not_change_another_tenants_delivery(services: Services) -> None:
    """An id that a provider gave twice belongs to the first delivery; the other one is found by our message id."""
    await services.deliver("a")
    assert (await services.receipts.apply("smtp", receipt("bounced", "e1"), "beta")).outcome == "unknown"
    event = receipt("bounced", "e1", tenant="beta", message="a/1@beta")
    assert (await services.receipts.apply("smtp", event)).outcome == "unknown"
    kept = await services.reader.delivery(ACME, "a/1")
    assert kept is not None
    assert kept.state == "sent"
    assert (await services.receipts.apply("smtp", receipt("bounced", "e1"), ACME)).state == "bounced"


async def test_a_receipt_ends_a_delivery_that_waits_for_a_retry(services: Services) -> None:
    await services.deliver("a", state="pending", next_try=services.clock.now() + 5)
    applied = await services.receipts.apply("smtp", receipt("delivered", "e1"))
    assert applied.state == "delivered"
    delivery = await services.reader.delivery(ACME, "a/1")
    assert delivery is not None
    assert delivery.next_try is None


async def test_hard_bounces_and_complaints_suppress_the_address(services: Services) -> None:
    await services.deliver("a")
    soft, hard = await services.receipts.apply_all(
        "smtp",
        [receipt("bounced", "e1", reason="full"), receipt("bounced", "e2", reason="no such\nuser", suppress=True)],
    )
    assert (soft.suppressed, hard.suppressed) == (False, True)
    [found] = await services.suppressions.of(ACME, [Recipient("email", "ADA@example.com")])
    assert found is not None
    assert (found.reason, found.user) == ("bounced: no such user", "ada")
    again = await services.receipts.apply("smtp", receipt("bounced", "e2", suppress=True))
    assert (again.outcome, again.suppressed) == ("unchanged", False)


async def test_an_invalid_address_in_a_receipt_is_ignored(services: Services) -> None:
    await services.deliver("a")
    applied = await services.receipts.apply("smtp", receipt("bounced", "e1", suppress=True, address="<>"))
    assert (applied.state, applied.suppressed) == ("bounced", False)


async def test_unsubscribe_by_link_changes_preferences_and_suppresses_the_address(services: Services) -> None:
    unsubscription = Unsubscription(ACME, "email", "ada@example.com", "news")
    token = link("https://x.example/u", KEY, unsubscription).rpartition("/")[2]
    done = await services.receipts.unsubscribe(token)
    assert (done.users, done.changed) == (("ada",), True)
    ada = await services.users.get(ACME, "ada")
    assert ada is not None
    assert not accepts(ada.user, "news", "email")
    assert accepts(ada.user, "news", "sms")
    asked = [Recipient("email", "ada@example.com", category) for category in ("news", "offers", "transactional")]
    assert [one is not None for one in await services.suppressions.of(ACME, asked)] == [True, False, False]
    assert not (await services.receipts.unsubscribe(token)).changed
    bare = link("https://x.example/u", KEY, Unsubscription(ACME, "email", "x@example.com", "news")).rpartition("/")[2]
    assert (await services.receipts.unsubscribe(bare)).users == ()


async def test_wrong_links_are_refused(services: Services) -> None:
    forged = link("https://x.example/u", b"other" * 8, Unsubscription(ACME, "email", "ada@example.com", "news"))
    closed = link("https://x.example/u", KEY, Unsubscription(ACME, "email", "ada@example.com", "transactional"))
    for token in (forged, closed, "x/nonsense"):
        with pytest.raises(Invalid):
            await services.receipts.unsubscribe(token.rpartition("/")[2])
    assert (await services.suppressions.page(ACME)).suppressions == ()

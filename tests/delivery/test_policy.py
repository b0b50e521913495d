"""The decision on a delivery that is due, case by case."""

from typing import Any

import pytest

from tests.delivery.world import MS, SECOND, TENANT, ada, words
from tidings.delivery.limits.router import Option, choose
from tidings.delivery.worker.context import DeliveryContext
from tidings.delivery.worker.policy import (
    AlreadyDone,
    ClaimedElsewhere,
    Defer,
    Fallback,
    Finish,
    Send,
    decide,
)
from tidings.domain.notifications.delivery import Attempt, Claim, Delivery, Part, State
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.notifications.user import Quiet, User
from tidings.testing import START

DAY = 86_400 * SECOND
BACKOFF = Backoff(age_us_max=DAY)
NOW = START  # nine in the morning, UTC


def case(notification: Notification | None = None, user: User | None = None, **more: Any) -> DeliveryContext:
    asked = notification or words("n")
    known = {"name": "n/1", "notification": "n", "due": NOW, **more.pop("delivery", {})}
    given: dict[str, Any] = {"job": DeliveryJob("n"), "version": 0, "user": user or ada(), **more}
    given["channel"] = asked.channels[given["job"].channel]
    return DeliveryContext(tenant=TENANT, notification=asked, delivery=Delivery(**known), **given)


def decided(*given: Any, now: int = NOW, **more: Any) -> Any:
    return decide(case(*given, **more), BACKOFF, now)


def test_a_delivery_is_sent_to_the_address_of_the_user() -> None:
    assert decided() == Send("email", ("ada@example.com",))
    assert decided(words("n", user=None, to="bob@example.com")) == Send("email", ("bob@example.com",))


@pytest.mark.parametrize("state", ["sent", "delivered", "bounced", "complained", "failed", "cancelled", "expired"])
def test_a_settled_delivery_is_not_sent_again(state: State) -> None:
    assert decided(delivery={"state": state}) == AlreadyDone()


def test_a_job_of_an_earlier_attempt_is_ignored_and_a_later_one_is_not() -> None:
    assert decided(delivery={"turn": 3}, job=DeliveryJob("n", attempt=2)) == AlreadyDone()
    assert isinstance(decided(delivery={"turn": 2}, job=DeliveryJob("n", attempt=2)), Send)
    assert isinstance(decided(delivery={"turn": 1}, job=DeliveryJob("n", attempt=2)), Send)


def test_a_claimed_delivery_is_deferred_until_the_claim_expires() -> None:
    claimed = {"state": "processing", "claim": Claim("other", NOW + SECOND)}
    assert decided(delivery=claimed) == ClaimedElsewhere(NOW + SECOND)
    assert isinstance(decided(delivery=claimed, now=NOW + SECOND), Send)


@pytest.mark.parametrize(
    ("notification", "now", "end"),
    [
        (words("n", cancelled=NOW), NOW, Finish("cancelled", "cancelled")),
        (words("n", expires_after_us=SECOND), NOW + SECOND + 1, Finish("expired", "expired")),
    ],
)
def test_deliveries_that_finish_without_being_sent(notification: Notification, now: int, end: Finish) -> None:
    assert decided(notification, now=now) == end


def test_a_delivery_without_expiry_is_sent_after_any_outage() -> None:
    assert isinstance(decided(now=NOW + 100 * DAY), Send)
    tried = Attempt(1, "email", "mail", NOW, NOW + 1, "provider_error")
    assert isinstance(decided(delivery={"attempts": (tried,)}, now=NOW + 100 * DAY), Send)


def test_a_delivery_that_keeps_crashing_workers_is_given_up() -> None:
    cut_off = tuple(Attempt(number, "email", "mail", NOW) for number in range(1, BACKOFF.attempts_max + 1))
    late = NOW + DAY + 1
    assert decided(delivery={"attempts": cut_off}, now=late) == Finish("failed", "cut_off")
    assert decided(words("n", "email", "sms"), delivery={"attempts": cut_off}, now=late) == Fallback(1, "cut_off")
    assert isinstance(decided(delivery={"attempts": cut_off}, now=NOW + DAY), Send), (
        "others may have crashed for another reason"
    )
    assert isinstance(decided(delivery={"attempts": cut_off[1:]}, now=late), Send)
    assert isinstance(decided(delivery={"attempts": cut_off, "given_up": 1}, now=late), Send)


def test_a_delivery_is_sent_exactly_at_its_deadline() -> None:
    assert isinstance(decided(words("n", expires_after_us=SECOND), now=NOW + SECOND), Send)


def test_a_delivery_for_a_deleted_user_is_skipped() -> None:
    asked = DeliveryContext(
        tenant=TENANT,
        job=DeliveryJob("n"),
        notification=words("n"),
        channel="email",
        delivery=Delivery("n/1", "n", NOW),
        version=0,
    )
    assert decide(asked, BACKOFF, NOW) == Finish("failed", "unknown_user")


def test_without_an_address_the_next_channel_is_used() -> None:
    without_address = User("ada")
    assert decided(words("n", "email"), without_address) == Finish("skipped", "no_address")
    assert decided(words("n", "email", "sms"), without_address) == Fallback(1, "no_address")
    assert decided(words("n", "email", "sms", spread="all"), without_address) == Finish("skipped", "no_address")
    suppressed = frozenset({"ada@example.com"})
    assert decided(words("n", "email", "sms"), suppressed=suppressed) == Fallback(1, "suppressed")
    assert decided(words("n", "email"), suppressed=suppressed) == Finish("skipped", "suppressed")


def test_a_push_that_a_device_has_got_is_sent_although_the_other_device_is_gone() -> None:
    parts = (Part(1, "a", "accepted", "p1"), Part(2, "b"))
    push = words("n", "push", "sms")
    assert decided(push, ada(devices=())) == Fallback(1, "no_address")
    assert decided(push, ada(devices=()), delivery={"parts": parts}) == Finish("sent", "no_address")


def test_preferences_apply_to_all_but_transactional_categories() -> None:
    unwilling = ada(preferences={"news": False})
    assert decided(words("n", category="news"), unwilling) == Finish("skipped", "opted_out")
    assert isinstance(decided(words("n", category="transactional"), unwilling), Send)


@pytest.mark.parametrize(
    ("quiet", "priority", "expected"),
    [
        (Quiet(480, 600), "normal", Defer(NOW + 3_600 * SECOND, "quiet_hours")),
        (Quiet(480, 600, "drop"), "normal", Finish("skipped", "quiet_hours")),
        (Quiet(480, 600), "high", Send("email", ("ada@example.com",))),
        (Quiet(480, 600, spares_high=False), "high", Defer(NOW + 3_600 * SECOND, "quiet_hours")),
        (Quiet(600, 660), "normal", Send("email", ("ada@example.com",))),
    ],
)
def test_quiet_hours_defer_a_delivery(quiet: Quiet, priority: str, expected: object) -> None:
    assert decided(words("n", priority=priority), ada(quiet=quiet)) == expected


def test_a_delivery_that_would_expire_in_quiet_hours_finishes_at_once() -> None:
    quiet = ada(quiet=Quiet(480, 600))
    assert decided(words("n", expires_after_us=1_800 * SECOND), quiet) == Finish("expired", "quiet_hours")
    assert decided(words("n", expires_after_us=7_200 * SECOND), quiet) == Defer(NOW + 3_600 * SECOND, "quiet_hours")


def test_a_job_released_early_is_deferred() -> None:
    delivery = {"next_try": NOW + SECOND, "reason": "rate_limited"}
    assert decided(delivery=delivery) == Defer(NOW + SECOND, "rate_limited")


# --- which provider ---

FIRST, SECOND_ONE = Option("first", True), Option("second", True)


def tried(provider: str, outcome: str = "timeout", **more: Any) -> Attempt:
    return Attempt(1, "email", provider, NOW, **{"ended": NOW + MS, "outcome": outcome, **more})


@pytest.mark.parametrize(
    ("options", "attempts", "chosen"),
    [
        ([FIRST, SECOND_ONE], [], "first"),
        ([FIRST, SECOND_ONE], [tried("first")], "second"),
        ([FIRST, SECOND_ONE], [tried("first"), tried("second")], "first"),
        ([FIRST, SECOND_ONE], [tried("first", "rate_limited")], "first"),
        ([FIRST, SECOND_ONE], [tried("first", may_have_arrived=True)], "first"),
        ([FIRST, SECOND_ONE], [tried("first", ended=None)], "first"),
        ([Option("first", False), SECOND_ONE], [tried("first", may_have_arrived=True)], "second"),
        ([Option("first", True, "open", NOW + 5), SECOND_ONE], [], "second"),
        ([Option("first", True, "due"), SECOND_ONE], [], "first"),
        ([Option("first", True, "due"), SECOND_ONE], [tried("first")], "second"),
        ([FIRST, Option("second", True, "due")], [], "first"),
        ([Option("first", True, "due"), Option("second", True, "open", NOW + 5)], [], "first"),
        ([FIRST], [tried("gone")], "first"),
    ],
)
def test_the_first_available_provider_is_selected(options: list[Option], attempts: list[Attempt], chosen: str) -> None:
    option = choose(options, attempts)
    assert isinstance(option, Option)
    assert option.provider == chosen


def test_with_all_breakers_open_it_waits_for_the_first_to_half_open() -> None:
    options = [Option("first", True, "open", NOW + 9), Option("second", True, "open", NOW + 5)]
    assert choose(options, []) == NOW + 5
    assert choose(options, [tried("first", may_have_arrived=True)]) == NOW + 9

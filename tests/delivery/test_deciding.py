"""What becomes of a delivery when it would leave, case by case."""

from typing import Any

import pytest

from tests.delivery.world import MS, SECOND, TENANT, ada, words
from tidings.delivery.choosing import Option, choose
from tidings.delivery.deciding import Case, End, Hold, Next, Pass, Send, Wait, decide
from tidings.domain.notifications.delivery import Attempt, Claim, Delivery, State
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.domain.notifications.user import Quiet, User
from tidings.testing import START

DAY = 86_400 * SECOND
BACKOFF = Backoff(age_us_max=DAY)
NOW = START  # nine in the morning, UTC


def case(notification: Notification | None = None, user: User | None = None, **more: Any) -> Case:
    asked = notification or words("n")
    known = {"name": "n/1", "notification": "n", "due": NOW, **more.pop("delivery", {})}
    given: dict[str, Any] = {"errand": DeliveryJob("n"), "version": 0, "user": user or ada(), **more}
    return Case(TENANT, notification=asked, delivery=Delivery(**known), **given)


def decided(*given: Any, now: int = NOW, **more: Any) -> Any:
    return decide(case(*given, **more), BACKOFF, now)


def test_a_delivery_goes_to_the_users_address() -> None:
    assert decided() == Send("email", ("ada@example.com",))
    assert decided(words("n", user=None, to="bob@example.com")) == Send("email", ("bob@example.com",))


@pytest.mark.parametrize("state", ["sent", "delivered", "bounced", "complained", "failed", "cancelled", "expired"])
def test_what_is_settled_is_passed_over(state: State) -> None:
    assert decided(delivery={"state": state}) == Pass()


def test_a_former_turn_is_passed_over_and_a_later_one_never() -> None:
    assert decided(delivery={"turn": 3}, errand=DeliveryJob("n", attempt=2)) == Pass()
    assert isinstance(decided(delivery={"turn": 2}, errand=DeliveryJob("n", attempt=2)), Send)
    assert isinstance(decided(delivery={"turn": 1}, errand=DeliveryJob("n", attempt=2)), Send)


def test_a_claim_is_waited_for_until_it_ends() -> None:
    claimed = {"state": "processing", "claim": Claim("other", NOW + SECOND)}
    assert decided(delivery=claimed) == Hold(NOW + SECOND)
    assert isinstance(decided(delivery=claimed, now=NOW + SECOND), Send)


@pytest.mark.parametrize(
    ("notification", "now", "end"),
    [
        (words("n", cancelled=NOW), NOW, End("cancelled", "cancelled")),
        (words("n", expires_after_us=SECOND), NOW + SECOND + 1, End("expired", "expired")),
    ],
)
def test_what_is_over(notification: Notification, now: int, end: End) -> None:
    assert decided(notification, now=now) == end


def test_what_never_expires_is_not_too_old_after_any_outage() -> None:
    assert isinstance(decided(now=NOW + 100 * DAY), Send)
    tried = Attempt(1, "email", "mail", NOW, NOW + 1, "provider_error")
    assert isinstance(decided(delivery={"attempts": (tried,)}, now=NOW + 100 * DAY), Send)


def test_what_workers_die_of_has_an_end() -> None:
    cut_off = tuple(Attempt(number, "email", "mail", NOW) for number in range(1, BACKOFF.attempts_max + 1))
    late = NOW + DAY + 1
    assert decided(delivery={"attempts": cut_off}, now=late) == End("failed", "cut_off")
    assert decided(words("n", "email", "sms"), delivery={"attempts": cut_off}, now=late) == Next(1, "cut_off")
    assert isinstance(decided(delivery={"attempts": cut_off}, now=NOW + DAY), Send), "others may have died of something"
    assert isinstance(decided(delivery={"attempts": cut_off[1:]}, now=late), Send)
    assert isinstance(decided(delivery={"attempts": cut_off, "given_up": 1}, now=late), Send)


def test_at_the_very_end_of_its_time_it_still_goes() -> None:
    assert isinstance(decided(words("n", expires_after_us=SECOND), now=NOW + SECOND), Send)


def test_a_user_who_is_gone() -> None:
    asked = Case(TENANT, DeliveryJob("n"), words("n"), Delivery("n/1", "n", NOW), 0)
    assert decide(asked, BACKOFF, NOW) == End("failed", "unknown_user")


def test_without_an_address_the_next_channel_is_used() -> None:
    nobody = User("ada")
    assert decided(words("n", "email"), nobody) == End("skipped", "no_address")
    assert decided(words("n", "email", "sms"), nobody) == Next(1, "no_address")
    assert decided(words("n", "email", "sms", spread="all"), nobody) == End("skipped", "no_address")
    suppressed = frozenset({"ada@example.com"})
    assert decided(words("n", "email", "sms"), suppressed=suppressed) == Next(1, "suppressed")
    assert decided(words("n", "email"), suppressed=suppressed) == End("skipped", "suppressed")


def test_wishes_hold_for_all_but_what_is_transactional() -> None:
    unwilling = ada(preferences={"news": False})
    assert decided(words("n", category="news"), unwilling) == End("skipped", "opted_out")
    assert isinstance(decided(words("n", category="transactional"), unwilling), Send)


@pytest.mark.parametrize(
    ("quiet", "priority", "expected"),
    [
        (Quiet(480, 600), "normal", Wait(NOW + 3_600 * SECOND, "quiet_hours")),
        (Quiet(480, 600, "drop"), "normal", End("skipped", "quiet_hours")),
        (Quiet(480, 600), "high", Send("email", ("ada@example.com",))),
        (Quiet(480, 600, spares_high=False), "high", Wait(NOW + 3_600 * SECOND, "quiet_hours")),
        (Quiet(600, 660), "normal", Send("email", ("ada@example.com",))),
    ],
)
def test_quiet_hours(quiet: Quiet, priority: str, expected: object) -> None:
    assert decided(words("n", priority=priority), ada(quiet=quiet)) == expected


def test_what_quiet_hours_would_make_stale_ends_at_once() -> None:
    quiet = ada(quiet=Quiet(480, 600))
    assert decided(words("n", expires_after_us=1_800 * SECOND), quiet) == End("expired", "quiet_hours")
    assert decided(words("n", expires_after_us=7_200 * SECOND), quiet) == Wait(NOW + 3_600 * SECOND, "quiet_hours")


def test_a_turn_that_came_early_waits() -> None:
    delivery = {"next_try": NOW + SECOND, "reason": "rate_limited"}
    assert decided(delivery=delivery) == Wait(NOW + SECOND, "rate_limited")


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
def test_choosing(options: list[Option], attempts: list[Attempt], chosen: str) -> None:
    option = choose(options, attempts)
    assert isinstance(option, Option)
    assert option.provider == chosen


def test_where_all_are_open_it_waits_for_the_first() -> None:
    options = [Option("first", True, "open", NOW + 9), Option("second", True, "open", NOW + 5)]
    assert choose(options, []) == Wait(NOW + 5, "breaker_open")
    assert choose(options, [tried("first", may_have_arrived=True)]) == Wait(NOW + 9, "breaker_open")

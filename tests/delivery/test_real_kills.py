"""Real nodes, killed at every crash point while providers fail; `python -m tests.delivery.loop` runs longer."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.loop import Message, fault_of, run
from tests.servers.fixtures import started_postgres
from tidings.crash import DELIVERY_POINTS
from tidings.domain.notifications.delivery import Attempt, Delivery

# With the kills of the other loops (`tests/faults`, `tests/kafka`, `tests/fleet`) more than 300 in every run.
KILLS = 30


@pytest.fixture
def dsn(nodes: int) -> Iterator[str | None]:
    """A database of its own for several nodes; None, a file, for one."""
    if nodes == 1:
        yield None
    else:
        for server in started_postgres():
            yield server.dsn


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.filterwarnings("ignore::DeprecationWarning:aiosmtpd")
@pytest.mark.parametrize("nodes", [1, 2, 3])
async def test_no_kill_loses_a_delivery(
    nodes: int, dsn: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1_000_000)
    outcome = await run(KILLS, seed, tmp_path, dsn, nodes)
    with capsys.disabled():
        print(f"\nseed {seed}\n{outcome}")
    assert outcome.wrong == [], f"seed {seed}\n{outcome}"
    assert outcome.webhooks_sent_twice == 0
    assert outcome.kills.total() >= KILLS
    assert set(DELIVERY_POINTS) <= set(outcome.kills)
    assert outcome.cut_off > 0, "no kill met a call"
    assert len(outcome.faults) >= 5, "providers hardly misbehaved"


HOOK, MAIL, REFUSED = Message(2), Message(1), Message(40)


def ended(state: Any, *attempts: dict[str, Any]) -> Delivery:
    made = tuple(Attempt(1, "email", "smtp", 0, **attempt) for attempt in attempts)
    return Delivery("n/1", "n", 0, state, attempts=made)


@pytest.mark.parametrize(
    ("message", "delivery", "ids", "mails", "fault"),
    [
        (HOOK, ended("sent"), {"n-2/1"}, 0, None),
        (HOOK, None, {"n-2/1"}, 0, "has no end"),
        (HOOK, ended("processing"), {"n-2/1"}, 0, "has no end"),
        (HOOK, ended("failed"), {"n-2/1"}, 0, "has another end"),
        (HOOK, ended("sent"), set(), 0, "arrived under"),
        (HOOK, ended("sent"), {"n-2/1", "n-2/2"}, 0, "arrived under"),
        (REFUSED, ended("failed"), set(), 0, None),
        (REFUSED, ended("sent"), set(), 0, "has another end"),
        (MAIL, ended("sent", {"ended": 1}), set(), 1, None),
        (MAIL, ended("sent", {"ended": 1}), set(), 0, "was mailed 0 times"),
        (MAIL, ended("sent", {"ended": 1}), set(), 2, "was mailed 2 times"),
        (MAIL, ended("sent", {"ended": None}, {"ended": 1}), set(), 2, None),
        (MAIL, ended("sent", {"ended": 1, "may_have_arrived": True}, {"ended": 1}), set(), 2, None),
        (MAIL, ended("sent", {"ended": None}, {"ended": 1}), set(), 3, "was mailed 3 times"),
    ],
)
def test_the_check_detects_faults(
    message: Message, delivery: Delivery | None, ids: set[str], mails: int, fault: str | None
) -> None:
    found = fault_of(message, delivery, ids, mails)
    assert found is None if fault is None else fault in (found or "")

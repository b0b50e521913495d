"""Values of the wrong type are refused by name, with what to give, before anything is stored."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

import tidings
from tidings import Invalid, Request, Tidings
from tidings.domain.schedules.when import Every, Period

SURROGATE = "\ud800"


@pytest.fixture
async def t() -> AsyncIterator[Tidings]:
    async with tidings.open(":memory:") as opened:
        yield opened


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("late", {"late": "fire-all"}),
        ("late", {"late": 1}),
        ("headers", {"headers": {"a": 1}}),
        ("headers", {"headers": {b"a": "x"}}),
        ("headers", {"headers": [("a", ["x"])]}),
        ("headers", {"headers": [("a", "b", "c")]}),
        ("headers", {"headers": ["ab"]}),
        ("headers", {"headers": "ab"}),
        ("headers", {"headers": 5}),
        ("headers", {"headers": [("a", SURROGATE)]}),
        ("headers", {"headers": [(SURROGATE, "a")]}),
        ("labels", {"labels": {"a": 1}}),
        ("labels", {"labels": "abc"}),
        ("labels", {"labels": {"a": SURROGATE}}),
        ("labels", {"labels": {"a": object()}}),
        ("every", {"every": 5}),
        ("expires_after", {"expires_after": 5}),
        ("jitter", {"jitter": b"5s"}),
        ("at", {"at": 5}),
        ("priority", {"priority": 1}),
        ("priority", {"priority": "urgent"}),
        ("id", {"id": 5}),
        ("id", {"id": SURROGATE}),
        ("key", {"key": 5}),
        ("key", {"key": SURROGATE}),
        ("topic", {"topic": 5}),
        ("topic", {"topic": SURROGATE}),
        ("value", {"value": SURROGATE}),
        ("value", {"value": [SURROGATE]}),
        ("value", {"value": object()}),
        ("value", {"value": float("nan")}),
        ("value", {"value": {"a": [None, float("-inf")]}}),
    ],
)
async def test_a_wrong_value_names_its_field(t: Tidings, field: str, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        await t.schedule(**{"topic": "x", "value": "v", **options})
    assert refused.value.field == field
    assert len(refused.value.detail) > 10
    assert [schedule async for schedule in t.list()] == []


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "fire", "find", "explain"])
@pytest.mark.parametrize("wrong", [None, 5, b"a", SURROGATE])
async def test_an_id_is_text(t: Tidings, verb: str, wrong: Any) -> None:
    with pytest.raises(Invalid, match=r"^id: "):
        await getattr(t, verb)(wrong)
    with pytest.raises(Invalid, match=r"^id: "):
        await t.replace(wrong, "x", "v")


@pytest.mark.parametrize(
    ("field", "ask"),
    [
        ("topic", lambda t: t.follow("bad topic")),
        ("topic", lambda t: t.follow(5)),
        ("start", lambda t: t.follow("x", 5)),
        ("cursor", lambda t: t.follow("x", "nonsense")),
        ("state", lambda t: t.list(state="bogus")),
        ("label", lambda t: t.list(label="x")),
        ("label", lambda t: t.list(label=("x",))),
        ("prefix", lambda t: t.list(prefix=SURROGATE)),
        ("topic", lambda t: t.list(topic=5)),
    ],
)
async def test_an_invalid_query_is_refused_at_once(t: Tidings, field: str, ask: Callable[[Tidings], object]) -> None:
    with pytest.raises(Invalid) as refused:
        ask(t)
    assert refused.value.field == field


@pytest.mark.parametrize("tenant", ["", "a b", "-a", "a" * 64, None])
def test_a_tenant_has_a_name_as_for_keys(tenant: Any) -> None:
    with pytest.raises(Invalid, match=r"^tenant: use 1 to 63 letters"):
        tidings.open(":memory:", tenant=tenant)


async def test_requests_built_by_hand_are_validated_too(t: Tidings) -> None:
    wrong: Any = "text"
    [bad, good] = await t.schedule_many([Request("x", value=wrong, id="a"), Request("x", value=b"v", id="b", at="1h")])
    assert (bad.id, bad.outcome) == ("a", "rejected")
    assert bad.reason is not None
    assert bad.reason.startswith("value: give bytes")
    assert good.outcome == "scheduled"
    nothing: Any = [{"topic": "x"}]
    with pytest.raises(Invalid, match="make_request"):
        await t.schedule_many(nothing)


async def test_a_period_may_be_a_timedelta(t: Tidings) -> None:
    await t.schedule("x", "v", id="a", every=timedelta(minutes=10), expires_after=timedelta(seconds=1.5))
    found = await t.find("a")
    assert found is not None
    assert found.lateness is not None
    assert found.lateness.expires_after_us == 1_500_000
    assert isinstance(found.when, Every)
    assert found.when.period == Period(0, 600_000_000)
    for none in (timedelta(0), timedelta(seconds=-5)):
        with pytest.raises(Invalid, match=r"^every: "):
            await t.schedule("x", "v", every=none)

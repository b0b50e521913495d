"""Random calls, the same on every document store: the one in memory is the reference."""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.contract.factories import NOW, SECOND
from tests.contract.life import QUICK
from tests.contract.twins import Twins
from tidings.ports import ANY, Change, Document, DocumentStore, Key, Place, Put, Remove, Unchanged

TENANTS = ("acme", "globex")
KINDS = ("user", "inbox")
NAMES = ("a", "b", "b\0", "é", "世界", "")
TAGS = ("t", "u", "ü")
ORDERS = (0, 1, -1, NOW)
KEYS = [Key(tenant, kind, name) for tenant in TENANTS for kind in KINDS for name in NAMES]

Seen = tuple[Key, bytes, tuple[str, ...], int, int | None]


class Plan(NamedTuple):
    """One change; what it expects is told by what each store answered before, as versions are its own."""

    key: Key
    expects: Literal["any", "none", "current", "former"]
    body: bytes | None
    tags: tuple[str, ...]
    order: int
    lasts: int | None
    stays: bool


plans = some.builds(
    Plan,
    some.sampled_from(KEYS),
    some.sampled_from(["any", "none", "current", "former"]),
    some.sampled_from([b"", b"one", b"two", None]),
    some.sampled_from([(), ("t",), ("t", "u"), ("u", "t"), ("ü",)]),
    some.sampled_from(ORDERS),
    some.sampled_from([None, None, 1, SECOND, 0]),
    some.sampled_from([False, False, True]),
)
groups = some.lists(plans, max_size=4, unique_by=lambda plan: plan.key)


class DocumentCalls(RuleBasedStateMachine):
    """One step is one call."""

    def __init__(self) -> None:
        super().__init__()
        self.twins = Twins()
        self.cabinets: list[DocumentStore] = [store.documents for store in self.twins.stores]
        self.now = NOW
        self.former: list[dict[Key, int]] = [{} for _ in self.cabinets]
        self.given: list[dict[int, tuple[Seen, int]]] = [{} for _ in self.cabinets]
        self.call = 0

    def teardown(self) -> None:
        self.twins.close()

    def _each(self, ask: Callable[..., Awaitable[object]], *details: object) -> None:
        self.twins._each(ask, *details)

    @rule(batch=some.lists(groups, max_size=6))
    def change(self, batch: list[list[Plan]]) -> None:
        self.call += 1
        self._each(self._change, batch)
        self._each(self._get)

    async def _change(self, index: int, batch: list[list[Plan]]) -> list[bool]:
        there = dict(zip(KEYS, await self.cabinets[index].get(KEYS, self.now), strict=True))
        asked = [[self._told(index, plan, there[plan.key]) for plan in group] for group in batch]
        answers = await self.cabinets[index].change(asked, self.now)
        self.former[index] |= {key: document.version for key, document in there.items() if document is not None}
        return [answer != 0 for answer in answers]

    def _told(self, index: int, plan: Plan, there: Document | None) -> Change:
        current = 0 if there is None else there.version
        expected = {"any": ANY, "none": 0, "current": current, "former": self.former[index].get(plan.key, 1 << 40)}
        if plan.stays and expected[plan.expects] > 0:
            return Unchanged(plan.key, expected[plan.expects])
        if plan.body is None:
            return Remove(plan.key, expected[plan.expects])
        until = None if plan.lasts is None else self.now + plan.lasts
        return Put(plan.key, plan.body, expected[plan.expects], plan.tags, plan.order, until)

    async def _get(self, index: int) -> list[Seen | None]:
        found = await self.cabinets[index].get(KEYS, self.now)
        assert [one.key for one in found if one is not None] == [
            key for key, one in zip(KEYS, found, strict=True) if one is not None
        ]
        for document in found:
            if document is not None:
                self._check_version(index, document)
        return [None if one is None else _seen(one) for one in found]

    def _check_version(self, index: int, document: Document) -> None:
        """A version is given once."""
        now = (_seen(document), self.call)
        seen, call = self.given[index].setdefault(document.version, now)
        assert seen == now[0], f"{self.twins.names[index]} gave version {document.version} in call {call} and again"

    @rule(
        tenant=some.sampled_from(TENANTS),
        kind=some.sampled_from(KINDS),
        tag=some.sampled_from(TAGS),
        after=some.one_of(some.none(), some.tuples(some.sampled_from(ORDERS), some.sampled_from(NAMES))),
        limit=some.sampled_from([100, 2, 1]),
        newest=some.booleans(),
    )
    def find(self, tenant: str, kind: str, tag: str, after: Place | None, limit: int, newest: bool) -> None:
        self._each(self._find, tenant, kind, tag, after, limit, newest)

    async def _find(
        self, index: int, tenant: str, kind: str, tag: str, after: Place | None, limit: int, newest: bool
    ) -> list[Seen]:
        found = await self.cabinets[index].find(tenant, kind, tag, self.now, after=after, limit=limit, newest=newest)
        return [_seen(document) for document in found]

    @rule(us=some.sampled_from([1, SECOND, 10 * SECOND]))
    def advance(self, us: int) -> None:
        self.now += us
        self._each(self._get)

    @rule()
    def tend(self) -> None:
        self.twins.tend(self.now)
        self._each(self._get)


def _seen(document: Document) -> Seen:
    """A document without its version."""
    return document.key, document.body, document.tags, document.order, document.until


@pytest.mark.slow
def test_documents_behave_the_same_on_every_store() -> None:
    run_state_machine_as_test(DocumentCalls, settings=settings(QUICK, max_examples=30))


@pytest.mark.long
@pytest.mark.slow
def test_documents_behave_the_same_on_every_store_in_many_runs() -> None:
    run_state_machine_as_test(DocumentCalls, settings=settings(QUICK, max_examples=60))

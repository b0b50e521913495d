"""Random commands, releases and housekeeping on several stores, for tests that transfer a store meanwhile."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.contract.compared_stores import ComparedStores
from tests.contract.factories import DAY, FIRE_ALL, HOUR, MILLISECOND, MINUTE, NOW, SECOND, add, every
from tidings.domain.schedules.command import Add, Cancel, Command, Fire, Pause, Priority, Replace, Resume
from tidings.domain.schedules.lateness import Lateness
from tidings.ports import IdempotencyKey

TENANTS = ("acme", "globex")
TOPICS = ("greetings", "orders")
TARGETS: tuple[str | int, ...] = ("a", "b", "ünï", 0, 1, 2)
CHANGES: dict[str, Callable[[str, str], Command]] = {
    "cancel": Cancel,
    "pause": Pause,
    "resume": Resume,
    "fire": Fire,
}


class Terms(NamedTuple):
    """The fields of a schedule; without a period it is a one-shot."""

    ahead: int
    period: int | None
    times: int
    jitter_us: int
    topic: str
    key: bytes | None
    value: bytes | None
    priority: Priority
    lateness: Lateness


class Plan(NamedTuple):
    """One command; a number stands for one of the generated ids."""

    verb: str
    tenant: str
    target: str | int
    terms: Terms | None = None


aheads = some.sampled_from([0, MILLISECOND, SECOND, 5 * SECOND, -SECOND, -HOUR, 20 * MINUTE, 2 * DAY, 40 * DAY])
steps = some.sampled_from([MILLISECOND, 300 * MILLISECOND, SECOND, 7 * SECOND, 20 * MINUTE, HOUR, 2 * DAY, 5 * DAY])
bounds = some.sampled_from(
    [
        FIRE_ALL,
        Lateness(),
        Lateness("skip", grace_us=2 * SECOND),
        Lateness("fire_all", max_us=3 * SECOND),
        Lateness(expires_after_us=500 * MILLISECOND),
        Lateness("skip", grace_us=SECOND, max_us=10 * SECOND, expires_after_us=5 * SECOND),
    ]
)


@some.composite
def plans(draw: some.DrawFn) -> Plan:
    verb = draw(some.sampled_from(["add", "add", "replace", "reuse", *CHANGES]))
    tenant = draw(some.sampled_from(TENANTS))
    target = draw(some.sampled_from(TARGETS))
    if verb in CHANGES:
        return Plan(verb, tenant, target)
    terms = Terms(
        draw(aheads),
        draw(some.sampled_from([None, SECOND, 7 * SECOND, HOUR])),
        draw(some.sampled_from([1, 2, 5, 40])),
        draw(some.sampled_from([0, 0, 3 * SECOND + 1])),
        draw(some.sampled_from(TOPICS)),
        draw(some.sampled_from([None, b"x", b"y"])),
        draw(some.sampled_from([b"v", b"", None])),
        draw(some.sampled_from(Priority)),
        draw(bounds),
    )
    return Plan(verb, tenant, target, terms)


idempotency_keys = some.none() | some.builds(
    IdempotencyKey, some.just("acme"), some.sampled_from(["k1", "k2"]), some.sampled_from([b"one", b"two"])
)


class CommandMachine(RuleBasedStateMachine):
    """Commands, releases and housekeeping with a clock that mostly moves forward."""

    make: type[ComparedStores] = ComparedStores

    def __init__(self) -> None:
        super().__init__()
        self.compared = self.make()
        self.now = NOW
        self.made: list[str] = []

    def teardown(self) -> None:
        self.compared.close()

    @rule(batch=some.lists(plans(), min_size=1, max_size=8), idempotency=idempotency_keys)
    def apply(self, batch: list[Plan], idempotency: IdempotencyKey | None) -> None:
        commands = [self._command(plan) for plan in batch]
        outcomes = self.compared.apply(commands, self.now, idempotency)
        note(f"  -> {[(outcome.id, outcome.outcome) for outcome in outcomes]}")
        for command, outcome in zip(commands, outcomes, strict=False):
            if isinstance(command, Add) and command.id is None:
                self.made.append(outcome.id)

    @rule(rows_max=some.sampled_from([1000, 3, 1]))
    def release(self, rows_max: int) -> None:
        self.compared.release(self.now, rows_max)

    @rule(us=steps)
    def advance(self, us: int) -> None:
        self.now += us

    @rule(us=some.sampled_from([MILLISECOND, SECOND, HOUR]))
    def step_back(self, us: int) -> None:
        self.now -= us

    @rule()
    def tend(self) -> None:
        self.compared.tend(self.now)

    @rule()
    def compare(self) -> None:
        self.compared.compare(self.now, TENANTS, TOPICS)

    def _command(self, plan: Plan) -> Command:
        target = self._target(plan.target)
        if plan.terms is None:
            return CHANGES[plan.verb](plan.tenant, target)
        if plan.verb == "add":
            return self._schedule(plan.tenant, target if isinstance(plan.target, str) else None, plan.terms)
        return Replace(self._schedule(plan.tenant, target, plan.terms), reuse=plan.verb == "reuse")

    def _target(self, target: str | int) -> str:
        if isinstance(target, str):
            return target
        return self.made[target % len(self.made)] if self.made else "a"

    def _schedule(self, tenant: str, schedule_id: str | None, terms: Terms) -> Add:
        """The command for some terms; its content is what was sent, so that `+5s` is the same a second later."""
        options: dict[str, Any] = {
            "tenant": tenant,
            "topic": terms.topic,
            "key": terms.key,
            "value": terms.value,
            "priority": terms.priority,
            "lateness": terms.lateness,
            "content": repr(terms),
        }
        start = self.now + terms.ahead
        if terms.period is None:
            return add(schedule_id, start, **options)
        return every(schedule_id, start, period=terms.period, count=terms.times, jitter_us=terms.jitter_us, **options)


QUICK = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking would take minutes: the seed reproduces it
    max_examples=15,
    stateful_step_count=40,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

"""Random commands: new schedules of all kinds, repetitions, replacements, and changes of known and unknown ids."""

import random
from collections.abc import Callable

from tests.contract.factories import DAY, FIRE_ALL, HOUR, MILLISECOND, MINUTE, SECOND, add, every
from tests.sim.model import Ledger
from tidings.domain.schedules.command import Add, Cancel, Command, Fire, Pause, Priority, Replace, Resume, address
from tidings.domain.schedules.lateness import Lateness

TENANTS = ("acme", "globex")
TOPICS = ("greetings", "orders")
NAMES = tuple("abcdefgh")

AHEAD = (0, MILLISECOND, SECOND, 5 * SECOND, 90 * SECOND, -SECOND, -HOUR, 20 * MINUTE, 3 * HOUR, 2 * DAY, 40 * DAY)
PERIODS = (SECOND, 7 * SECOND, HOUR, DAY)
POLICIES = (
    FIRE_ALL,
    Lateness(),
    Lateness("skip", grace_us=2 * SECOND),
    Lateness("fire_all", max_us=3 * SECOND),
    Lateness(expires_after_us=500 * MILLISECOND),
    Lateness("skip", grace_us=SECOND, max_us=10 * SECOND, expires_after_us=5 * SECOND),
)


class Commands:
    """Generates commands that fit the present state."""

    def __init__(self, chance: random.Random, now: Callable[[], int]) -> None:
        self._random = chance
        self._now = now
        self._token = 0
        self._adds: list[Add] = []

    def some(self, ledger: Ledger) -> list[Command]:
        """A few of them."""
        return [self._command(ledger) for _ in range(self._random.choice((1, 1, 2, 5)))]

    def _command(self, ledger: Ledger) -> Command:
        tenant = self._random.choice(TENANTS)
        verb = self._random.choices(("add", "again", "replace", "change"), (6, 1, 2, 4))[0]
        if verb == "again" and self._adds:
            return self._random.choice(self._adds)
        if verb in {"add", "again"}:
            name = self._random.choice((*NAMES, None, None, None))
            command = self._schedule(tenant, name)
            self._adds += [] if name is None else [command]
            return command
        known = [key for key in ledger.current if key[0] == tenant]
        name = self._random.choice(known)[1] if known and self._random.random() < 0.9 else "nobody"
        if verb == "replace":
            name = self._random.choice(NAMES) if name == "nobody" else name
            return Replace(self._schedule(tenant, name), reuse=self._random.random() < 0.5)
        return self._random.choice((Cancel, Cancel, Pause, Resume, Resume, Fire))(tenant, name)

    def _schedule(self, tenant: str, name: str | None) -> Add:
        self._token += 1
        start = self._now() + self._random.choice(AHEAD) + self._random.choice((0, 0, 1, 499_999))
        topic, priority = self._random.choice(TOPICS), self._random.choice(tuple(Priority))
        lateness, value = self._random.choice(POLICIES), b"%d" % self._token
        if self._random.random() < 0.7:
            return add(name, start, tenant=tenant, topic=topic, value=value, priority=priority, lateness=lateness)
        return every(
            name,
            start,
            period=self._random.choice(PERIODS),
            count=self._random.choice((1, 2, 3, 8)),
            tenant=tenant,
            topic=topic,
            value=value,
            priority=priority,
            lateness=lateness,
            jitter_us=self._random.choice((0, 0, 3 * SECOND + 1)),
        )


def brief(command: Command) -> str:
    """A command as a line of the trace."""
    tenant, name = address(command)
    text = f"{type(command).__name__} {tenant}/{name}"
    if isinstance(command, Replace):
        text += " reuse" if command.reuse else ""
        command = command.add
    if isinstance(command, Add):
        return f"{text} {command.when} {command.lateness} {command.priority} jitter {command.jitter_us}"
    return text

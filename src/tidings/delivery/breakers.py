"""The circuit breakers of all providers, shared by all workers: who opens one opens it for everybody.

A breaker is looked up at most twice a second, so that others learn of it within that time.
"""

from collections import Counter
from collections.abc import Sequence

from tidings.clock import Clock
from tidings.delivery.filing import ALL, SHARED, encode, read
from tidings.delivery.gathering import Gathering
from tidings.domain.facts import Closed, DeliveryListener, Opened
from tidings.domain.notifications.address import url_origin
from tidings.domain.notifications.circuit_breaker import Breaker, BreakerState, Terms, opened, state_at, tried, untried
from tidings.domain.notifications.delivery import Broken, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import Rendered, Webhook
from tidings.ports import Document, DocumentStore, Key, Put, Remove

FRESH_US = 500_000
KEPT_US = 3_600_000_000  # a breaker that nobody asked for in an hour is forgotten, and closed
TRIES_MAX = 8
COUNTED_MAX = 10_000


def breaker_key(provider: str, message: Rendered) -> Key:
    """A provider has one breaker, which all tenants share. Webhooks have one for each receiver (scheme, host and port)
    of each tenant, so that a receiver in trouble stops nobody else's webhooks."""
    if isinstance(message, Webhook):
        return Key(message.tenant, "breaker", f"{provider} {url_origin(message.to)}")
    return Key(SHARED, "breaker", provider)


def breaker_put(key: Key, breaker: Breaker, expected: int) -> Put:
    """A breaker that is not closed; all of a tenant, or of nobody, are found together."""
    until = max(breaker.until, breaker.trial_until) + KEPT_US
    return Put(key, encode(breaker), expected, (ALL,), until=until)


class Breakers:
    """What this worker knows of them, and what it has seen of its own calls."""

    def __init__(self, cabinet: DocumentStore, clock: Clock, worker: str, terms: Terms, tell: DeliveryListener) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._worker = worker
        self._terms = terms
        self._tell = tell
        self._failures: Counter[Key] = Counter()
        self._known: dict[Key, tuple[int, Document | None]] = {}
        self._looks: Gathering[Key, Document | None] = Gathering(self._look)
        self._opened: set[Key] = set()  # by us, and not seen closed since

    async def standing(self, key: Key) -> tuple[BreakerState, int]:
        """Whether a provider is called now, and from when on to ask again."""
        looked_at, there = self._known.get(key, (-FRESH_US, None))
        if self._clock.elapsed() - looked_at >= FRESH_US:
            there = await self._looks.ask(key, urgent=True)
        if there is None:
            self._seen_closed(key)
        return state_at(None if there is None else read(there, Breaker), self._clock.now())

    def why(self, key: Key) -> str:
        """Why it is open, as far as this worker knows."""
        _, there = self._known.get(key, (0, None))
        return "" if there is None else read(there, Breaker).reason

    async def try_one(self, key: Key) -> bool:
        """Be the one who tries; False if another was faster."""
        there = await self._looks.ask(key, urgent=True)
        now = self._clock.now()
        if there is None:
            return True
        breaker = read(there, Breaker)
        if state_at(breaker, now)[0] != "due":
            return False
        trial = tried(breaker, self._terms, self._worker, now)
        return await self._change(breaker_put(key, trial, there.version))

    async def give_back(self, key: Key) -> None:
        """Our message cannot try after all; the next one may, at once."""
        there = await self._looks.ask(key, urgent=True)
        if there is not None and (breaker := read(there, Breaker)).worker == self._worker:
            await self._change(breaker_put(key, untried(breaker), there.version))

    async def heard(self, key: Key, verdict: Verdict, *, trial: bool) -> None:
        """What became of a call. Only a trial closes it: other answers may have been under way since before.

        What is wrong with the message alone is neither a failure nor a success of the provider: a trial that ends so
        is left to the next message.
        """
        if isinstance(verdict, Broken):
            await self._open(key, verdict.reason, verdict.detail, is_ours=True, trial=trial)
        elif isinstance(verdict, Temporary | Permanent) and not verdict.concerns_provider:
            if trial:
                await self.give_back(key)
        elif isinstance(verdict, Temporary) and verdict.is_provider_failure:
            if len(self._failures) >= COUNTED_MAX:
                self._failures.clear()
            self._failures[key] += 1
            if trial or self._failures[key] >= self._terms.failures_max:
                await self._open(key, verdict.reason, verdict.detail, is_ours=False, trial=trial)
        else:
            self._failures.pop(key, None)
            if trial:
                await self._close(key)

    async def _open(self, key: Key, reason: str, detail: str, *, is_ours: bool, trial: bool) -> None:
        for _ in range(TRIES_MAX):
            there = await self._looks.ask(key, urgent=True)
            now = self._clock.now()
            before = None if there is None else read(there, Breaker)
            if before is not None and state_at(before, now)[0] != "due" and not (trial and now >= before.until):
                return  # others have opened it
            after = opened(before, self._terms, reason, now, detail)
            if await self._change(breaker_put(key, after, 0 if there is None else there.version)):
                self._failures.pop(key, None)
                if len(self._opened) >= COUNTED_MAX:
                    self._opened.clear()
                self._opened.add(key)
                self._tell(Opened(now, key.name, reason, detail, after.until, is_ours))
                return

    async def _close(self, key: Key) -> None:
        for _ in range(TRIES_MAX):
            there = await self._looks.ask(key, urgent=True)
            if there is None or await self._change(Remove(key, there.version)):
                self._opened.add(key)  # whoever opened it, and whoever closed it: it is told once here
                self._seen_closed(key)
                return

    def _seen_closed(self, key: Key) -> None:
        """Tell that it works again, if we told that it does not: another worker may have found out."""
        if key in self._opened:
            self._opened.discard(key)
            self._tell(Closed(self._clock.now(), key.name))

    async def _change(self, change: Put | Remove) -> bool:
        [done] = await self._cabinet.change([[change]], self._clock.now())
        self._known.pop(change.key, None)
        return bool(done)

    async def _look(self, keys: Sequence[Key]) -> list[Document | None]:
        found = await self._cabinet.get(keys, self._clock.now())
        elapsed = self._clock.elapsed()
        if len(self._known) >= COUNTED_MAX:
            self._known.clear()
        self._known |= {key: (elapsed, there) for key, there in zip(keys, found, strict=True)}
        return found

"""The circuit breakers of all providers, shared by all workers: one that a worker opens is open for every worker.

A breaker is read again at most twice a second, so that other workers learn of a change within that time.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from tidings.clock import Clock
from tidings.delivery.rows import encode, read
from tidings.domain.facts import Closed, DeliveryListener, Failing, Opened, Recovered
from tidings.domain.notifications.address import Device, url_origin
from tidings.domain.notifications.circuit_breaker import Breaker, BreakerState, Terms, opened, state_at, tried, untried
from tidings.domain.notifications.delivery import Accepted, Broken, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.tables import SHARED
from tidings.ports.tables import ChangeGroup, Put, Remove, RowChange, RowKey, Tables

FRESH_US = 500_000
RETENTION_US = 3_600_000_000  # a breaker that nobody needed for an hour is deleted, and so closed
TRIES_MAX = 8
BREAKERS_MAX = 10_000  # in memory

_CLOSED: tuple[int, Breaker | None, int] = (-FRESH_US, None, 0)


@lru_cache(BREAKERS_MAX)
def breaker_key(provider: str, tenant: str, channel: ChannelName, address: str | Device) -> RowKey:
    """A provider has one breaker, which all tenants share. Webhooks have one for each receiver (scheme, host and port)
    of each tenant, so that a failing receiver does not stop other webhooks."""
    if channel == "webhook" and isinstance(address, str):
        return receiver_breaker_key(provider, tenant, url_origin(address))
    return provider_breaker_key(provider)


def provider_breaker_key(provider: str) -> RowKey:
    """The breaker of a whole provider."""
    return RowKey("circuit_breaker", SHARED, provider)


def receiver_breaker_key(provider: str, tenant: str, receiver: str) -> RowKey:
    """The breaker of one receiver of a tenant's webhooks."""
    return RowKey("circuit_breaker", tenant, f"{provider} {receiver}")


def breaker_put(key: RowKey, breaker: Breaker, expected: int) -> Put:
    """A breaker that is not closed."""
    until = max(breaker.until, breaker.trial_until) + RETENTION_US
    values = (breaker.reason, breaker.until, breaker.times, breaker.worker)
    return Put(key, encode(breaker), expected, values, until)


class CircuitBreakers:
    """The breakers as this worker knows them, and the failures that it has seen."""

    def __init__(self, tables: Tables, clock: Clock, worker: str, terms: Terms, listener: DeliveryListener) -> None:
        self._tables = tables
        self._clock = clock
        self._worker = worker
        self._terms = terms
        self._listener = listener
        self._failures: Counter[RowKey] = Counter()
        self._known: dict[RowKey, tuple[int, Breaker | None, int]] = {}  # when it was read, the breaker, its version
        self._opened: set[RowKey] = set()  # by this worker, and not seen closed since

    async def refresh(self, keys: Iterable[RowKey]) -> None:
        """Read those of these breakers again that were last read more than half a second ago."""
        since = self._clock.elapsed() - FRESH_US
        stale = [key for key in dict.fromkeys(keys) if self._known.get(key, _CLOSED)[0] <= since]
        if stale:
            await self._read(stale)

    def state(self, key: RowKey) -> tuple[BreakerState, int]:
        """Whether a provider is called now, and when to ask again; as of the last `refresh`."""
        _, breaker, _ = self._known.get(key, _CLOSED)
        return ("closed", 0) if breaker is None else state_at(breaker, self._clock.now())

    def is_closed(self, key: RowKey) -> bool:
        """Whether a provider works, as of the last `refresh`."""
        return self._known.get(key, _CLOSED)[1] is None

    def why(self, key: RowKey) -> str:
        """Why it is open, as far as this worker knows."""
        _, breaker, _ = self._known.get(key, _CLOSED)
        return "" if breaker is None else breaker.reason

    async def try_one(self, key: RowKey) -> bool:
        """Claim the trial call; False if another worker has it."""
        breaker, version = await self._current(key)
        if breaker is None:
            return True
        now = self._clock.now()
        if state_at(breaker, now)[0] != "due":
            return False
        return await self._change(key, tried(breaker, self._terms, self._worker, now), version)

    async def give_back(self, key: RowKey) -> None:
        """The message of the trial is not sent after all; the next one may be the trial, at once."""
        breaker, version = await self._current(key)
        if breaker is not None and breaker.worker == self._worker:
            await self._change(key, untried(breaker), version)

    @property
    def has_failures(self) -> bool:
        """Whether a call failed, and the same provider has not answered since."""
        return bool(self._failures)

    def is_news(self, key: RowKey, verdict: Verdict, *, trial: bool) -> bool:
        """Whether a verdict has to be given to `record`: a success of a closed breaker changes nothing."""
        return trial or not isinstance(verdict, Accepted) or key in self._failures

    async def record(self, key: RowKey, verdict: Verdict, *, trial: bool) -> None:
        """Count the result of a call. Only a trial closes a breaker: other calls may have begun before it opened.

        A failure of the message alone is neither a failure nor a success of the provider: then the next message makes
        the trial.
        """
        if isinstance(verdict, Broken):
            await self._open(key, verdict.reason, verdict.detail, is_ours=True, trial=trial)
        elif isinstance(verdict, Temporary | Permanent) and not verdict.concerns_provider:
            if trial:
                await self.give_back(key)
        elif isinstance(verdict, Temporary) and verdict.is_provider_failure:
            if len(self._failures) >= BREAKERS_MAX:
                self._failures.clear()
            self._failures[key] += 1
            if self._failures[key] == 1 and not trial and self.state(key)[0] == "closed":
                failing = Failing(self._clock.now(), key.name, verdict.reason, verdict.detail, self._terms.failures_max)
                self._listener(failing)
            if trial or self._failures[key] >= self._terms.failures_max:
                await self._open(key, verdict.reason, verdict.detail, is_ours=False, trial=trial)
        else:
            failures = self._failures.pop(key, 0)
            if trial:
                await self._close(key)
            elif failures and self.state(key)[0] == "closed":
                self._listener(Recovered(self._clock.now(), key.name, failures))

    async def _open(self, key: RowKey, reason: str, detail: str, *, is_ours: bool, trial: bool) -> None:
        for _ in range(TRIES_MAX):
            before, version = await self._current(key)
            now = self._clock.now()
            if before is not None and state_at(before, now)[0] != "due" and not (trial and now >= before.until):
                return  # another worker has opened it
            after = opened(before, self._terms, reason, now, detail)
            if await self._change(key, after, version):
                self._failures.pop(key, None)
                if len(self._opened) >= BREAKERS_MAX:
                    self._opened.clear()
                self._opened.add(key)
                self._listener(Opened(now, key.name, reason, detail, after.until, is_ours))
                return

    async def _close(self, key: RowKey) -> None:
        for _ in range(TRIES_MAX):
            breaker, version = await self._current(key)
            if breaker is None or await self._change(key, None, version):
                self._opened.add(key)  # reported here once, whoever opened or closed it
                self._seen_closed(key)
                return

    def _seen_closed(self, key: RowKey) -> None:
        """Report that it works again, if this worker reported that it does not."""
        if key in self._opened:
            self._opened.discard(key)
            self._listener(Closed(self._clock.now(), key.name))

    async def _current(self, key: RowKey) -> tuple[Breaker | None, int]:
        await self._read([key])
        _, breaker, version = self._known[key]
        return breaker, version

    async def _change(self, key: RowKey, after: Breaker | None, version: int) -> bool:
        """Write a breaker over the one of this version; None removes it. It is known at once, and read again soon."""
        change: RowChange = Remove(key, version) if after is None else breaker_put(key, after, version)
        [result] = await self._tables.commit([ChangeGroup((change,))], self._clock.now())
        if result.version:
            self._known[key] = (_CLOSED[0], after, 0)
        return bool(result.version)

    async def _read(self, keys: list[RowKey]) -> None:
        found = await self._tables.get(keys, self._clock.now())
        elapsed = self._clock.elapsed()
        if len(self._known) >= BREAKERS_MAX:
            self._known.clear()
        for key, row in zip(keys, found, strict=True):
            self._known[key] = (elapsed, None, 0) if row is None else (elapsed, read(row, Breaker), row.version)
            if row is None:
                self._seen_closed(key)

"""Rate limits and circuit breakers as tests ask them: one answer for each message."""

import asyncio

from tidings.delivery.limits.circuit_breaker import CircuitBreakers
from tidings.delivery.limits.rate_limit import RateLimiter
from tidings.domain.notifications.circuit_breaker import BreakerState
from tidings.domain.schedules.command import Command, Outcome
from tidings.ports.tables import RowKey
from tidings.timeline.memory.tables import MemoryTables


def tables() -> MemoryTables:
    """Tables beside which there is no timeline."""

    def apply(command: Command, now: int) -> Outcome:
        raise AssertionError(f"{command} at {now}: limits do not change the timeline")

    return MemoryTables(apply)


def ask(
    limiter: RateLimiter, provider: str, tenant: str, *, high: bool = False, returning: bool = False
) -> "asyncio.Future[int | None]":
    """The answer: None if the message may go, otherwise from when on it may."""
    answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    limiter.enter(provider, tenant, answer.set_result, high=high, returning=returning)
    return answer


async def state(breakers: CircuitBreakers, key: RowKey) -> tuple[BreakerState, int]:
    """The state of a breaker as a worker knows it, which reads it at most twice a second."""
    await breakers.refresh([key])
    return breakers.state(key)

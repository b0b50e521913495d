"""Commits claims and transitions, a batch in one transaction each.

What goes back to the timeline is committed together with the delivery's row: neither is there without the other.
"""

from collections.abc import Awaitable, Callable, Container, Sequence

from tidings.delivery.rows import RETENTION_US, delivery_put, notification_key, provider_message_put, user_key
from tidings.delivery.worker.context import DeliveryContext
from tidings.delivery.worker.transition import Transition
from tidings.domain.notifications.delivery import Delivery
from tidings.ports.tables import ChangeGroup, GroupResult, RowChange, Unchanged

Commit = Callable[[Sequence[ChangeGroup]], Awaitable[list[GroupResult]]]


class DeliveryWriter:
    """Writes deliveries with compare-and-set. `retention_us` is how long a settled one can be looked up.

    Only the ids of providers in `receipts_from` are stored for the receipts about them; None: those of all.
    """

    def __init__(
        self, commit: Commit, retention_us: int = RETENTION_US, receipts_from: Container[str] | None = None
    ) -> None:
        self._commit = commit
        self._retention_us = retention_us
        self._receipts_from = receipts_from

    async def claim(self, claims: Sequence[tuple[DeliveryContext, Delivery]]) -> list[int]:
        """Claim deliveries; the version of each row, 0 if another worker changed it since it was loaded, or if its
        notification or user was changed or removed: once that was answered, nothing is claimed by what was before.
        """
        groups = [
            ChangeGroup(
                (
                    *require_unchanged(context),
                    *_require_same_user(context),
                    self._put(context, delivery, context.version),
                )
            )
            for context, delivery in claims
        ]
        return [result.version for result in await self._commit(groups)]

    async def settle(
        self, settlements: Sequence[tuple[DeliveryContext, Transition, int]], now: int
    ) -> list[GroupResult]:
        """Write transitions, each with its command; `version` is that of the row as it was claimed or loaded."""
        return await self._commit([self._settlement(*each, now) for each in settlements])

    def _settlement(self, context: DeliveryContext, transition: Transition, version: int, now: int) -> ChangeGroup:
        delivery, tenant = transition.delivery, context.tenant
        known = self._receipts_from
        accepted = dict.fromkeys(each for each in transition.accepted if known is None or each.provider in known)
        kept_us = self._retention_us
        messages = (
            provider_message_put(tenant, delivery, each.provider, each.id, now, each.row_version, retention_us=kept_us)
            for each in accepted
        )
        unchanged: tuple[RowChange, ...] = ()
        if transition.entry is not None:  # this is its claim, too: it is written only while all is as it was loaded
            assert context.user is not None, "only a user has an inbox"
            unchanged = (*require_unchanged(context), *_require_same_user(context), transition.entry)
        elif not version:  # a new row must not outlive an erased person
            unchanged = require_unchanged(context)
        if delivery.is_held:
            unchanged = (*unchanged, *_require_same_user(context))
        changes: tuple[RowChange, ...] = (*unchanged, *messages, self._put(context, delivery, version))
        return ChangeGroup(changes, transition.command(context))

    def _put(self, context: DeliveryContext, delivery: Delivery, version: int) -> RowChange:
        return delivery_put(context.tenant, delivery, version, self._retention_us)


def _require_same_user(context: DeliveryContext) -> tuple[Unchanged, ...]:
    """The condition that the user is as they were loaded: their preferences, quiet hours and addresses decide."""
    if context.user is None:
        return ()
    return (Unchanged(user_key(context.tenant, context.user.id), context.user_version),)


def require_unchanged(context: DeliveryContext) -> tuple[Unchanged, ...]:
    """The condition that the notification still exists as it was loaded."""
    if context.notification_version is None:
        return ()
    return (Unchanged(notification_key(context.tenant, context.notification.id), context.notification_version),)

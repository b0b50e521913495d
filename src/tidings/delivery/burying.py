"""Addresses that a provider says are dead: a device is taken from its user, any other is suppressed."""

import msgspec

from tidings.clock import Clock
from tidings.delivery.deciding import Address, Case
from tidings.delivery.filing import notification_key, read, suppressed_keys, user_key, user_put
from tidings.delivery.suppressions import Suppressions
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.user import User
from tidings.ports import DocumentStore, Unchanged

TRIES_MAX = 20


class Burying:
    """Done again it changes nothing, so that it may be done before the delivery is settled."""

    def __init__(self, cabinet: DocumentStore, clock: Clock) -> None:
        self._cabinet = cabinet
        self._clock = clock
        self._suppressions = Suppressions(cabinet, clock)

    async def bury(self, case: Case, address: Address, reason: str) -> None:
        """Send nothing there any more."""
        user = case.notification.user
        if user is not None and isinstance(address, Device):
            await self._forget_device(case.tenant, user, address)
        elif case.noted is None:
            await self._suppressions.add(case.tenant, case.channel, address, reason, user=user)
        else:
            await self._suppress(case, address, reason)

    async def _suppress(self, case: Case, address: Address, reason: str) -> None:
        """The user may have been erased while it was sent: then their address must not be written down again."""
        keys = [
            notification_key(case.tenant, case.notification.id),
            *suppressed_keys(case.tenant, case.channel, address),
        ]
        for _ in range(TRIES_MAX):
            noted, *known = await self._cabinet.get(keys, self._clock.now())
            if any(known):
                return
            if noted is None:
                await self._suppressions.add_nameless(case.tenant, case.channel, address, reason)
                return
            resting, user = Unchanged(noted.key, noted.version), case.notification.user
            if await self._suppressions.add(case.tenant, case.channel, address, reason, user=user, resting=resting):
                return

    async def _forget_device(self, tenant: str, user_id: str, device: Device) -> None:
        key = user_key(tenant, user_id)
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            [there] = await self._cabinet.get([key], now)
            user = None if there is None else read(there, User)
            if there is None or user is None or device not in user.devices:
                return
            left = tuple(each for each in user.devices if each != device)
            change = user_put(tenant, msgspec.structs.replace(user, devices=left), there.version)
            [done] = await self._cabinet.change([[change]], now)
            if done:
                return

"""Users: who can be told something, kept under the tenant's own ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidings.clock import Clock
from tidings.delivery.filing import ALL, read, tags_of_address, user_key, user_put
from tidings.delivery.profile import Profile, check_id, merged, profile_of, user_of
from tidings.delivery.reading import convert
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.user import KIND, User
from tidings.ports import ANY, DocumentStore, Remove

PAGE_MAX = 1_000
TRIES_MAX = 20
SAME_ADDRESS_MAX = 100


class StoredUser(msgspec.Struct, frozen=True):
    """A user, and the version that a change may expect."""

    user: User
    version: int
    created: bool = False


class UserPage(msgspec.Struct, frozen=True):
    """Some users by id, and where to go on (None: that was all)."""

    users: tuple[User, ...]
    cursor: str | None


class Users:
    """Puts, finds and removes users."""

    def __init__(self, cabinet: DocumentStore, clock: Clock) -> None:
        self._cabinet = cabinet
        self._clock = clock

    async def put(
        self, tenant: str, user_id: str, profile: Profile | Mapping[str, Any], expected: int | None = None
    ) -> StoredUser:
        """Create a user or replace their profile; 0 as `expected` refuses one that exists."""
        asked = profile if isinstance(profile, Profile) else convert(profile, Profile)
        user = user_of(user_id, asked)
        for _ in range(TRIES_MAX):
            [there] = await self._cabinet.get([user_key(tenant, user_id)], self._clock.now())
            version = 0 if there is None else there.version
            _check_expected(user_id, expected, version)
            if await self._try_put(tenant, user, version):
                return await self._stored(tenant, user_id, created=there is None)
        raise _busy(user_id)

    async def patch(
        self, tenant: str, user_id: str, changes: Mapping[str, Any], expected: int | None = None
    ) -> StoredUser | None:
        """Change single fields (RFC 7396: null removes one, objects are merged); None if there is no such user."""
        check_id(user_id)
        for _ in range(TRIES_MAX):
            [there] = await self._cabinet.get([user_key(tenant, user_id)], self._clock.now())
            if there is None:
                return None
            _check_expected(user_id, expected, there.version)
            profile = convert(merged(profile_of(read(there, User)), changes), Profile)
            if await self._try_put(tenant, user_of(user_id, profile), there.version):
                return await self._stored(tenant, user_id)
        raise _busy(user_id)

    async def get(self, tenant: str, user_id: str) -> StoredUser | None:
        """One user, None if there is none of this id."""
        [there] = await self._cabinet.get([user_key(tenant, user_id)], self._clock.now())
        return None if there is None else StoredUser(read(there, User), there.version)

    async def several(self, tenant: str, user_ids: Sequence[str]) -> list[User | None]:
        """Users in this order, None where there is none."""
        found = await self._cabinet.get([user_key(tenant, user_id) for user_id in user_ids], self._clock.now())
        return [None if there is None else read(there, User) for there in found]

    async def with_address(self, tenant: str, channel: ChannelName, address: str) -> list[User]:
        """Those who have this mailbox or number, however it is written."""
        users: dict[str, User] = {}
        for tag in tags_of_address(channel, address):
            found = await self._cabinet.find(tenant, KIND, tag, self._clock.now(), limit=SAME_ADDRESS_MAX)
            users |= {there.key.name: read(there, User) for there in found}
        return list(users.values())

    async def page(self, tenant: str, prefix: str = "", cursor: str | None = None, limit: int = 100) -> UserPage:
        """Users whose ids begin so, by id. The cursor is the last id of the page before."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("limit", f"must be between 1 and {PAGE_MAX}")
        start = cursor if cursor is not None else _before(prefix)
        after = None if start is None else (0, start)
        found = await self._cabinet.find(tenant, KIND, ALL, self._clock.now(), after=after, limit=limit + 1)
        users = [read(there, User) for there in found if there.key.name.startswith(prefix)]
        more = len(found) > limit and len(users) > limit
        return UserPage(tuple(users[:limit]), users[limit - 1].id if more else None)

    async def delete(self, tenant: str, user_id: str, expected: int | None = None) -> bool:
        """Delete a user and keep their notifications; False if there is none. `Erasing` removes everything."""
        [there] = await self._cabinet.get([user_key(tenant, user_id)], self._clock.now())
        if there is None:
            return False
        _check_expected(user_id, expected, there.version)
        remove = Remove(there.key, ANY if expected is None else there.version)
        [done] = await self._cabinet.change([[remove]], self._clock.now())
        if not done:
            raise _stale(user_id)
        return True

    async def _try_put(self, tenant: str, user: User, version: int) -> bool:
        [done] = await self._cabinet.change([[user_put(tenant, user, version)]], self._clock.now())
        return bool(done)

    async def _stored(self, tenant: str, user_id: str, *, created: bool = False) -> StoredUser:
        there = await self.get(tenant, user_id)
        if there is None:
            raise _busy(user_id)
        return StoredUser(there.user, there.version, created)


def _check_expected(user_id: str, expected: int | None, version: int) -> None:
    if expected is not None and expected != version:
        raise _stale(user_id)


def _stale(user_id: str) -> Conflict:
    return Conflict(f"the user {user_id!r} was changed in the meantime: get it again and retry")


def _busy(user_id: str) -> Conflict:
    return Conflict(f"the user {user_id!r} is being changed by other requests: try again")


def _before(prefix: str) -> str | None:
    """A name just before all that begin so; ids have nothing behind `~`."""
    return prefix[:-1] + chr(ord(prefix[-1]) - 1) + "\x7f" if prefix else None

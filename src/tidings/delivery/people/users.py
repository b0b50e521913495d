"""Users: who can be told something, kept under the tenant's own ids.

What waits for a user follows a change of their profile before it is answered: a delivery that waits for the end of
their quiet hours is looked at again, and notifications in their local time move to their new time zone. A worker
defers or claims a delivery, and a notification is accepted, only while the user is as they were read. So nothing is
decided by the former profile after the change. A message that is already claimed may still be sent.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec

from tidings.clock import Clock
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.people.profile import Profile, check_id, merged, profile_of, user_of
from tidings.delivery.rows import (
    address_digests,
    change,
    delivery_put,
    notification_key,
    position_of,
    read,
    user_key,
    user_put,
)
from tidings.delivery.worker.job import retry_id, retry_schedule
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.notifications.delivery import Delivery, Step, remembered
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.domain.notifications.quiet_hours import quiet_until
from tidings.domain.notifications.tables import (
    DELIVERIES_HELD,
    NOTIFICATIONS_BY_LOCAL_TIME,
    USERS,
    USERS_BY_EMAIL,
    USERS_BY_PHONE,
    Index,
)
from tidings.domain.notifications.user import User, accepts
from tidings.domain.schedules.command import CONTENT_BYTES, FINISHED, Add, Cancel, Replace
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.reschedule import zone_of
from tidings.domain.schedules.schedule import Schedule, unpack
from tidings.ports import WebhookCheck, any_webhook
from tidings.ports.tables import ANY, ChangeGroup, Remove, Row, RowPosition, Tables, Unchanged
from tidings.shapes.refusal import convert

PAGE_MAX = 1_000
TRIES_MAX = 20
SAME_ADDRESS_MAX = 100
SLICE = 200  # of the consequences of a change, in one transaction
LOOK_UPS_MAX = 20  # at a time
CHANGED = "profile_changed"  # why a delivery is looked at again


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

    def __init__(
        self, tables: Tables, schedules: NotificationEngine, clock: Clock, webhook_check: WebhookCheck = any_webhook
    ) -> None:
        self._tables = tables
        self._clock = clock
        self._check = webhook_check
        self._changes = ProfileChanges(tables, schedules, clock)

    async def put(
        self, tenant: str, user_id: str, profile: Profile | Mapping[str, Any], expected: int | None = None
    ) -> StoredUser:
        """Create a user or replace their profile; 0 as `expected` refuses one that exists."""
        asked = profile if isinstance(profile, Profile) else convert(profile, Profile)
        user = user_of(user_id, asked, self._check)
        for _ in range(TRIES_MAX):
            [there] = await self._tables.get([user_key(tenant, user_id)], self._clock.now())
            version = 0 if there is None else there.version
            _check_expected(user_id, expected, version)
            if await self._try_put(tenant, user, there):
                return await self._stored(tenant, user_id, created=there is None)
        raise _busy(user_id)

    async def patch(
        self, tenant: str, user_id: str, changes: Mapping[str, Any], expected: int | None = None
    ) -> StoredUser | None:
        """Change single fields (RFC 7396: null removes one, objects are merged); None if there is no such user."""
        check_id(user_id)
        for _ in range(TRIES_MAX):
            [there] = await self._tables.get([user_key(tenant, user_id)], self._clock.now())
            if there is None:
                return None
            _check_expected(user_id, expected, there.version)
            profile = convert(merged(profile_of(read(there, User)), changes), Profile)
            check = self._check if "webhook" in changes else any_webhook  # the settings may have changed since
            if await self._try_put(tenant, user_of(user_id, profile, check), there):
                return await self._stored(tenant, user_id)
        raise _busy(user_id)

    async def get(self, tenant: str, user_id: str) -> StoredUser | None:
        """One user, None if there is none of this id."""
        [there] = await self._tables.get([user_key(tenant, user_id)], self._clock.now())
        return None if there is None else StoredUser(read(there, User), there.version)

    async def several(self, tenant: str, user_ids: Sequence[str]) -> list[User | None]:
        """Users in this order, None where there is none."""
        found = await self._tables.get([user_key(tenant, user_id) for user_id in user_ids], self._clock.now())
        return [None if there is None else read(there, User) for there in found]

    async def with_address(self, tenant: str, channel: ChannelName, address: str) -> list[User]:
        """Those who have this mailbox or number, however it is written."""
        users: dict[str, User] = {}
        index = USERS_BY_EMAIL if channel == "email" else USERS_BY_PHONE
        for key in address_digests(channel, address):
            found = await self._tables.find(index, tenant, (key,), self._clock.now(), limit=SAME_ADDRESS_MAX)
            users |= {there.key.name: read(there, User) for there in found}
        return list(users.values())

    async def page(self, tenant: str, prefix: str = "", cursor: str | None = None, limit: int = 100) -> UserPage:
        """Users whose ids begin so, by id. The cursor is the last id of the page before."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("limit", f"must be between 1 and {PAGE_MAX}")
        start = cursor if cursor is not None else _before(prefix)
        after = None if start is None else (0, start)
        found = await self._tables.find(USERS, tenant, (), self._clock.now(), after=after, limit=limit + 1)
        users = [read(there, User) for there in found if there.key.name.startswith(prefix)]
        more = len(found) > limit and len(users) > limit
        return UserPage(tuple(users[:limit]), users[limit - 1].id if more else None)

    async def delete(self, tenant: str, user_id: str, expected: int | None = None) -> bool:
        """Delete a user and keep their notifications; False if there is none. `Erasing` removes everything."""
        [there] = await self._tables.get([user_key(tenant, user_id)], self._clock.now())
        if there is None:
            return False
        _check_expected(user_id, expected, there.version)
        remove = Remove(there.key, ANY if expected is None else there.version)
        [done] = await change(self._tables, [[remove]], self._clock.now())
        if not done:
            raise _stale(user_id)
        return True

    async def _try_put(self, tenant: str, user: User, there: Row | None) -> bool:
        return await self._changes.commit(tenant, [(there, user)]) == [True]

    async def _stored(self, tenant: str, user_id: str, *, created: bool = False) -> StoredUser:
        there = await self.get(tenant, user_id)
        if there is None:
            raise _busy(user_id)
        return StoredUser(there.user, there.version, created)


def concerns_pending(before: User | None, user: User) -> bool:
    """Whether a change of a profile may concern what waits for the user.

    What waits for a user who was deleted waits for the one who is created again. A request that changes nothing may be
    a repeated one: the first may have been interrupted before everything followed.
    """
    if before is None or before == user:
        return True
    return (before.zone, before.quiet, before.preferences) != (user.zone, user.quiet, user.preferences)


class _Change(msgspec.Struct, frozen=True):
    """One thing that follows from a changed profile. `outdated` is the schedule that it makes superfluous."""

    group: ChangeGroup
    outdated: str | None = None


class ProfileChanges:
    """Commits profiles, and then what follows from them for pending notifications and deliveries.

    The consequences are committed in slices, so that other writers have their turn between them, and only while the
    user has the version that was written: the next change has its own consequences. If the process ends in between,
    a delivery that was not reached is decided on at its former time, by the present profile. A notification in local
    time stays in its former zone until the next change, or the same request once more: the answer was not sent.
    """

    def __init__(self, tables: Tables, schedules: NotificationEngine, clock: Clock) -> None:
        self._tables = tables
        self._schedules = schedules
        self._clock = clock

    async def commit(self, tenant: str, changes: Sequence[tuple[Row | None, User]]) -> list[bool]:
        """Write users whose rows are these; False where a row was changed meanwhile. The rest stays as it is then."""
        puts = [ChangeGroup((user_put(tenant, user, 0 if row is None else row.version),)) for row, user in changes]
        results = await self._schedules.commit(puts)
        written = [(row, user, result.version) for (row, user), result in zip(changes, results, strict=True)]
        concerned = [
            (user, version) for row, user, version in written if version and concerns_pending(_user_in(row), user)
        ]
        if len(concerned) > 1:
            concerned = await self._with_pending(tenant, concerned)
        for user, version in concerned:
            await self._follow(tenant, user, version)
        return [bool(version) for _, _, version in written]

    async def _with_pending(self, tenant: str, users: Sequence[tuple[User, int]]) -> list[tuple[User, int]]:
        """Those for whom something waits that may follow."""
        now, ids = self._clock.now(), [(user.id,) for user, _ in users]
        held = await self._tables.exist(DELIVERIES_HELD, tenant, ids, now)
        local = await self._tables.exist(NOTIFICATIONS_BY_LOCAL_TIME, tenant, ids, now)
        return [each for each, is_held, is_local in zip(users, held, local, strict=True) if is_held or is_local]

    async def _follow(self, tenant: str, user: User, version: int) -> None:
        """Commit what follows from a profile; what was changed meanwhile is looked at again."""
        for _ in range(TRIES_MAX):
            is_done = True
            async for some in self._following(tenant, user, version):
                is_done = await self._commit_slice(tenant, some) and is_done
            if is_done:
                return
            [there] = await self._tables.get([user_key(tenant, user.id)], self._clock.now())
            if there is None or there.version != version:
                return  # the change that came after this one looks at everything

    async def _commit_slice(self, tenant: str, changes: Sequence[_Change]) -> bool:
        """Whether nothing was changed meanwhile. What is refused is on its way to a worker, which decides."""
        results = await self._schedules.commit([each.group for each in changes])
        done = [each for each, result in zip(changes, results, strict=True) if result.version]
        outdated = [Cancel(tenant, each.outdated, with_deliveries=True) for each in done if each.outdated is not None]
        if outdated:
            await self._schedules.submit(outdated)
        return all(result.version or result.outcome is not None for result in results)

    async def _following(self, tenant: str, user: User, version: int) -> AsyncIterator[list[_Change]]:
        """What has to change so that it fits a user, in slices; it is done only while the user has this version."""
        same = Unchanged(user_key(tenant, user.id), version)
        async for rows in self._rows(DELIVERIES_HELD, tenant, user.id):
            if held := await self._held(tenant, user, same, rows):
                yield held
        async for rows in self._rows(NOTIFICATIONS_BY_LOCAL_TIME, tenant, user.id):
            if moved := await self._moved(tenant, user, same, rows):
                yield moved

    async def _rows(self, index: Index, tenant: str, user: str) -> AsyncIterator[list[Row]]:
        after: RowPosition | None = None
        while found := await self._tables.find(index, tenant, (user,), self._clock.now(), after=after, limit=SLICE):
            yield found
            if len(found) < SLICE:
                return
            after = position_of(found[-1])

    async def _held(self, tenant: str, user: User, same: Unchanged, rows: Sequence[Row]) -> list[_Change]:
        """Of deliveries that wait for the end of the quiet hours, those that would now wait for another moment."""
        now = self._clock.now()
        deliveries = [read(row, Delivery) for row in rows]
        keys = [notification_key(tenant, each.notification) for each in deliveries]
        changes: list[_Change] = []
        for row, delivery, stored in zip(rows, deliveries, await self._tables.get(keys, now), strict=True):
            notification = None if stored is None else read(stored, Notification)
            if stored is None or notification is None or _still_waits(delivery, notification, user, now):
                continue
            again = _due_now(delivery, now)
            channel = notification.channels.index(delivery.channel) if delivery.channel in notification.channels else 0
            job = DeliveryJob(notification.id, delivery=delivery.name, channel=channel, attempt=again.turn)
            rows_changed = (same, Unchanged(stored.key, stored.version), delivery_put(tenant, again, row.version))
            group = ChangeGroup(rows_changed, retry_schedule(tenant, notification, job, now))
            changes.append(_Change(group, retry_id(delivery.name, delivery.turn)))
        return changes

    async def _moved(self, tenant: str, user: User, same: Unchanged, rows: Sequence[Row]) -> list[_Change]:
        """Of pending notifications in the user's local time, those that are in another time zone."""
        schedules: list[Schedule | None] = []
        for start in range(0, len(rows), LOOK_UPS_MAX):
            some = rows[start : start + LOOK_UPS_MAX]
            schedules += await asyncio.gather(*(self._schedules.find(tenant, row.key.name) for row in some))
        changes: list[_Change] = []
        for row, schedule in zip(rows, schedules, strict=True):
            if schedule is None or schedule.state in FINISHED:
                continue
            command = _in_zone(schedule, user.zone, row.version)
            if command is not None:
                changes.append(_Change(ChangeGroup((same, Unchanged(row.key, row.version)), command)))
        return changes


def _user_in(row: Row | None) -> User | None:
    return None if row is None else read(row, User)


def _still_waits(delivery: Delivery, notification: Notification, user: User, now: int) -> bool:
    """Whether the present profile makes a delivery wait for the same moment."""
    quiet = user.quiet
    if quiet is None or quiet.then != "defer" or (quiet.spares_high and notification.priority == "high"):
        return False
    if delivery.channel is None or not accepts(user, notification.category, delivery.channel):
        return False
    return quiet_until(quiet, user.zone, now) == delivery.next_try


def _due_now(delivery: Delivery, now: int) -> Delivery:
    """The delivery with its next turn now: a worker decides on it by the present profile."""
    step = Step(now, "pending", delivery.channel, reason=CHANGED, until=now)
    return msgspec.structs.replace(
        remembered(delivery, step), reason=CHANGED, turn=delivery.turn + 1, next_try=now, changed=now
    )


def _in_zone(schedule: Schedule, zone: str, version: int) -> Replace | None:
    """The command that moves a pending schedule to another time zone; None if it is there already."""
    if schedule.when is None or schedule.message is None or (zone_of(schedule.when) or "UTC") == zone:
        return None
    key = unpack(schedule.message).key
    add = Add(
        tenant=schedule.tenant,
        id=schedule.id,
        topic=schedule.topic,
        when=schedule.when,
        message=schedule.message,
        content=blake2b(f"{schedule.id} {version} {zone}".encode(), digest_size=CONTENT_BYTES).digest(),
        due=schedule.due,
        priority=schedule.priority,
        lateness=schedule.lateness or Lateness(),
        labels=schedule.labels,
        key_hash=None if key is None else crc32(key),
        jitter_window_us=schedule.jitter_window_us,
    )
    return Replace(add, with_deliveries=True, zone=zone)


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

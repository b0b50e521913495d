"""Changes notifications that are pending: their content, their recipient, their time; pauses and resumes them.

The row of a notification and the command for its schedule are committed together, and a worker claims a delivery only
while the row is as it was loaded: once a change is answered, nothing is sent with the former content.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec

from tidings.clock import Clock
from tidings.delivery.accept.acceptance import Acceptance, Prepared
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.notifications.status import StatusReader, all_deliveries, names_of, occurrence_of
from tidings.delivery.rows import (
    RETENTION_US,
    delivery_key,
    delivery_put,
    generation_of,
    notification_key,
    notification_put,
    read,
    recipient,
    user_key,
)
from tidings.delivery.worker.job import retry_id
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.names import OutcomeWord, Policy
from tidings.domain.names import State as ScheduleState
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import PREFIX, DeliveryJob, Notification
from tidings.domain.notifications.user import User
from tidings.domain.schedules.command import (
    CONTENT_BYTES,
    FINISHED,
    NO_CONTENT,
    Add,
    Cancel,
    Outcome,
    Pause,
    Replace,
    Resume,
)
from tidings.domain.schedules.lateness import Lateness
from tidings.domain.schedules.reschedule import at_time_of, check_new_time, is_same, zone_of
from tidings.domain.schedules.schedule import Message, Schedule, pack
from tidings.domain.schedules.when import SECOND_US, Once, is_once
from tidings.ports.tables import ON_TIMELINE, ChangeGroup, Row, RowChange, Tables, Unchanged
from tidings.shapes.fields import current_names_at
from tidings.shapes.fields import names_of as fields_of
from tidings.shapes.refusal import convert, unknown_field
from tidings.shapes.schedule import When

TRIES_MAX = 20
TIME = frozenset({*fields_of(When), "count"})
# Fields that exclude each other: where one is changed, the stored ones are dropped.
ALTERNATIVES = (
    frozenset({"channel", "channels", "spread"}),
    frozenset({"user", "to"}),
    frozenset({"content", "words", "template", "version", "variables"}),
)
DEDUPE = frozenset({"dedupe_key", "dedupe_window"})
LATEST = 50  # deliveries of a recurring one among which are those that workers are sending
_BEGUN = ("created", "content", "generation", "is_local")  # what a change of a released one does not count as a change


class ChangeOutcome(Outcome, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What a change did, with the recipient and the channels of the notification, and the time zone of its time."""

    user: str | None = None
    channels: tuple[ChannelName, ...] = ()
    zone: str | None = None


class _Current(msgspec.Struct, frozen=True):
    """A notification as it stands. `released` are the deliveries of a released one, with their rows if it has them."""

    row: Row
    stored: Notification
    schedule: Schedule | None
    released: dict[str, tuple[Row, Delivery] | None] = {}

    @property
    def is_pending(self) -> bool:
        """Whether its schedule is pending or paused."""
        return self.schedule is not None and self.schedule.state not in FINISHED

    @property
    def is_waiting(self) -> bool:
        """Whether it was released and nothing of it was sent: it waits for a worker, or was deferred by one."""
        found = [None if each is None else each[1] for each in self.released.values()]
        return bool(found) and all(each is None or is_untried(each) for each in found)

    def until(self) -> int | None:
        """When the next of its deferred deliveries is tried."""
        tries = [each[1].next_try for each in self.released.values() if each is not None]
        return min((each for each in tries if each is not None), default=None)


class NotificationChanges:
    """Replaces, patches, pauses and resumes; the outcomes are those of schedules.

    One that was released and of which nothing was sent is taken back: its deliveries are cancelled in the same
    transaction in which its next generation begins, or nothing is done if a worker was first.
    """

    def __init__(
        self,
        tables: Tables,
        schedules: NotificationEngine,
        acceptance: Acceptance,
        clock: Clock,
        retention_us: int = RETENTION_US,
    ) -> None:
        self._tables = tables
        self._schedules = schedules
        self._acceptance = acceptance
        self._clock = clock
        self._retention_us = retention_us
        self._status = StatusReader(tables, schedules, clock)

    async def replace(
        self, tenant: str, notification_id: str, request: NotificationRequest, *, reuse: bool = False
    ) -> Outcome:
        """Store a notification under this id, instead of the pending one if there is one.

        `reuse` begins again with an id whose notification was cancelled or has ended. Raises `Invalid`.
        """
        named = _named(request, notification_id)
        for _ in range(TRIES_MAX):
            current = await self._find(tenant, notification_id)
            stored = None if current is None else current.stored
            prepared = await self._acceptance.prepare(tenant, named, reuse=reuse, stored=stored)
            if current is None:
                outcome = await self._add(prepared, reuse=reuse)
            elif (refused := await self._refused(current, reuse=reuse)) is not None:
                return refused
            elif _is_same(current, prepared):
                return _told(_unchanged(current), prepared)
            else:
                outcome = await self._commit(current, prepared, reuse=reuse)
            if outcome is not None:
                return outcome
        raise _busy(notification_id)

    async def patch(self, tenant: str, notification_id: str, changes: Mapping[str, Any]) -> Outcome:
        """Change only the given fields of a pending notification; None removes one. Raises `Invalid`.

        A field that says when replaces all of them. Without one the time stays, and a recurring one continues.
        """
        check_new_time(changes, TIME)
        for _ in range(TRIES_MAX):
            current = await self._find(tenant, notification_id)
            if current is None:
                return Outcome(notification_id, "unknown")
            if (refused := await self._refused(current)) is not None:
                return refused
            prepared = await self._patched(current, changes)
            if _keeps_all(current, prepared):
                return _told(_unchanged(current), prepared)
            keep_count = not changes.keys() & TIME and current.is_pending and not is_once(prepared.command.when)
            outcome = await self._commit(current, prepared, keep_count=keep_count)
            if outcome is not None:
                return _with_zone_note(current, prepared, outcome, changes)
        raise _busy(notification_id)

    async def pause(self, tenant: str, notification_id: str) -> Outcome:
        """Hold a pending notification until it is resumed."""
        for _ in range(TRIES_MAX):
            current = await self._find(tenant, notification_id)
            if current is None:
                return Outcome(notification_id, "unknown")
            if (refused := await self._refused(current)) is not None:
                return refused
            if current.is_pending:
                [outcome] = await self._schedules.submit([Pause(tenant, notification_id)])
                return await self._with_in_flight(current.stored, outcome)
            taken = await self._commit(current, await self._held(current), paused=True)
            if taken is not None:
                return Outcome(notification_id, "paused", taken.due) if taken.outcome == "replaced" else taken
        raise _busy(notification_id)

    async def _with_in_flight(self, stored: Notification, outcome: Outcome) -> Outcome:
        """The answer to a pause, with the latest occurrence that was released before and is still on its way."""
        if outcome.outcome != "paused" or outcome.in_flight is not None:
            return outcome
        known = await all_deliveries(self._tables, stored.tenant, stored.id, self._clock.now(), LATEST)
        open_ones = [each for each in known if not each.is_settled]
        if not open_ones:
            return outcome
        number = occurrence_of(stored, open_ones[-1].name)
        note = f"occurrence {number} was released before and may still be sent: cancel the notification to stop it"
        return msgspec.structs.replace(outcome, in_flight=number, note=note)

    async def resume(self, tenant: str, notification_id: str, missed: Policy | None = None) -> Outcome:
        """Continue with a paused one; `missed` decides on what was due meanwhile."""
        current = await self._find(tenant, notification_id)
        if current is None:
            return Outcome(notification_id, "unknown")
        if (refused := await self._refused(current)) is not None:
            return refused
        if not current.is_pending:
            return _unchanged(current)
        [outcome] = await self._schedules.submit([Resume(tenant, notification_id, missed)])
        return outcome

    async def _find(self, tenant: str, notification_id: str) -> _Current | None:
        now = self._clock.now()
        [row] = await self._tables.get([notification_key(tenant, notification_id)], now)
        if row is None:
            return None
        stored = read(row, Notification)
        schedule = await self._schedules.find(tenant, notification_id)
        if schedule is not None and not schedule.topic.startswith(PREFIX):
            schedule = None  # it belongs to somebody else
        if schedule is None or schedule.state not in {"released", "ended"} or stored.cancelled is not None:
            return _Current(row, stored, schedule)
        if await self._status.current(stored) is None:  # it is over, and its deliveries have expired
            return _Current(row, stored, schedule)
        names = names_of(stored, schedule.occurrence, schedule.generation)
        if schedule.state == "ended":  # it cannot begin again while an earlier occurrence is on its way
            known = await all_deliveries(self._tables, tenant, notification_id, now)
            if any(not each.is_settled and each.name not in names for each in known):
                return _Current(row, stored, schedule)
        rows = await self._tables.get([delivery_key(tenant, name) for name in names], now)
        found = [None if each is None else (each, read(each, Delivery)) for each in rows]
        return _Current(row, stored, schedule, dict(zip(names, found, strict=True)))

    async def _refused(self, current: _Current, *, reuse: bool = False) -> Outcome | None:
        """Why it cannot be changed any more, if so; with `reuse`, why its id cannot be used again yet."""
        stored = current.stored
        if current.is_pending or current.is_waiting:
            return None
        if not reuse:
            return _over(current)
        known = await all_deliveries(self._tables, stored.tenant, stored.id, self._clock.now())
        if all(each.is_settled for each in known) and all(current.released.values()):
            return None
        return Outcome(stored.id, "in_flight", reason="it is not settled yet: try again later")

    async def _patched(self, current: _Current, changes: Mapping[str, Any]) -> Prepared:
        """The notification with the changes, and the command for its schedule, at its time unless that changes."""
        stored, schedule = current.stored, current.schedule
        assert schedule is not None, "what can be changed has a schedule"
        request = _named(_request(stored, schedule, changes), stored.id)
        try:
            prepared = await self._acceptance.prepare(stored.tenant, request, stored=stored)
        except Invalid as invalid:
            raise _with_channel(invalid, stored, changes) from None
        if changes.keys() & TIME:
            return prepared
        if current.is_pending:
            command = at_time_of(prepared.command, schedule, new_jitter="jitter" in changes)
        else:  # it was released in time, so only its expiry counts from there
            lateness = Lateness(expires_after_us=stored.expires_after_us)
            past = msgspec.structs.replace(schedule, when=Once(schedule.due), occurrence=1)
            command = msgspec.structs.replace(at_time_of(prepared.command, past), lateness=lateness)
        own = prepared.notification
        is_local = current.is_pending and stored.is_local and own.user == stored.user
        own = msgspec.structs.replace(own, is_local=is_local)  # what was released has an instant, not a local time
        return msgspec.structs.replace(prepared, notification=own, command=command)

    async def _held(self, current: _Current) -> Prepared:
        """A released one as it was accepted. Nothing of it is checked again, so that it can always be stopped."""
        stored, schedule = current.stored, current.schedule
        assert schedule is not None, "what was released has a schedule"
        key = recipient(stored).encode()
        command = Add(
            tenant=stored.tenant,
            id=stored.id,
            topic=schedule.topic,
            when=Once(schedule.due),
            message=pack(Message(key, msgspec.json.encode(DeliveryJob(stored.id)))),
            content=NO_CONTENT,
            due=schedule.due,
            priority=schedule.priority,
            lateness=Lateness(expires_after_us=stored.expires_after_us),
            labels=schedule.labels,
            key_hash=crc32(key),
        )
        keys = [] if stored.user is None else [user_key(stored.tenant, stored.user)]
        users = await self._tables.get(keys, self._clock.now()) if keys else [None]
        return Prepared(msgspec.structs.replace(stored, is_local=False), command, users[0])

    async def _add(self, prepared: Prepared, *, reuse: bool) -> Outcome | None:
        own, command = prepared.notification, prepared.command
        schedule = await self._schedules.find(own.tenant, own.id) if reuse else None
        if schedule is None or schedule.state not in FINISHED or not schedule.topic.startswith(PREFIX):
            return await self._apply(ChangeGroup((*_condition(prepared), notification_put(own, 0)), command), prepared)
        generation = await self._next_generation(own, schedule)
        own = msgspec.structs.replace(own, generation=generation)
        replace = Replace(command, reuse=True, with_deliveries=True, generation_min=generation)
        return await self._apply(ChangeGroup((*_condition(prepared), notification_put(own, 0)), replace), prepared)

    async def _next_generation(self, stored: Notification, schedule: Schedule | None) -> int:
        """The generation with which an id begins again: its deliveries are known for longer than its schedule."""
        known = await all_deliveries(self._tables, stored.tenant, stored.id, self._clock.now())
        used = [generation_of(stored.id, each.name) for each in known]
        return max(1, stored.generation, 0 if schedule is None else schedule.generation, *used) + 1

    async def _commit(
        self,
        current: _Current,
        prepared: Prepared,
        *,
        reuse: bool = False,
        keep_count: bool = False,
        paused: bool = False,
    ) -> Outcome | None:
        """Commit the new row with the new schedule; None if a row was changed meanwhile."""
        own, row, takes_back = prepared.notification, current.row, current.is_waiting
        generation = current.stored.generation
        if not current.is_pending:
            generation = await self._next_generation(current.stored, current.schedule)
        own = msgspec.structs.replace(own, generation=generation)
        if not reuse or takes_back:
            own = msgspec.structs.replace(own, created=current.stored.created)
        command = msgspec.structs.replace(prepared.command, content=_content(own, row.version))
        replace = Replace(
            command,
            reuse or takes_back,
            keep_count,
            with_deliveries=True,
            paused=paused,
            generation_min=max(1, generation),
        )
        taken = current.released if takes_back else await self._former(current, own)
        changes = self._taken_back(own.tenant, taken, "paused" if paused else "replaced")
        group = ChangeGroup((*_condition(prepared), *changes, notification_put(own, row.version)), replace)
        outcome = await self._apply(group, prepared)
        if outcome is None or outcome.outcome not in ON_TIMELINE:
            return outcome
        retries = [retry_id(each[1].name, each[1].turn) for each in taken.values() if each is not None]
        await self._schedules.submit([Cancel(own.tenant, each, with_deliveries=True) for each in retries])
        if takes_back:
            return msgspec.structs.replace(outcome, outcome="replaced")
        return await self._with_sending(current, outcome) if current.is_pending else outcome

    async def _former(self, current: _Current, own: Notification) -> dict[str, tuple[Row, Delivery] | None]:
        """Earlier occurrences that wait for another attempt, if they are not for the recipient that it has now."""
        stored, now = current.stored, self._clock.now()
        if not current.is_pending or (own.user, own.to) == (stored.user, stored.to):
            return {}
        known = await all_deliveries(self._tables, own.tenant, own.id, now)
        names = [each.name for each in known if each.state == "pending"]
        rows = await self._tables.get([delivery_key(own.tenant, name) for name in names], now) if names else []
        found = [(row, read(row, Delivery)) for row in rows if row is not None]
        return {each.name: (row, each) for row, each in found if each.state == "pending"}

    async def _with_sending(self, current: _Current, outcome: Outcome) -> Outcome:
        """The outcome, with the occurrence of a recurring one that a worker is sending at this moment."""
        stored, schedule = current.stored, current.schedule
        if schedule is None or schedule.when is None or is_once(schedule.when):
            return outcome
        known = await all_deliveries(self._tables, stored.tenant, stored.id, self._clock.now(), LATEST)
        sending = [each.name for each in known if each.state == "processing"]
        if not sending:
            return outcome
        return msgspec.structs.replace(outcome, in_flight=occurrence_of(stored, sending[-1]))

    def _taken_back(
        self, tenant: str, taken: Mapping[str, tuple[Row, Delivery] | None], reason: str
    ) -> list[RowChange]:
        """Cancel deliveries, on condition that no worker has begun with one."""
        now = self._clock.now()
        changes: list[RowChange] = []
        for name, known in taken.items():
            if known is None:
                changes.append(Unchanged(delivery_key(tenant, name), 0))
                continue
            row, before = known
            gone = msgspec.structs.replace(before, state="cancelled", reason=reason, changed=now, next_try=None)
            changes.append(delivery_put(tenant, gone, row.version, self._retention_us))
        return changes

    async def _apply(self, group: ChangeGroup, prepared: Prepared) -> Outcome | None:
        [result] = await self._schedules.commit([group])
        outcome = result.outcome
        if outcome is not None and outcome.field is not None:
            raise outcome.invalid()
        return None if outcome is None else _told(outcome, prepared)


def is_untried(delivery: Delivery) -> bool:
    """Whether it is pending and no provider has, or may have, got it."""
    tried = any(each.ended is None or each.may_have_arrived for each in delivery.attempts)
    return delivery.state == "pending" and not tried and all(part.outcome != "accepted" for part in delivery.parts)


def _told(outcome: Outcome, prepared: Prepared) -> ChangeOutcome:
    own = prepared.notification
    zone = zone_of(prepared.command.when)
    return ChangeOutcome(**msgspec.structs.asdict(outcome), user=own.user, channels=own.channels, zone=zone)


def _with_zone_note(current: _Current, prepared: Prepared, outcome: Outcome, changes: Mapping[str, Any]) -> Outcome:
    """The outcome; if another user gets it at the local time of the former one, with a note that says so."""
    zone, user = zone_of(prepared.command.when), prepared.user
    if changes.keys() & TIME or zone is None or user is None or outcome.note is not None:
        return outcome
    if prepared.notification.user == current.stored.user or read(user, User).zone == zone:
        return outcome
    return msgspec.structs.replace(outcome, note=f"it keeps its time in {zone}: give its time too to change that")


def _named(request: NotificationRequest, notification_id: str) -> NotificationRequest:
    """The request for one recipient under this id; raises `Invalid` if it is not one."""
    if request.id not in {None, notification_id}:
        raise Invalid("id", f"differs from the id in the path, {notification_id!r}: leave it out")
    if request.users:
        raise Invalid("users", "cannot be given here: a notification has one recipient")
    for name in sorted(DEDUPE):
        if getattr(request, name) is not None:
            raise Invalid(name, "is only for new notifications: leave it out")
    return msgspec.structs.replace(request, id=notification_id)


def _request(stored: Notification, schedule: Schedule, changes: Mapping[str, Any]) -> NotificationRequest:
    """The stored notification as a request, with the changes. Its time is not in it, its lateness policy is."""
    for name in changes.keys() - set(fields_of(NotificationRequest)):
        raise unknown_field(name, current_names_at(NotificationRequest, ""))
    known: dict[str, Any] = {
        "user": stored.user,
        "to": stored.to,
        "channels": stored.channels,
        "spread": stored.spread,
        "template": stored.template,
        "version": stored.version,
        "variables": stored.variables or None,
        "content": stored.words,
        "priority": stored.priority,
        "category": stored.category,
        "locale": stored.locale,
        "collapse": stored.collapse,
        "batch": stored.batch,
        "expires_after": _duration(stored.expires_after_us),
        "jitter": _duration(schedule.jitter_window_us or None),
    }
    if schedule.lateness is not None:
        lateness = schedule.lateness
        known |= {"late": lateness.policy, "late_grace": _duration(lateness.grace_us)}
        known["late_max"] = _duration(lateness.max_us)
    if stored.template is not None and changes.keys() & {"variables", "version"} and "template" not in changes:
        same = {"template": stored.template, "version": stored.version, "variables": stored.variables}
        changes = same | dict(changes) | {"variables": _merged(stored.variables, changes)}
    for group in ALTERNATIVES:
        if changes.keys() & group:
            known = {name: value for name, value in known.items() if name not in group}
    merged = {name: value for name, value in (known | dict(changes)).items() if value is not None}
    _check_complete(merged, changes)
    return convert(msgspec.to_builtins(merged), NotificationRequest)


def _check_complete(merged: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse what leaves it without a recipient or content, by the field that was sent."""
    if not merged.keys() & {"user", "to", "users"}:
        field = "user" if "user" in changes else "to"
        raise Invalid(field, "cannot be removed: give another 'user', or 'to' with its 'channel'")
    if merged.keys() & {"template", "content", "words"}:
        return
    if changes.keys() & {"variables", "version"}:
        field = "variables" if "variables" in changes else "version"
        raise Invalid(field, "it has no template: change its 'content', or give a 'template'")
    field = next(name for name in ("content", "words", "template") if name in changes)
    raise Invalid(field, "cannot be removed: give other 'content', or a 'template'")


def _with_channel(invalid: Invalid, stored: Notification, changes: Mapping[str, Any]) -> Invalid:
    """The refusal; if only the address was changed and does not fit the channel, it names the channel."""
    if invalid.field != "to" or changes.get("to") is None or changes.keys() & {"channel", "channels"}:
        return invalid
    detail = f"is for the channel {stored.channels[0]}, but {invalid.detail}; for another channel give 'channel' too"
    return Invalid("to", detail, invalid.others)


def _merged(variables: Mapping[str, Any], changes: Mapping[str, Any]) -> Any:
    """The variables with those that change; None removes one."""
    given = changes.get("variables", {})
    if not isinstance(given, Mapping):
        return given  # None removes all; what is no object is refused with the rest
    return {name: value for name, value in {**variables, **given}.items() if value is not None}


def _duration(us: int | None) -> str | None:
    return None if us is None else f"PT{us // SECOND_US}.{us % SECOND_US:06}S"


def _condition(prepared: Prepared) -> tuple[RowChange, ...]:
    """Committed only while the user is as it was read: nothing may outlive an erased user."""
    user = prepared.user
    return () if user is None else (Unchanged(user.key, user.version),)


def _content(own: Notification, version: int) -> bytes:
    """A digest for the schedule that is never that of the schedule before: the job in its message is the same."""
    return blake2b(f"{own.content} {version}".encode(), digest_size=CONTENT_BYTES).digest()


def _is_same(current: _Current, prepared: Prepared) -> bool:
    """Whether the pending notification was asked for with the same request."""
    stored = current.stored
    is_there = (current.is_pending or current.is_waiting) and stored.cancelled is None
    return is_there and stored.content == prepared.notification.content


def _keeps_all(current: _Current, prepared: Prepared) -> bool:
    """Whether a change leaves everything as it is."""
    stored, schedule = current.stored, current.schedule
    kept = ("created", "content", "generation") if current.is_pending else _BEGUN
    same = {name: getattr(stored, name) for name in kept}
    own = msgspec.structs.replace(prepared.notification, **same)
    if own != stored or schedule is None:
        return False
    return is_same(prepared.command, schedule) if current.is_pending else prepared.command.due == schedule.due


def _unchanged(current: _Current) -> Outcome:
    schedule = current.schedule
    assert schedule is not None, "what is pending has a schedule"
    state: ScheduleState = schedule.state if current.is_pending else "pending"
    return Outcome(current.stored.id, "unchanged", current.until() or schedule.due, state)


def _over(current: _Current) -> Outcome:
    """Why it cannot be changed any more."""
    stored, schedule = current.stored, current.schedule
    if stored.first is not None:
        return Outcome(
            stored.id, "rejected", reason=f"it was skipped as a duplicate of {stored.first}: change that one"
        )
    due = None if schedule is None else schedule.due
    if stored.cancelled is not None or (schedule is not None and schedule.state == "cancelled"):
        return Outcome(stored.id, "cancelled", due, "cancelled")
    if schedule is not None and schedule.state == "missed":
        return Outcome(stored.id, "rejected", due, "missed", f"it was missed: {schedule.reason}")
    known = [each[1] for each in current.released.values() if each is not None]
    if any(each.state == "processing" for each in known):
        return Outcome(stored.id, "in_flight", due, reason="a worker is sending it (see its deliveries)")
    if (waiting := next((each for each in known if each.state == "pending"), None)) is not None:
        reason = _tried_again(stored, waiting, known)
        return Outcome(stored.id, "in_flight", due, reason=reason)
    return Outcome(stored.id, "already_released", due, None if schedule is None else schedule.state)


def _tried_again(stored: Notification, waiting: Delivery, known: Sequence[Delivery]) -> str:
    """That it can only be cancelled because a provider may have got it; of several channels, which is pending."""
    if stored.spread != "all":
        return f"a provider may have got it; it is tried again ({waiting.reason}) and can only be cancelled"
    gone = ", ".join(f"{each.channel} is {each.state}" for each in known if each.state != "pending")
    why = f" ({waiting.reason})" if waiting.reason else ""
    rest = f"; {gone}" if gone else ""
    return f"{waiting.name} is pending on {waiting.channel}{why}{rest}: it can only be cancelled"


def _busy(notification_id: str) -> Conflict:
    return Conflict(f"the notification {notification_id!r} is being changed by other requests: try again")


DONE: frozenset[OutcomeWord] = ON_TIMELINE | {"unchanged"}

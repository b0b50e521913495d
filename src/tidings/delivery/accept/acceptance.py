"""Accepts notifications: each is committed together with its schedule and its dedupe key, or not at all."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from secrets import token_hex

import msgspec

from tidings.clock import Clock
from tidings.delivery.accept.draft import Bulk, Draft, Plan, Recipient, Stencil, draft
from tidings.delivery.accept.dry_run import DryRun, Pace
from tidings.delivery.accept.request import (
    AcceptedColumns,
    AcceptResult,
    AcceptResults,
    NotificationRequest,
    PreparedResults,
    check,
    dedupe_window_us,
    rejected,
    scheduled,
    skipped,
    taken,
    without_known,
)
from tidings.delivery.engine import NotificationEngine
from tidings.delivery.notifications.status import Status, StatusReader
from tidings.delivery.people.unsubscribe import NO_LINK
from tidings.delivery.rows import (
    RETENTION_US,
    DedupeHolder,
    dedupe_key,
    dedupe_put,
    encode,
    notification_key,
    notification_put,
    read,
    user_key,
)
from tidings.delivery.templates import Compiled
from tidings.delivery.templates.repository import TemplateRepository
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.user import TRANSACTIONAL, User
from tidings.domain.schedules.command import Add
from tidings.domain.schedules.reschedule import zone_of
from tidings.ports import WebhookCheck, any_webhook
from tidings.ports.tables import ChangeGroup, GroupResult, Row, RowChange, RowKey, Tables, Unchanged

TRIES_MAX = 40
LOOK_UPS_MAX = 50  # at once
BULK_MIN = 16  # recipients of one request who are accepted in bulk
BULK_SLICE = 50
RANDOM_BYTES = 6  # of an id


class _Pending(msgspec.Struct):
    """The draft for one recipient on its way: the rows it depends on, and its result."""

    plan: Plan
    draft: Draft
    command: Add
    stored: Row | None = None
    holder: Row | None = None  # of its dedupe key
    user: Row | None = None
    first: str | None = None
    result: AcceptResult | None = None


class _Drafts(msgspec.Struct, frozen=True):
    """The recipients of a request: the results of those accepted in bulk, and by place a draft for each other one."""

    results: AcceptResults
    alone: dict[int, _Pending | Invalid]


_NO_DRAFTS = _Drafts(AcceptResults(0), {})


class PreparedBulk(msgspec.Struct):
    """Requests that differ only in their user, as far as they could be prepared in bulk."""

    tenant: str
    request: NotificationRequest
    users: Sequence[str]
    bulk: Bulk | None = None


class Prepared(msgspec.Struct, frozen=True):
    """A checked notification with the command for its schedule, and the row of its user."""

    notification: Notification
    command: Add
    user: Row | None


def made_ids(now: int, count: int) -> list[str]:
    """Unique ids that sort by time. The random parts of all come from one system call."""
    prefix, digits = f"n_{now:016d}_", token_hex(RANDOM_BYTES * count)
    width = 2 * RANDOM_BYTES
    return [prefix + digits[start : start + width] for start in range(0, len(digits), width)]


class Acceptance:
    """Accepts requests. `served` are the channels that a provider serves; None if that is not known here.

    `webhook_check` refuses URLs that are never called. `has_links` says that e-mail gets a link to unsubscribe, or that
    none leaves this machine.
    """

    def __init__(
        self,
        tables: Tables,
        schedules: NotificationEngine,
        templates: TemplateRepository,
        clock: Clock,
        make_ids: Callable[[int, int], list[str]] = made_ids,
        served: frozenset[ChannelName] | None = None,
        *,
        webhook_check: WebhookCheck = any_webhook,
        has_links: bool = True,
        retention_us: int = RETENTION_US,
    ) -> None:
        self._tables = tables
        self._schedules = schedules
        self._templates = templates
        self._clock = clock
        self._make_ids = make_ids
        self._served = served
        self._check_webhook = webhook_check
        self._has_links = has_links
        self._retention_us = retention_us
        self._heavy = asyncio.Lock()
        self._bulk = asyncio.Lock()
        self._status = StatusReader(tables, schedules, clock)

    def _check(self, request: NotificationRequest, stored: Notification | None = None) -> None:
        """Refuse what is wrong for every recipient; of a change of a stored one, what is changed."""
        check(request if stored is None else without_known(request, stored))
        is_new = stored is None or stored.to != request.to  # the settings may have changed since it was accepted
        if isinstance(request.to, str) and is_new and request.asked_channels() == ("webhook",):
            self._check_webhook(request.to, "to")

    async def accept(self, tenant: str, request: NotificationRequest, since: int | None = None) -> list[AcceptResult]:
        """Accept a notification for each recipient, in order, each with a result of its own.

        What is wrong for every recipient, or for the only one, is raised as `Invalid`. With several users the id is
        that of the batch, and each notification's id is `<id>:<user>`. `since` is when it was requested, if that was
        not now.
        """
        if not request.users and request.id is None and request.dedupe_key is None:
            return [await self._accept_new(tenant, request, since)]
        return [*await self.accept_list(tenant, request, since)]

    async def accept_list(self, tenant: str, request: NotificationRequest, since: int | None = None) -> AcceptResults:
        """The same, with the results of those who were accepted in bulk in columns."""
        [results] = await self.accept_many(tenant, [request], since)
        if isinstance(results, Invalid):
            raise results
        return results

    async def _accept_new(self, tenant: str, request: NotificationRequest, since: int | None) -> AcceptResult:
        """The same for one recipient, with an id and without a dedupe key that could be known: nothing is looked up."""
        self._check(request)
        plan = await self._plan(tenant, request, since, None)
        item = Recipient(plan, plan.name, request.user)
        if request.user is not None:
            item.row = (await self._rows(tenant, [request.user]))[request.user]
        pending = await self._try_draft(item, None)
        if isinstance(pending, Invalid):
            raise pending
        self._decide_new(pending)
        if pending.result is None:
            [result] = await self._schedules.commit([self._group(pending)])
            self._conclude(pending, result)
        if pending.result is None:  # the user was changed meanwhile
            await self._commit(tenant, [pending], Pace(self._clock))
        results = _results(plan, _Drafts(AcceptResults(1), {0: pending}))
        if isinstance(results, Invalid):
            raise results
        return results[0]

    async def accept_many(
        self, tenant: str, requests: Sequence[NotificationRequest], since: int | None = None
    ) -> list[AcceptResults | Invalid]:
        """Accept many requests, in order, with one look-up and one transaction; `Invalid` for each that is wrong."""
        pace = Pace(self._clock)
        dry_runs: dict[object, DryRun] | None = {} if len(requests) > 1 else None
        plans: list[Plan | Invalid] = []
        for request in requests:
            try:
                self._check(request)
                plans.append(await self._plan(tenant, request, since, dry_runs))
            except Invalid as invalid:
                plans.append(invalid)
            await pace.turn()
        rows = await self._load_users(tenant, plans)
        drafts = [_NO_DRAFTS if isinstance(plan, Invalid) else await self._drafts(plan, rows, pace) for plan in plans]
        pending = [each for some in drafts for each in some.alone.values() if isinstance(each, _Pending)]
        await self._commit(tenant, pending, pace)
        results: list[AcceptResults | Invalid] = []
        for plan, some in zip(plans, drafts, strict=True):
            results.append(plan if isinstance(plan, Invalid) else _results(plan, some))
            await pace.turn()
        return results

    async def _drafts(self, plan: Plan, rows: dict[str, Row | None], pace: Pace) -> _Drafts:
        """For each recipient of a request a draft, or the result if they were accepted in bulk."""
        users = plan.users
        ids = plan.ids
        found = [None if user is None else rows[user] for user in users]
        bulk = await self._prepare_bulk(plan, ids, found, pace)
        results = AcceptResults(len(ids), await self._commit_bulk(bulk))
        alone = {
            place: await self._try_draft(Recipient(plan, ids[place], users[place], found[place]), pace)
            for place in results.left
        }
        return _Drafts(results, alone)

    async def accept_bulk(
        self, tenant: str, request: NotificationRequest, users: Sequence[str]
    ) -> list[Sequence[AcceptResult] | Invalid | StoreError]:
        """Accept requests that differ only in their user, and have no id; the same as `accept_many`, but in bulk."""
        results = await self.accept_prepared(await self.prepare_bulk(tenant, request, users))
        return results.each(len(users))

    async def prepare_bulk(self, tenant: str, request: NotificationRequest, users: Sequence[str]) -> PreparedBulk:
        """Prepare such requests, so that only `accept_prepared` is left to do; nothing is stored yet."""
        prepared = PreparedBulk(tenant, request, users)
        with contextlib.suppress(Invalid):  # which says whose request is wrong
            self._check(request)
            plan = await self._plan(tenant, request, None, None)
            ids = self._make_ids(plan.now, len(users))
            rows = await self._rows(tenant, users)
            prepared.bulk = await self._prepare_bulk(plan, ids, [rows[user] for user in users], Pace(self._clock))
        return prepared

    async def accept_prepared(self, prepared: PreparedBulk) -> PreparedResults:
        """Accept what was prepared; a request that could not be is accepted by itself.

        If the store fails for these, they get its error, and the others their results.
        """
        columns: Sequence[AcceptedColumns] = () if prepared.bulk is None else await self._commit_bulk(prepared.bulk)
        left = AcceptResults(len(prepared.users), columns).left
        requests = [msgspec.structs.replace(prepared.request, user=prepared.users[place]) for place in left]
        others: Sequence[AcceptResults | Invalid | StoreError] = ()
        try:
            others = await self.accept_many(prepared.tenant, requests) if left else ()
        except StoreError as error:
            others = [error] * len(left)
        return PreparedResults(columns, dict(zip(left, others, strict=True)))

    async def prepare(
        self, tenant: str, request: NotificationRequest, *, reuse: bool = False, stored: Notification | None = None
    ) -> Prepared:
        """What would be stored for a request for one recipient; `Invalid` if it cannot be sent as it stands."""
        self._check(request, stored)
        plan = await self._plan(tenant, request, None, None)
        item = Recipient(plan, plan.name, request.user)
        if request.user is not None:
            item.row = (await self._rows(tenant, [request.user]))[request.user]
        pending = await self._try_draft(item, None)
        if isinstance(pending, Invalid):
            raise pending
        pending.command.check_past()
        command = msgspec.structs.replace(pending.command, reuse=reuse)
        return Prepared(pending.draft.notification, command, item.row)

    async def validate(self, tenant: str, request: NotificationRequest) -> Prepared | None:
        """Raise `Invalid` as `accept` would; what would be stored for the only recipient, None if there are several."""
        if not request.users:
            return await self.prepare(tenant, request)
        self._check(request)
        await self._plan(tenant, request, None, {})
        return None

    async def has(self, tenant: str, request: NotificationRequest) -> bool:
        """Whether this very request was accepted before for its only recipient, whatever its result would be now."""
        try:
            check(request)  # what is never valid is not looked up: not every store accepts every name
        except Invalid:
            return False
        if request.id is None or request.users:
            return False
        [row] = await self._tables.get([notification_key(tenant, request.id)], self._clock.now())
        return row is not None and read(row, Notification).content == request.digest()

    async def _plan(
        self, tenant: str, request: NotificationRequest, since: int | None, dry_runs: dict[object, DryRun] | None
    ) -> Plan:
        now = self._clock.now()
        name = request.id or self._make_ids(now, 1)[0]
        batch = name if request.users and request.batch is None else request.batch
        compiled, pinned = None, None
        if request.template is not None:
            version = request.version if isinstance(request.version, int) else None
            compiled = await self._templates.compiled(tenant, request.template, version)
            if compiled is None and version is not None:
                raise Invalid(
                    "version", f"the template {request.template!r} has no version {version}: choose one of its versions"
                )
            if compiled is None:
                raise Invalid("template", f"unknown template {request.template!r}: create it first")
            pinned = None if request.version is None else compiled.template.version
        return Plan(
            request=request,
            tenant=tenant,
            now=now,
            content=request.digest(),
            name=name,
            batch=batch,
            dry_run=_dry_run(tenant, request, compiled, dry_runs),
            template=compiled,
            pinned=pinned,
            served=self._served,
            since=since,
        )

    async def _load_users(self, tenant: str, plans: Sequence[Plan | Invalid]) -> dict[str, Row | None]:
        """The rows of the users of all requests, from one read."""
        users = [user for plan in plans if isinstance(plan, Plan) for user in plan.users if user is not None]
        return await self._rows(tenant, users) if users else {}

    async def _rows(self, tenant: str, users: Sequence[str]) -> dict[str, Row | None]:
        names = list(dict.fromkeys(users))
        rows = await self._tables.get([user_key(tenant, name) for name in names], self._clock.now())
        return dict(zip(names, rows, strict=True))

    async def _prepare_bulk(self, plan: Plan, ids: Sequence[str], rows: Sequence[Row | None], pace: Pace) -> Bulk:
        """Prepare those recipients of a request who need no decision of their own. One request at a time is prepared,
        in slices, so that the event loop waits for no more than one slice."""
        bulk = Bulk(plan, self._schedules)
        if len(ids) < BULK_MIN or plan.request.dedupe_key is not None:
            return bulk
        known = await self._known_ids(plan, ids)
        async with self._heavy if plan.is_heavy else self._bulk:
            for start in range(0, len(ids), BULK_SLICE):
                places = range(start, min(start + BULK_SLICE, len(ids)))
                some = [(place, ids[place], rows[place]) for place in places if ids[place] not in known]
                if plan.is_heavy:
                    await asyncio.to_thread(bulk.add_all, some)
                else:
                    bulk.add_all(some)
                    await pace.turn(BULK_SLICE)
        return bulk

    async def _commit_bulk(self, bulk: Bulk) -> list[AcceptedColumns]:
        """The results of the recipients in the bulk, but for those whose rows changed or whose schedule was refused."""
        groups, columns, start = bulk.groups(), list[AcceptedColumns](), 0
        results = await self._schedules.commit(groups) if groups else ()
        for each in bulk.stencils:
            end = start + len(each.places)
            columns += self._columns(bulk.plan, each, results[start:end])
            start = end
        return columns

    def _columns(self, plan: Plan, stencil: Stencil, results: Sequence[GroupResult]) -> Iterator[AcceptedColumns]:
        """The results of a stencil; all in the same columns, unless their times differ."""
        zone = None if stencil.form is None else stencil.form.zone
        times = [
            (done.outcome.due, done.outcome.note) if done.version and done.outcome is not None else None
            for done in results
        ]
        for time in dict.fromkeys(times):
            if time is None:
                continue
            due, note = time[0], self._note(time[1], plan.request.category, stencil.channels)
            shared = AcceptResult("", "scheduled", None, due, stencil.channels, zone=zone, batch=plan.batch, note=note)
            is_then = [each == time for each in times]
            yield AcceptedColumns(
                shared,
                [*compress(stencil.places, is_then)],
                [*compress(stencil.names, is_then)],
                [*compress(stencil.users, is_then)],
            )

    async def _known_ids(self, plan: Plan, ids: Sequence[str]) -> set[str]:
        """The ids that are known already. One that was made just now cannot be known."""
        if plan.request.id is None:
            return set()
        keys = [notification_key(plan.tenant, each) for each in ids]
        return {row.key.name for row in await self._tables.get(keys, self._clock.now()) if row is not None}

    async def _try_draft(self, item: Recipient, pace: Pace | None) -> _Pending | Invalid:
        """Draft the notification for one recipient. What takes long to render is rendered in a thread, one at a time.

        Each distinct result is rendered once; between short ones other tasks get their turn.
        """
        try:
            if item.plan.is_heavy:
                async with self._heavy:
                    return await asyncio.to_thread(self._draft, item)
            drafted = self._draft(item)
        except Invalid as invalid:
            return invalid
        if pace is not None:
            await pace.turn()
        return drafted

    def _draft(self, item: Recipient) -> _Pending:
        plan, row = item.plan, item.row
        if item.user is not None and row is None:
            raise _unknown_user(plan, item.user)
        made = draft(plan, item.id, None if row is None else read(row, User))
        command = self._schedules.command(plan.tenant, made.request, plan.now, for_delivery=True)
        expires_after_us = command.lateness.expires_after_us
        if expires_after_us != made.notification.expires_after_us:  # its time has passed: part of it is used up
            shorter = msgspec.structs.replace(made.notification, expires_after_us=expires_after_us)
            made = msgspec.structs.replace(made, notification=shorter)
        return _Pending(plan, made, command, user=row)

    async def _commit(self, tenant: str, drafts: Sequence[_Pending], pace: Pace) -> None:
        """Commit the drafts in one transaction; those whose rows changed meanwhile are decided again."""
        is_first = True
        for _ in range(TRIES_MAX):
            drafts = [each for each in drafts if each.result is None]
            if not drafts:
                return
            await self._look_up(tenant, drafts, with_users=not is_first)
            is_first = False
            await self._decide_all(drafts)
            groups: list[ChangeGroup] = []
            ready = [each for each in drafts if each.result is None]
            for each in ready:
                groups.append(self._group(each))
                await pace.turn()
            if groups:
                for each, result in zip(ready, await self._schedules.commit(groups), strict=True):
                    self._conclude(each, result)
                    await pace.turn()
        raise StoreError("other requests hold the same ids or dedupe keys: try again")

    async def _decide_all(self, drafts: Sequence[_Pending]) -> None:
        """Decide on each; what is known under its id or dedupe key is looked up for many at once."""
        known = [each for each in drafts if each.stored is not None or each.holder is not None]
        for each in drafts:
            if each.stored is None and each.holder is None:
                self._decide_new(each)
        for start in range(0, len(known), LOOK_UPS_MAX):
            await asyncio.gather(*map(self._decide, known[start : start + LOOK_UPS_MAX]))

    async def _look_up(self, tenant: str, drafts: Sequence[_Pending], *, with_users: bool) -> None:
        """Read what a draft depends on. An id that was made just now cannot be known; users were read before."""
        wanted: list[tuple[_Pending, RowKey | None, RowKey | None, RowKey | None]] = []
        for each in drafts:
            own, request = each.draft.notification, each.plan.request
            if request.id is None and request.dedupe_key is None and not with_users:
                continue
            wanted.append(
                (
                    each,
                    None if request.id is None and not with_users else notification_key(tenant, own.id),
                    None if request.dedupe_key is None else dedupe_key(tenant, request.dedupe_key, each.draft.whom),
                    user_key(tenant, own.user) if with_users and own.user is not None else None,
                )
            )
        keys = list(dict.fromkeys(key for _, *several in wanted for key in several if key is not None))
        found = dict(zip(keys, await self._tables.get(keys, self._clock.now()), strict=True)) if keys else {}
        for each, stored, holder, user in wanted:
            each.stored = None if stored is None else found[stored]
            each.holder = None if holder is None else found[holder]
            if user is not None:
                each.user = found[user]
                self._follow_zone(each)
            each.first = None

    def _follow_zone(self, pending: _Pending) -> None:
        """Draft it again if the user has moved to another time zone since it was drafted."""
        own, timing = pending.draft.notification, pending.draft.request.timing
        if pending.user is None or not own.is_local or timing is None or timing.zone == read(pending.user, User).zone:
            return
        try:
            again = self._draft(Recipient(pending.plan, own.id, own.user, pending.user))
        except Invalid as invalid:
            pending.result = rejected(own.id, own.user, invalid)
        else:
            pending.draft, pending.command = again.draft, again.command

    async def _decide(self, pending: _Pending) -> None:
        """The result of a repeat or a duplicate; without a result it is to be committed."""
        own = pending.draft.notification
        if pending.stored is not None:
            stored = read(pending.stored, Notification)
            if stored.first is not None:
                is_same = stored.content == own.content
                pending.result = skipped(own, stored.first) if is_same else taken(own, "skipped")
                return
            status = await self._status.current(stored)
            if status is not None:
                pending.result = _repeated(own, status)
                return
        self._decide_new(pending)
        if pending.result is None and pending.holder is not None:
            first = read(pending.holder, DedupeHolder).notification
            if first != own.id and await self._holds(own.tenant, first):
                pending.first = first

    def _decide_new(self, pending: _Pending) -> None:
        """Reject one whose user is gone, or whose time must not be in the past."""
        own = pending.draft.notification
        if own.user is not None and pending.user is None:
            pending.result = rejected(own.id, own.user, _unknown_user(pending.plan, own.user))
        elif pending.command.past_refusal is not None:
            pending.result = rejected(own.id, own.user, Invalid("at", pending.command.past_refusal))

    async def _holds(self, tenant: str, first: str) -> bool:
        """Whether the first notification of a dedupe key is there: if it was cancelled or erased, the key is free."""
        [row] = await self._tables.get([notification_key(tenant, first)], self._clock.now())
        return row is not None and not await self._status.is_cancelled(read(row, Notification))

    def _group(self, pending: _Pending) -> ChangeGroup:
        """Committed only while the user is as it was read: nothing may outlive an erased user."""
        plan, own = pending.plan, pending.draft.notification
        version = 0 if pending.stored is None else pending.stored.version
        changes: list[RowChange] = []
        if pending.user is not None:
            changes.append(Unchanged(pending.user.key, pending.user.version))
        if pending.first is not None:  # stored without its content, so that it can be looked up
            bare = msgspec.structs.replace(own, variables={}, words=None, first=pending.first)
            return ChangeGroup((*changes, notification_put(bare, version, plan.now + self._retention_us)))
        if plan.request.dedupe_key is not None:
            key = dedupe_key(plan.tenant, plan.request.dedupe_key, pending.draft.whom)
            expected = 0 if pending.holder is None else pending.holder.version
            changes.append(dedupe_put(key, own, expected, plan.now + dedupe_window_us(plan.request)))
        return ChangeGroup((*changes, notification_put(own, version)), pending.command)

    def _conclude(self, pending: _Pending, result: GroupResult) -> None:
        """The result of a commit; none if the rows changed meanwhile."""
        own = pending.draft.notification
        if result.version and pending.first is not None:
            pending.result = skipped(own, pending.first)
        elif result.version and result.outcome is not None:
            note = self._note(result.outcome.note, own.category, own.channels)
            pending.result = msgspec.structs.replace(scheduled(own, result.outcome), note=note)
        elif result.outcome is not None:
            pending.result = scheduled(own, result.outcome)

    def _note(self, note: str | None, category: str, channels: Sequence[ChannelName]) -> str | None:
        """The note on a time, and another if the recipient will not be able to unsubscribe."""
        if self._has_links or category == TRANSACTIONAL or "email" not in channels:
            return note
        return NO_LINK if note is None else f"{note}; {NO_LINK}"


def _unknown_user(plan: Plan, name: str) -> Invalid:
    field = "users" if plan.request.users else "user"
    return Invalid(field, f"unknown user {name!r}: create it first, or give an address as 'to'")


def _repeated(own: Notification, status: Status) -> AcceptResult:
    stored = status.notification
    if stored.content != own.content:
        return taken(own, status.state)
    return AcceptResult(
        own.id, "unchanged", own.user, status.due, stored.channels, batch=stored.batch, state=status.state
    )


def _results(plan: Plan, drafts: _Drafts) -> AcceptResults | Invalid:
    """The result for each recipient; what is wrong for the only one is the result of the request."""
    results, users, ids = drafts.results, plan.users, plan.ids
    for place, drafted in drafts.alone.items():
        if isinstance(drafted, Invalid):
            if not plan.request.users:
                return drafted
            results.alone[place] = rejected(ids[place], users[place], drafted)
            continue
        result = drafted.result
        assert result is not None, "every draft has a result"
        if result.outcome == "rejected" and not plan.request.users:
            return Invalid(result.field or "at", result.reason or "")
        zone = zone_of(drafted.command.when)
        results.alone[place] = result if zone is None else msgspec.structs.replace(result, zone=zone)
    return results


def _dry_run(
    tenant: str, request: NotificationRequest, compiled: Compiled | None, known: dict[object, DryRun] | None
) -> DryRun:
    """The dry run of a request; requests that say the same share one. One for an address is checked with it."""
    if request.to is not None or known is None:
        return DryRun(tenant, request, compiled)
    template = None if compiled is None else (request.template, compiled.template.version)
    said = (request.variables, request.inline(), request.locale, request.collapse, request.content is None)
    key = (template, encode(said))
    if key not in known:
        known[key] = DryRun(tenant, request, compiled)
    return known[key]

"""Accepts notifications: the document first, then the schedule. Who was not told so has nothing to rely on.

A crash between the two leaves a document without a schedule: it is not shown, gives way to whoever comes under its id
or its dedupe key, and is swept in the end.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal
from uuid import uuid4

import msgspec

from tidings.clock import Clock
from tidings.delivery.asking import Notify, check, dedupe_window_us
from tidings.delivery.drafting import Draft, Plan, draft
from tidings.delivery.filing import (
    DAY_US,
    KEPT_US,
    Held,
    by_user,
    dedupe_key,
    encode,
    notification_key,
    notification_put,
    read,
    user_key,
)
from tidings.delivery.gathering import Gathering
from tidings.delivery.knowing import Knowing
from tidings.delivery.proving import Proving
from tidings.delivery.schedules import Schedules
from tidings.delivery.status import Status
from tidings.delivery.unsubscribe import NO_LINK
from tidings.delivery.users import Users
from tidings.delivery.versions import Templates
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.user import TRANSACTIONAL, User
from tidings.domain.schedules.command import FINISHED, Add, Outcome
from tidings.domain.schedules.reschedule import zone_of
from tidings.ports import Change, Document, DocumentStore, Key, Put, Remove, Unchanged

TRIES_MAX = 40
LOOK_AGAIN_S = 0.05
UNFINISHED_US = 10_000_000  # a request that has not scheduled by then what it wrote has died
OTHER_CONTENT = "the id belongs to a notification with other content"

Groups = Sequence[Sequence[Change]]
Word = Literal["scheduled", "unchanged", "skipped", "rejected", "conflict"]


class Accepted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a request for one person. `first` is the notification that a duplicate would repeat.

    `rejected` names the `field` at fault; `conflict` is an id that belongs to something else. `note` is what to know
    of its time, such as that clocks jump over it. `state` is how that stands which an `unchanged` one repeats.
    """

    id: str
    outcome: Word
    user: str | None = None
    due: int | None = None
    channels: tuple[ChannelName, ...] = ()
    reason: str | None = None
    field: str | None = None
    first: str | None = None
    zone: str | None = None  # whose clocks its time follows
    batch: str | None = None
    note: str | None = None
    state: State | None = None


class _Case(msgspec.Struct):
    """One person's draft on its way: what is there already, and what came of it."""

    draft: Draft
    command: Add
    there: Document | None = None
    held: Document | None = None
    person: Document | None = None
    first: str | None = None
    answer: Accepted | None = None
    written: bool = False
    version: int = 0  # of the document that was written


def made_id(now: int) -> str:
    """An id that nobody else makes, and that sorts by time."""
    return f"n_{now:016d}_{uuid4().hex[:12]}"


class Notifying:
    """Takes requests to tell somebody something. `served` are the channels that a provider serves; None: who knows.

    `has_links` says that e-mail gets a link to unsubscribe, or that none leaves this machine.
    """

    def __init__(
        self,
        cabinet: DocumentStore,
        schedules: Schedules,
        users: Users,
        templates: Templates,
        clock: Clock,
        make_id: Callable[[int], str] = made_id,
        served: frozenset[ChannelName] | None = None,
        *,
        has_links: bool = True,
    ) -> None:
        self._cabinet = cabinet
        self._schedules = schedules
        self._users = users
        self._templates = templates
        self._clock = clock
        self._make_id = make_id
        self._served = served
        self._has_links = has_links
        self._knowing = Knowing(cabinet, schedules, clock)
        self._changes: Gathering[Groups, list[int]] = Gathering(self._change)

    async def accept(self, tenant: str, ask: Notify, since: int | None = None) -> list[Accepted]:
        """Accept a notification for each person that it is for, in order, each with an answer of its own.

        What is wrong for everybody, or for the only one, is raised as `Invalid`. With several users the id is that of
        the batch, and each notification's is `<id>:<user>`. `since` is when it was asked, if that was not just now.
        """
        check(ask)
        plan = await self._plan(tenant, ask, since)
        cases: list[_Case | Accepted] = []
        for notification_id, name, user, missing in await self._people(tenant, plan):
            renderings = plan.proving.renderings
            try:
                if missing is not None:
                    raise missing
                cases.append(self._case(plan, notification_id, user))
            except Invalid as invalid:
                if not ask.users:
                    raise
                cases.append(_rejected(notification_id, name, invalid))
            if ask.users and plan.proving.renderings > renderings:
                await asyncio.sleep(0)  # each may take a while: others have a turn in between
        await self._take([case for case in cases if isinstance(case, _Case)], plan)
        return [case if isinstance(case, Accepted) else _answer(case, plan) for case in cases]

    async def has(self, tenant: str, ask: Notify) -> bool:
        """Whether just this was accepted before for its only person, whatever would be said of it today."""
        try:
            check(ask)  # what could never be right is not looked up either: not every store takes any name
        except Invalid:
            return False
        if ask.id is None or ask.users:
            return False
        [there] = await self._cabinet.get([notification_key(tenant, ask.id)], self._clock.now())
        kept = None if there is None else read(there, Notification)
        if kept is None or kept.content != ask.digest():
            return False
        return kept.cancelled is not None or await self._knowing.due(kept) is not None

    async def _plan(self, tenant: str, ask: Notify, since: int | None) -> Plan:
        now = self._clock.now()
        name = ask.id or self._make_id(now)
        batch = name if ask.users and ask.batch is None else ask.batch
        if ask.template is None:
            return Plan(
                ask, tenant, now, ask.digest(), batch, Proving(tenant, ask, None), None, None, self._served, since
            )
        version = ask.version if isinstance(ask.version, int) else None
        compiled = await self._templates.compiled(tenant, ask.template, version)
        if compiled is None:
            if version is not None:
                raise Invalid(
                    "version", f"the template {ask.template!r} has no version {version}: choose one of its versions"
                )
            raise Invalid("template", f"unknown template {ask.template!r}: create it first")
        pinned = None if ask.version is None else compiled.template.version
        proving = Proving(tenant, ask, compiled)
        return Plan(ask, tenant, now, ask.digest(), batch, proving, compiled, pinned, self._served, since)

    async def _people(self, tenant: str, plan: Plan) -> list[tuple[str, str | None, User | None, Invalid | None]]:
        """Each user with the id of their notification; an unknown one with the reason."""
        ask = plan.ask
        if ask.to is not None:
            return [(ask.id or self._make_id(plan.now), None, None, None)]
        names = ask.users or ((ask.user,) if ask.user is not None else ())
        found = await self._users.several(tenant, names)
        own = ask.id or (plan.batch if ask.users and ask.batch is None else self._make_id(plan.now))
        return [
            (
                f"{own}:{name}" if ask.users else str(own),
                name,
                user,
                _nobody(plan, name) if user is None else None,
            )
            for name, user in zip(names, found, strict=True)
        ]

    def _case(self, plan: Plan, notification_id: str, user: User | None) -> _Case:
        made = draft(plan, notification_id, user)
        command = self._schedules.command(plan.tenant, made.request, plan.now)
        expires_after_us = command.lateness.expires_after_us
        if expires_after_us != made.notification.expires_after_us:  # its time has passed: part of it is used up
            shorter = msgspec.structs.replace(made.notification, expires_after_us=expires_after_us)
            made = msgspec.structs.replace(made, notification=shorter)
        return _Case(made, command)

    async def _take(self, cases: Sequence[_Case], plan: Plan) -> None:
        """Write down and schedule; whoever was faster under the same id or key is looked at again."""
        open_cases = list(cases)
        for attempt in range(TRIES_MAX):
            open_cases = [case for case in open_cases if case.answer is None]
            if not open_cases:
                return
            if attempt:
                await asyncio.sleep(LOOK_AGAIN_S)
            await self._look(open_cases, plan)
            await asyncio.gather(*(self._judge(case, plan) for case in open_cases))
            ready = [case for case in open_cases if case.answer is None and case.written]
            await self._write(ready, plan)
            await self._schedule([case for case in ready if case.written and case.first is None], plan)
        raise StoreError("other requests hold the same ids or dedupe keys: try again")

    async def _look(self, cases: Sequence[_Case], plan: Plan) -> None:
        looked_at = [_keys(case, plan) for case in cases]
        keys = list(dict.fromkeys(key for each in looked_at for key in each if key is not None))
        found = dict(zip(keys, await self._cabinet.get(keys, self._clock.now()), strict=True))
        for case, each in zip(cases, looked_at, strict=True):
            case.there, case.held, case.person = (None if key is None else found[key] for key in each)
            case.first, case.written = None, True

    async def _judge(self, case: _Case, plan: Plan) -> None:
        """Answer what is a repeat or a duplicate; `written` stays True for what may be written down."""
        own = case.draft.notification
        if case.there is not None:
            kept = read(case.there, Notification)
            if kept.first is not None:
                case.answer = _skipped(own, kept.first) if kept.content == own.content else _taken(own, "skipped")
                return
            status = await self._knowing.standing(kept)
            if status is not None:
                case.answer = _repeated(own, status)
                return
            if kept.content != own.content and not self._is_abandoned(kept):
                case.written = False
                return
        if own.user is not None and case.person is None:
            case.answer = _rejected(own.id, own.user, _nobody(plan, own.user))
        elif case.command.past_refusal is not None:
            case.answer = _rejected(own.id, own.user, Invalid("at", case.command.past_refusal))
        elif case.held is not None:
            first = read(case.held, Held).notification
            if first != own.id:
                await self._judge_duplicate(case, plan, first)

    async def _judge_duplicate(self, case: _Case, plan: Plan, first: str) -> None:
        [there] = await self._cabinet.get([notification_key(plan.tenant, first)], self._clock.now())
        kept = None if there is None else read(there, Notification)
        if kept is None or await self._knowing.is_cancelled(kept):
            return  # refused, erased, or taken back: the key is free, or nobody would be told at all
        if await self._knowing.due(kept) is not None:
            case.first = first
        elif not self._is_abandoned(kept):
            case.written = False
        elif kept.created + DAY_US > self._clock.now():  # an older one may be released: its record still needs it
            await self._cabinet.change([[Remove(notification_key(plan.tenant, first))]], self._clock.now())

    def _is_abandoned(self, kept: Notification) -> bool:
        return kept.created + UNFINISHED_US <= self._clock.now()

    async def _write(self, cases: Sequence[_Case], plan: Plan) -> None:
        """All in one transaction, each person's documents whole or not at all."""
        if not cases:
            return
        groups = [self._documents(case, plan) for case in cases]
        for case, done in zip(cases, await self._changes.ask(groups), strict=True):
            case.written, case.version = bool(done), done
            if done and case.first is not None:
                case.answer = _skipped(case.draft.notification, case.first)

    async def _change(self, asked: Sequence[Groups]) -> list[list[int]]:
        """One transaction for all requests that came together."""
        done = iter(await self._cabinet.change([group for groups in asked for group in groups], self._clock.now()))
        return [[next(done) for _ in groups] for groups in asked]

    def _documents(self, case: _Case, plan: Plan) -> list[Change]:
        """They are written only while the user is unchanged since it was read: nothing may outlive an erased user."""
        own, version = case.draft.notification, 0 if case.there is None else case.there.version
        group: list[Change] = [] if case.person is None else [Unchanged(case.person.key, case.person.version)]
        if case.first is not None:  # so that it can be looked up
            bare = msgspec.structs.replace(own, variables={}, words=None, first=case.first)
            return [*group, notification_put(bare, version, plan.now + KEPT_US)]
        group.append(notification_put(own, version))
        if plan.ask.dedupe_key is not None:
            key = dedupe_key(plan.tenant, plan.ask.dedupe_key, case.draft.whom)
            tags = () if own.user is None else (by_user(own.user),)
            expected = 0 if case.held is None else case.held.version
            until = plan.now + dedupe_window_us(plan.ask)
            held = Put(key, encode(Held(own.id)), expected, tags, plan.now, until)
            group.insert(0, held)  # the version that is told is that of what is put last
        return group

    async def _schedule(self, cases: Sequence[_Case], plan: Plan) -> None:
        """What the timeline refuses takes its document away again; if that is no longer ours, it is looked at again.

        So is a schedule that was there before, for somebody may be at the same. But one that is over would send nothing
        of a document that is new: it is another's, such as that of a person who was erased.
        """
        if not cases:
            return
        outcomes = await self._schedules.submit([case.command for case in cases])
        refused = []
        for case, outcome in zip(cases, outcomes, strict=True):
            if outcome.outcome == "unchanged" and not (case.there is None and outcome.state in FINISHED):
                continue
            answer = _scheduled(case.draft.notification, outcome)
            if answer.outcome == "scheduled":
                case.answer = self._noted(answer, case.draft.notification)
            else:
                refused.append((case, answer))
        if refused:
            undone = await self._cabinet.change([self._undone(case, plan) for case, _ in refused], self._clock.now())
            for (case, answer), done in zip(refused, undone, strict=True):
                case.answer = answer if done else None

    def _noted(self, answer: Accepted, own: Notification) -> Accepted:
        """The answer, with a note if its recipient will not be able to unsubscribe."""
        if self._has_links or own.category == TRANSACTIONAL or "email" not in own.channels:
            return answer
        note = NO_LINK if answer.note is None else f"{answer.note}; {NO_LINK}"
        return msgspec.structs.replace(answer, note=note)

    def _undone(self, case: _Case, plan: Plan) -> list[Put | Remove]:
        group: list[Put | Remove] = [Remove(notification_key(plan.tenant, case.draft.notification.id), case.version)]
        if plan.ask.dedupe_key is not None:
            group.append(Remove(dedupe_key(plan.tenant, plan.ask.dedupe_key, case.draft.whom)))
        return group


def _keys(case: _Case, plan: Plan) -> tuple[Key, Key | None, Key | None]:
    """What is looked at: the notification, who holds its dedupe key, and its person."""
    own, dedupe = case.draft.notification, plan.ask.dedupe_key
    return (
        notification_key(plan.tenant, own.id),
        None if dedupe is None else dedupe_key(plan.tenant, dedupe, case.draft.whom),
        None if own.user is None else user_key(plan.tenant, own.user),
    )


def _nobody(plan: Plan, name: str) -> Invalid:
    field = "users" if plan.ask.users else "user"
    return Invalid(field, f"unknown user {name!r}: create it first, or give an address as 'to'")


def _repeated(own: Notification, status: Status) -> Accepted:
    kept = status.notification
    if kept.content != own.content:
        return _taken(own, status.state)
    return Accepted(own.id, "unchanged", own.user, status.due, kept.channels, batch=kept.batch, state=status.state)


def _taken(own: Notification, state: State) -> Accepted:
    reason = f"{OTHER_CONTENT}, which is {state} already: choose another id"
    if state == "pending":
        reason = f"{OTHER_CONTENT}: choose another id, and cancel that one if this is to replace it"
    return Accepted(own.id, "conflict", own.user, reason=reason)


def _skipped(own: Notification, first: str) -> Accepted:
    return Accepted(own.id, "skipped", own.user, reason="duplicate", first=first, batch=own.batch)


def _scheduled(own: Notification, outcome: Outcome) -> Accepted:
    match outcome.outcome:
        case "scheduled" | "released":
            due, note = outcome.due, outcome.note
            return Accepted(own.id, "scheduled", own.user, due, own.channels, batch=own.batch, note=note)
        case _ if outcome.field is not None:
            return _rejected(own.id, own.user, Invalid(outcome.field, outcome.reason or ""))
        case _:
            told = outcome.reason or f"the id belongs to a schedule that is {outcome.state} already: choose another id"
            return Accepted(own.id, "conflict", own.user, reason=told)


def _rejected(notification_id: str, user: str | None, invalid: Invalid) -> Accepted:
    detail = invalid.detail.removeprefix(f"{invalid.field}: ")
    return Accepted(notification_id, "rejected", user, reason=detail, field=invalid.field)


def _answer(case: _Case, plan: Plan) -> Accepted:
    """Of a request for one person a refusal is raised."""
    assert case.answer is not None, "every case ends in an answer"
    if case.answer.outcome == "rejected" and not plan.ask.users:
        raise Invalid(case.answer.field or "at", case.answer.reason or "")
    return msgspec.structs.replace(case.answer, zone=zone_of(case.command.when))

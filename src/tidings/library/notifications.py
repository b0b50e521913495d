"""Notifications in the library: users, templates, notifications, deliveries, inboxes and suppressions."""

import difflib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, cast, get_args

import msgspec

from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.notifications.reader import Search, SearchState
from tidings.delivery.notifications.resend import ResendResult
from tidings.delivery.people.erasure import Erased
from tidings.delivery.people.profile import Profile
from tidings.delivery.people.user_import import Form, ImportResult
from tidings.delivery.services import NotificationServices
from tidings.delivery.templates import Content, Template
from tidings.delivery.templates.repository import StoredTemplate, TemplateLine
from tidings.delivery.templates.values import check_values
from tidings.domain.errors import Invalid
from tidings.domain.names import Past
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.delivery import State
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import InlineContent, Priority, Spread
from tidings.domain.notifications.user import InboxEntry, User
from tidings.domain.schedules.lateness import Policy
from tidings.library.arguments import Times, check_text, timing_of
from tidings.library.notification_values import (
    Delivery,
    InboxLine,
    Notification,
    NotificationEvent,
    Notified,
    Suppressed,
    delivery_of,
    event_of,
    line_of,
    notification_of,
    notified_of,
    suppressed_of,
)
from tidings.library.schedule_values import Outcome, at_of, duration_of, outcome_of
from tidings.shapes.fields import fields_of, names_of
from tidings.shapes.notification import NewNotification, NewTemplate
from tidings.shapes.refusal import convert, refused_words

_DURATIONS = ("every", *(name for name, field in fields_of(NewNotification).items() if field.is_duration))
_CONTENT = names_of(InlineContent)

PAGE_ROWS = 500

T = TypeVar("T")
Recipient = Mapping[str, str | Device | Sequence[str] | None]  # by field: `user`, `users` or `to`
Page = Callable[[str | None], Awaitable[tuple[tuple[T, ...], str | None]]]


class ChangeOptions(Times, total=False):
    """The options of a notification that can be changed: the fields of the HTTP API, in Python types.

    A naive `at` is in the user's time zone, as is text such as `tomorrow 09:00`. Give a `template` with its
    `variables`, or content of your own as `text`, `title`, `html` and `data`.
    """

    channel: ChannelName | None
    channels: Sequence[ChannelName] | Literal["all"]
    spread: Spread | None
    template: str | None
    version: int | Literal["current"] | None
    variables: Mapping[str, Any]
    text: str | None
    title: str | None
    html: str | None
    data: Mapping[str, Any] | None
    at: str | datetime | timedelta | None
    every: str | timedelta | None
    late: Policy | None
    late_grace: str | timedelta | None
    late_max: str | timedelta | None
    jitter: str | timedelta | None
    priority: Priority
    category: str
    dedupe_key: str | None
    dedupe_window: str | timedelta | None
    expires_after: str | timedelta | None
    locale: str | None
    collapse: str | None
    batch: str | None
    past: Past | None


class NotifyOptions(ChangeOptions, total=False):
    """The options of a new notification."""

    id: str | None


def notify_request(recipient: Recipient, options: ChangeOptions) -> NotificationRequest:
    """The request for a notification; raises `Invalid` by field."""
    document = _document({name: value for name, value in options.items() if value is not None})
    if "content" in document and "text" not in document["content"]:
        raise Invalid("text", "is missing: title, html and data go beside it")
    document |= {name: value for name, value in recipient.items() if value}
    return convert(document, NotificationRequest)


def _changes(options: ChangeOptions) -> dict[str, Any]:
    """The fields of a notification that change; None removes one. Content is replaced as a whole."""
    given = {name: value for name, value in options.items() if value is not None}
    if options.keys() & set(_CONTENT) and "text" not in given:
        raise Invalid("text", "is missing: content is replaced as a whole, so give its text with title, html and data")
    removed = dict.fromkeys(options.keys() - given.keys() - set(_CONTENT))
    return _document(given) | removed


def _document(given: dict[str, Any]) -> dict[str, Any]:
    """Options as the fields of a request."""
    if unknown := sorted(given.keys() - NotifyOptions.__optional_keys__):
        raise _unknown(unknown[0])
    for name in ("variables", "data"):
        if isinstance(given.get(name), dict):
            check_values(given[name], name)
    document = {name: value for name, value in given.items() if name not in {*Times.__optional_keys__, *_CONTENT}}
    if content := {name: given[name] for name in _CONTENT if name in given}:
        document["content"] = content
    document |= {name: duration_of(document[name]) for name in _DURATIONS if name in document}
    if "at" in document:
        document["at"] = at_of(document["at"], zoned=True)
    times = cast(Times, {name: value for name, value in given.items() if name in Times.__optional_keys__})
    if (timing := timing_of(times)) is not None:
        document |= {name: value for name, value in msgspec.structs.asdict(timing).items() if value}
    return document


def _unknown(option: str) -> TypeError:
    if option == "content":
        return TypeError("there is no option 'content': give 'text', 'title', 'html' and 'data' themselves")
    near = difflib.get_close_matches(option, NotifyOptions.__optional_keys__, 1)
    known = f"did you mean {near[0]!r}?" if near else f"use {', '.join(sorted(NotifyOptions.__optional_keys__))}"
    return TypeError(f"there is no option {option!r}: {known}")


def _check_word(word: object, words: Iterable[str], field: str) -> None:
    """Refuse a word that is not among the known ones, and so matches nothing."""
    known = tuple(words)
    if word is not None and word not in known:
        raise refused_words(field, str(word), known)


class NotificationCalls:
    """Everything about notifications, for one tenant."""

    def __init__(self, services: NotificationServices, tenant: str) -> None:
        self._services = services
        self._tenant = tenant
        self.users = Users(services, tenant)
        self.templates = Templates(services, tenant)
        self.notifications = Notifications(services, tenant)
        self.deliveries = Deliveries(services, tenant)
        self.inbox = Inbox(services, tenant)
        self.suppressions = Suppressions(services, tenant)

    async def notify(self, recipient: Recipient, options: NotifyOptions) -> Sequence[Notified]:
        """Accept a notification; returns an outcome for each recipient."""
        request = notify_request(recipient, options)
        return [*map(notified_of, await self._services.acceptance.accept(self._tenant, request))]


class Users:
    """The users of a tenant: people who can be notified."""

    def __init__(self, services: NotificationServices, tenant: str) -> None:
        self._services = services
        self._tenant = tenant

    async def put(self, id: str, **profile: Any) -> User:
        """Create a user, or replace their profile; the fields are those of the HTTP API."""
        check_text(id, "id")
        return (await self._services.users.put(self._tenant, id, convert(profile, Profile))).user

    async def change(self, id: str, **changes: Any) -> User | None:
        """Change some fields; the value None removes one. Returns None if there is no such user."""
        check_text(id, "id")
        stored = await self._services.users.patch(self._tenant, id, changes)
        return None if stored is None else stored.user

    async def get(self, id: str) -> User | None:
        """One user; None if there is none."""
        check_text(id, "id")
        stored = await self._services.users.get(self._tenant, id)
        return None if stored is None else stored.user

    def list(self, prefix: str = "") -> AsyncIterator[User]:
        """Every user whose id starts with the prefix, by id."""

        async def page(cursor: str | None) -> tuple[tuple[User, ...], str | None]:
            found = await self._services.users.page(self._tenant, prefix, cursor, PAGE_ROWS)
            return found.users, found.cursor

        return _all(page)

    async def delete(self, id: str) -> bool:
        """Delete the profile of a user, and keep their notifications; False if there is none."""
        check_text(id, "id")
        return await self._services.users.delete(self._tenant, id)

    def import_file(self, path: str | Path, form: Form) -> AsyncIterator[ImportResult]:
        """Import users from a CSV or NDJSON file; yields a report after each batch, with the lines left out."""
        _check_word(form, get_args(Form), "form")
        return self._services.user_import.run(self._tenant, form, _lines(Path(path)))

    async def erase(self, id: str) -> Erased:
        """Erase all data of a user, and return what was removed."""
        check_text(id, "id")
        return await self._services.erasure.erase(self._tenant, id)


class Templates:
    """Templates: subject and body by channel and language; every change is a new version."""

    def __init__(self, services: NotificationServices, tenant: str) -> None:
        self._templates = services.templates
        self._tenant = tenant

    async def put(
        self, name: str, parts: Mapping[str, Any], *, force: bool = False, **options: str | None
    ) -> StoredTemplate:
        """Store a new version: parts by channel and language, and `locale`, `urgency` or `expires_after`.

        Raises `Conflict` if pending notifications lack a variable that it needs, unless `force` is given.
        """
        given = {key: value for key, value in options.items() if value is not None}
        draft = convert({"parts": parts, **given}, NewTemplate)
        return await self._templates.put(self._tenant, name, draft, force=force)

    async def get(self, name: str, version: int | None = None) -> StoredTemplate | None:
        """A version, or the latest one; None if it does not exist."""
        return await self._templates.get(self._tenant, name, version)

    def list(self) -> AsyncIterator[TemplateLine]:
        """Every template, by name."""

        async def page(cursor: str | None) -> tuple[tuple[TemplateLine, ...], str | None]:
            found = await self._templates.page(self._tenant, cursor, PAGE_ROWS)
            return found.templates, found.cursor

        return _all(page)

    async def versions(self, name: str, before: int | None = None, limit: int = 100) -> Sequence[Template]:
        """Its versions, the latest first."""
        return await self._templates.versions(self._tenant, name, before, limit)

    async def delete(self, name: str, *, force: bool = False) -> bool:
        """Delete a template; False if there is none. Raises `Conflict` if pending notifications need it."""
        return await self._templates.delete(self._tenant, name, force=force)

    async def preview(
        self,
        name: str,
        channel: ChannelName,
        variables: Mapping[str, Any] | None = None,
        *,
        locale: str | None = None,
        version: int | None = None,
    ) -> Content | None:
        """Render a template; None if it does not exist. Raises `Invalid` if a variable is missing."""
        given = dict(variables or {})
        return await self._templates.preview(self._tenant, name, channel, given, version=version, locale=locale)


class Notifications:
    """The notifications of a tenant."""

    def __init__(self, services: NotificationServices, tenant: str) -> None:
        self._services = services
        self._tenant = tenant

    async def get(self, id: str) -> Notification | None:
        """One notification with its deliveries; None if there is none."""
        check_text(id, "id")
        found = await self._services.reader.get(self._tenant, id)
        return None if found is None else notification_of(found)

    def list(
        self,
        *,
        user: str | None = None,
        state: SearchState | None = None,
        channel: ChannelName | None = None,
        template: str | None = None,
        batch: str | None = None,
        to: str | None = None,
        category: str | None = None,
        priority: Priority | None = None,
    ) -> AsyncIterator[Notification]:
        """Every notification that matches, the latest first."""
        _check_word(state, (*get_args(State), "paused"), "state")
        _check_word(channel, get_args(ChannelName), "channel")
        _check_word(priority, get_args(Priority), "priority")

        async def page(cursor: str | None) -> tuple[tuple[Notification, ...], str | None]:
            search = Search(
                user=user,
                state=state,
                channel=channel,
                template=template,
                batch=batch,
                cursor=cursor,
                limit=PAGE_ROWS,
                to=to,
                category=category,
                priority=priority,
            )
            found = await self._services.reader.page(self._tenant, search)
            return tuple(map(notification_of, found.notifications)), found.cursor

        return _all(page)

    async def explain(self, id: str) -> Sequence[NotificationEvent]:
        """The history of a notification, from acceptance to the receipt of the provider; empty if there is none."""
        check_text(id, "id")
        return [event_of(line) for line in await self._services.history.explain(self._tenant, id) or ()]

    async def replace(
        self,
        id: str,
        user: str | None = None,
        *,
        to: str | Device | None = None,
        reuse: bool = False,
        **options: Unpack[ChangeOptions],
    ) -> Outcome:
        """Replace the pending notification with this id, or add it; `reuse` begins again with a finished id."""
        check_text(id, "id")
        request = notify_request({"user": user, "to": to}, options)
        return outcome_of(await self._services.changes.replace(self._tenant, id, request, reuse=reuse))

    async def patch(self, id: str, **changes: Unpack[ChangeOptions]) -> Outcome:
        """Change only the given options of a pending notification: `at` alone reschedules it, None removes one."""
        check_text(id, "id")
        return outcome_of(await self._services.changes.patch(self._tenant, id, _changes(changes)))

    async def reschedule(self, id: str, at: str | datetime | timedelta) -> Outcome:
        """Change the time of a pending notification."""
        return await self.patch(id, at=at)

    async def pause(self, id: str) -> Outcome:
        """Hold a pending notification until it is resumed."""
        check_text(id, "id")
        return outcome_of(await self._services.changes.pause(self._tenant, id))

    async def resume(self, id: str, missed: Policy | None = None) -> Outcome:
        """Continue with a paused notification; `missed` decides about occurrences that fell due meanwhile."""
        check_text(id, "id")
        if missed not in {None, *get_args(Policy)}:
            raise Invalid("missed", "give 'fire_all', 'fire_latest' or 'skip'")
        return outcome_of(await self._services.changes.resume(self._tenant, id, missed))

    async def cancel(self, id: str) -> Outcome:
        """Cancel a notification. If the outcome is `cancelled`, nothing more of it is sent."""
        check_text(id, "id")
        return outcome_of(await self._services.cancellation.cancel(self._tenant, id))


class Deliveries:
    """Deliveries: what was sent, through which provider, and how late."""

    def __init__(self, services: NotificationServices, tenant: str) -> None:
        self._services = services
        self._tenant = tenant

    async def get(self, name: str) -> Delivery | None:
        """One by its name, such as `order-42/1`; None if there is none."""
        check_text(name, "name")
        found = await self._services.reader.delivery(self._tenant, name)
        return None if found is None else delivery_of(found)

    def list(
        self,
        *,
        user: str | None = None,
        state: State | None = None,
        channel: ChannelName | None = None,
        notification: str | None = None,
    ) -> AsyncIterator[Delivery]:
        """Every delivery that matches, the last due first."""
        _check_word(state, get_args(State), "state")
        _check_word(channel, get_args(ChannelName), "channel")

        async def page(cursor: str | None) -> tuple[tuple[Delivery, ...], str | None]:
            search = Search(user=user, state=state, channel=channel, cursor=cursor, limit=PAGE_ROWS)
            found = await self._services.reader.deliveries(self._tenant, search, notification)
            return tuple(map(delivery_of, found.deliveries)), found.cursor

        return _all(page)

    async def retry(self, name: str) -> ResendResult:
        """Send a failed delivery again; `rejected` if its state does not allow that."""
        check_text(name, "name")
        return await self._services.resend.retry(self._tenant, name)


class Inbox:
    """The inboxes of users: their in-app notifications."""

    def __init__(self, services: NotificationServices, tenant: str) -> None:
        self._inbox = services.inbox
        self._tenant = tenant

    def list(self, user: str, *, unread: bool = False) -> AsyncIterator[InboxLine]:
        """The messages of a user, or only the unread ones, the latest first."""

        async def page(cursor: str | None) -> tuple[tuple[InboxLine, ...], str | None]:
            found = await self._inbox.page(self._tenant, user, unread=unread, cursor=cursor, limit=PAGE_ROWS)
            return tuple(map(line_of, found.entries)), found.cursor

        return _all(page)

    async def unread(self, user: str) -> int:
        """How many messages are unread, counted up to 1,000."""
        return (await self._inbox.unread(self._tenant, user)).count

    async def read(self, user: str, *ids: str) -> int:
        """Mark these messages as read, or all that are in the inbox; returns how many were unread before."""
        if not ids:
            return await self._inbox.read_all(self._tenant, user)
        return (await self._inbox.read_some(self._tenant, user, ids)).count

    def follow(self, user: str) -> AsyncIterator[InboxLine]:
        """Messages as they arrive, from now on, without end."""
        check_text(user, "user")
        return self._follow(self._inbox.follow(self._tenant, user, self._inbox.cursor()))

    async def _follow(self, batches: AsyncGenerator[tuple[InboxEntry, ...], None]) -> AsyncIterator[InboxLine]:
        async with aclosing(batches):
            async for batch in batches:
                for line in batch:
                    yield line_of(line)


class Suppressions:
    """Addresses that nothing is sent to."""

    def __init__(self, services: NotificationServices, tenant: str) -> None:
        self._suppressions = services.suppressions
        self._tenant = tenant

    def list(self, channel: ChannelName | None = None) -> AsyncIterator[Suppressed]:
        """The suppressions of a channel, or all, the latest first."""
        _check_word(channel, get_args(ChannelName), "channel")

        async def page(cursor: str | None) -> tuple[tuple[Suppressed, ...], str | None]:
            found = await self._suppressions.page(self._tenant, channel, cursor, PAGE_ROWS)
            return tuple(map(suppressed_of, found.suppressions)), found.cursor

        return _all(page)

    async def add(
        self, channel: ChannelName, address: str | Device, reason: str = "by hand", *, category: str | None = None
    ) -> bool:
        """Suppress an address, for one category or for all; False if it was suppressed already."""
        return await self._suppressions.add(self._tenant, channel, address, reason, category=category)

    async def remove(self, channel: ChannelName, address: str | Device, *, category: str | None = None) -> bool:
        """Remove a suppression; False if there was none."""
        return await self._suppressions.remove(self._tenant, channel, address, category)


async def _all(page: Page[T]) -> AsyncIterator[T]:
    """The items of all pages."""
    cursor: str | None = None
    while True:
        found, cursor = await page(cursor)
        for each in found:
            yield each
        if cursor is None:
            return


async def _lines(path: Path) -> AsyncIterator[str]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for line in file:
            yield line

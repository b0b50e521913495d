"""Notifications in the library: users, templates, notifications, deliveries, inboxes and suppressions."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tidings.delivery.asking import Notify
from tidings.delivery.erasing import Erased
from tidings.delivery.importing import Form, Imported
from tidings.delivery.lookup import Search
from tidings.delivery.office import Office
from tidings.delivery.profile import Profile
from tidings.delivery.reading import convert
from tidings.delivery.retrying import Retried
from tidings.delivery.templates import Content, Template
from tidings.delivery.versions import StoredTemplate, TemplateLine
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

_DURATIONS = ("every", *(name for name, field in fields_of(NewNotification).items() if field.is_duration))
_CONTENT = names_of(InlineContent)

PAGE_ROWS = 500

T = TypeVar("T")
Recipient = Mapping[str, str | Device | Sequence[str] | None]  # by field: `user`, `users` or `to`
Page = Callable[[str | None], Awaitable[tuple[tuple[T, ...], str | None]]]


class NotifyOptions(Times, total=False):
    """The options of a notification: the fields of the HTTP API, in Python types.

    A naive `at` is in the user's time zone, as is text such as `tomorrow 09:00`. Give a `template` with its
    `variables`, or content of your own as `text`, `title`, `html` and `data`.
    """

    id: str | None
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


def notify_request(recipient: Recipient, options: NotifyOptions) -> Notify:
    """The request for a notification; raises `Invalid` by field."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(given.keys() - NotifyOptions.__optional_keys__):
        raise TypeError(
            f"notify takes no {unknown[0]!r}: it takes {', '.join(sorted(NotifyOptions.__optional_keys__))}"
        )
    document = {name: value for name, value in given.items() if name not in {*Times.__optional_keys__, *_CONTENT}}
    if content := {name: given[name] for name in _CONTENT if name in given}:
        if "text" not in content:
            raise Invalid("text", "is missing: title, html and data go beside it")
        document["content"] = content
    document |= {name: duration_of(document[name]) for name in _DURATIONS if name in document}
    if "at" in document:
        document["at"] = at_of(document["at"], zoned=True)
    if (timing := timing_of(options)) is not None:
        document |= {name: value for name, value in msgspec.structs.asdict(timing).items() if value}
    document |= {name: value for name, value in recipient.items() if value}
    return convert(document, Notify)


class NotificationServices:
    """Everything about notifications, for one tenant."""

    def __init__(self, office: Office, tenant: str) -> None:
        self._office = office
        self._tenant = tenant
        self.users = Users(office, tenant)
        self.templates = Templates(office, tenant)
        self.notifications = Notifications(office, tenant)
        self.deliveries = Deliveries(office, tenant)
        self.inbox = Inbox(office, tenant)
        self.suppressions = Suppressions(office, tenant)

    async def notify(self, recipient: Recipient, options: NotifyOptions) -> Sequence[Notified]:
        """Accept a notification; returns an outcome for each recipient."""
        return [
            *map(notified_of, await self._office.notifying.accept(self._tenant, notify_request(recipient, options)))
        ]


class Users:
    """The users of a tenant: people who can be notified."""

    def __init__(self, office: Office, tenant: str) -> None:
        self._office = office
        self._tenant = tenant

    async def put(self, id: str, **profile: Any) -> User:
        """Create a user, or replace their profile; the fields are those of the HTTP API."""
        check_text(id, "id")
        return (await self._office.users.put(self._tenant, id, convert(profile, Profile))).user

    async def change(self, id: str, **changes: Any) -> User | None:
        """Change some fields; the value None removes one. Returns None if there is no such user."""
        check_text(id, "id")
        stored = await self._office.users.patch(self._tenant, id, changes)
        return None if stored is None else stored.user

    async def get(self, id: str) -> User | None:
        """One user; None if there is none."""
        check_text(id, "id")
        stored = await self._office.users.get(self._tenant, id)
        return None if stored is None else stored.user

    def list(self, prefix: str = "") -> AsyncIterator[User]:
        """Every user whose id starts with the prefix, by id."""

        async def page(cursor: str | None) -> tuple[tuple[User, ...], str | None]:
            found = await self._office.users.page(self._tenant, prefix, cursor, PAGE_ROWS)
            return found.users, found.cursor

        return _all(page)

    async def delete(self, id: str) -> bool:
        """Delete the profile of a user, and keep their notifications; False if there is none."""
        check_text(id, "id")
        return await self._office.users.delete(self._tenant, id)

    def import_file(self, path: str | Path, form: Form) -> AsyncIterator[Imported]:
        """Import users from a CSV or NDJSON file; yields a report after each batch, with the lines left out."""
        return self._office.importing.run(self._tenant, form, _lines(Path(path)))

    async def erase(self, id: str) -> Erased:
        """Erase all data of a user, and return what was removed."""
        check_text(id, "id")
        return await self._office.erasing.erase(self._tenant, id)


class Templates:
    """Templates: subject and body by channel and language; every change is a new version."""

    def __init__(self, office: Office, tenant: str) -> None:
        self._templates = office.templates
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

    def __init__(self, office: Office, tenant: str) -> None:
        self._office = office
        self._tenant = tenant

    async def get(self, id: str) -> Notification | None:
        """One notification with its deliveries; None if there is none."""
        check_text(id, "id")
        found = await self._office.lookup.get(self._tenant, id)
        return None if found is None else notification_of(found)

    def list(
        self,
        *,
        user: str | None = None,
        state: State | None = None,
        channel: ChannelName | None = None,
        template: str | None = None,
        batch: str | None = None,
        to: str | None = None,
        category: str | None = None,
        priority: Priority | None = None,
    ) -> AsyncIterator[Notification]:
        """Every notification that matches, the latest first."""

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
            found = await self._office.lookup.page(self._tenant, search)
            return tuple(map(notification_of, found.notifications)), found.cursor

        return _all(page)

    async def explain(self, id: str) -> Sequence[NotificationEvent]:
        """The history of a notification, from acceptance to the receipt of the provider; empty if there is none."""
        check_text(id, "id")
        return [event_of(line) for line in await self._office.explaining.explain(self._tenant, id) or ()]

    async def cancel(self, id: str) -> Outcome:
        """Nothing of it is sent any more, if the answer is `cancelled`."""
        check_text(id, "id")
        return outcome_of(await self._office.cancelling.cancel(self._tenant, id))


class Deliveries:
    """What was sent, through what, and how late."""

    def __init__(self, office: Office, tenant: str) -> None:
        self._office = office
        self._tenant = tenant

    async def get(self, name: str) -> Delivery | None:
        """One by its name, such as `order-42/1`; None if there is none."""
        check_text(name, "name")
        found = await self._office.lookup.delivery(self._tenant, name)
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

        async def page(cursor: str | None) -> tuple[tuple[Delivery, ...], str | None]:
            search = Search(user=user, state=state, channel=channel, cursor=cursor, limit=PAGE_ROWS)
            found = await self._office.lookup.deliveries(self._tenant, search, notification)
            return tuple(map(delivery_of, found.deliveries)), found.cursor

        return _all(page)

    async def retry(self, name: str) -> Retried:
        """Send a failed delivery again; `rejected` if its state does not allow that."""
        check_text(name, "name")
        return await self._office.retrying.retry(self._tenant, name)


class Inbox:
    """The inboxes of users: their in-app notifications."""

    def __init__(self, office: Office, tenant: str) -> None:
        self._inbox = office.inbox
        self._tenant = tenant

    def list(self, user: str, *, unread: bool = False) -> AsyncIterator[InboxLine]:
        """The messages of a user, or only the unread ones, the latest first."""

        async def page(cursor: str | None) -> tuple[tuple[InboxLine, ...], str | None]:
            found = await self._inbox.page(self._tenant, user, unread=unread, cursor=cursor, limit=PAGE_ROWS)
            return tuple(map(line_of, found.lines)), found.cursor

        return _all(page)

    async def unread(self, user: str) -> int:
        """How many messages are unread, counted up to 1,000."""
        return (await self._inbox.unread(self._tenant, user)).count

    async def read(self, user: str, *ids: str) -> int:
        """Mark these messages as read, or all that are in the inbox; returns how many were found."""
        if not ids:
            return await self._inbox.read_all(self._tenant, user)
        found = [await self._inbox.read_one(self._tenant, user, line) for line in ids]
        return sum(1 for line in found if line is not None)

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

    def __init__(self, office: Office, tenant: str) -> None:
        self._suppressions = office.suppressions
        self._tenant = tenant

    def list(self, channel: ChannelName | None = None) -> AsyncIterator[Suppressed]:
        """The suppressions of a channel, or all, the latest first."""

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

"""Templates in the tables: each change is a new version, checked when it is stored, and never changed afterwards."""

import asyncio
from collections import OrderedDict

import msgspec

from tidings.clock import Clock
from tidings.delivery.notifications.template_usage import TemplateUsage
from tidings.delivery.rows import change, encode, read
from tidings.delivery.templates import Compiled, Content, Parts, Template, compile_template
from tidings.delivery.templates.parts import check_extent
from tidings.delivery.templates.values import check_locale
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.names import check_name
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.tables import TEMPLATES
from tidings.domain.schedules.iso8601 import parse_exact_duration
from tidings.ports.tables import Put, Remove, Row, RowKey, Tables
from tidings.shapes.notification import NewTemplate

COMPILED_MAX = 256
VERSIONS_MAX = 10_000
PAGE_MAX = 1_000
FRESH_US = 1_000_000  # how long a node may go on with the version that was the latest
TRIES_MAX = 20
SAID: dict[ChannelName, str] = {"email": "subject", "sms": "text", "push": "title", "in_app": "title"}


class Latest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number that counts. A deleted template keeps its own, so that no number comes twice."""

    version: int
    changed: int
    deleted: bool = False


class StoredTemplate(msgspec.Struct, frozen=True):
    """One version, what it needs, and where it has something to say."""

    template: Template
    needs: tuple[str, ...]
    channels: tuple[ChannelName, ...]
    latest: int
    changed: int


class TemplateLine(msgspec.Struct, frozen=True):
    """A template in a list."""

    name: str
    latest: int
    changed: int


class TemplatePage(msgspec.Struct, frozen=True):
    """Some templates by name, and where to go on (None: that was all)."""

    templates: tuple[TemplateLine, ...]
    cursor: str | None


class TemplateRepository:
    """Stores templates, and keeps those in use ready."""

    def __init__(self, tables: Tables, clock: Clock, waiting: TemplateUsage) -> None:
        self._tables = tables
        self._clock = clock
        self._waiting = waiting
        self._aside = asyncio.Lock()
        self._ready: OrderedDict[tuple[str, str, int], Compiled] = OrderedDict()
        self._latest: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    async def put(self, tenant: str, name: str, draft: NewTemplate, *, force: bool = False) -> StoredTemplate:
        """Store a new version, unless it is the same as the latest.

        `Conflict` if it needs more variables than what waits for the latest version has; `force` puts it all the same.
        """
        check_name(name, "name")
        for _ in range(TRIES_MAX):
            there = await self._head(tenant, name)
            head = Latest(0, 0) if there is None else read(there, Latest)
            compiled = await self._compile_new(_template(name, draft, head.version + 1))
            if head.version and not head.deleted:
                before = await self.compiled(tenant, name, head.version)
                if before is not None and _same(before.template, compiled.template):
                    return _stored(before, head)
                if before is not None and not force:
                    await self._waiting.check(tenant, before, compiled)
            made = Latest(head.version + 1, self._clock.now())
            if await self._try_put(tenant, compiled.template, made, 0 if there is None else there.version):
                self._latest.pop((tenant, name), None)
                return _stored(compiled, made)
        raise Conflict(f"the template {name!r} is being changed by other requests: try again")

    async def get(self, tenant: str, name: str, version: int | None = None) -> StoredTemplate | None:
        """A version, or the latest; None if there is none such."""
        there = await self._head(tenant, name)
        head = None if there is None else read(there, Latest)
        if head is None or head.deleted:
            return None
        compiled = await self.compiled(tenant, name, version or head.version)
        return None if compiled is None else _stored(compiled, head)

    async def versions(self, tenant: str, name: str, before: int | None = None, limit: int = 100) -> list[Template]:
        """Its versions, the latest first, from before a number on."""
        there = await self._head(tenant, name)
        head = None if there is None else read(there, Latest)
        if head is None or head.deleted:
            return []
        top = min(head.version, head.version if before is None else before - 1)
        numbers = range(top, max(0, top - min(limit, PAGE_MAX)), -1)
        found = await self._tables.get([_version_key(tenant, name, n) for n in numbers], self._clock.now())
        return [read(row, Template) for row in found if row is not None]

    async def page(self, tenant: str, cursor: str | None = None, limit: int = 100) -> TemplatePage:
        """Templates by name."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("limit", f"must be between 1 and {PAGE_MAX}")
        after = None if cursor is None else (0, cursor)
        lines: list[TemplateLine] = []
        while len(lines) <= limit:
            found = await self._tables.find(TEMPLATES, tenant, (), self._clock.now(), after=after, limit=limit + 1)
            heads = [(row.key.name, read(row, Latest)) for row in found]
            lines += [TemplateLine(name, head.version, head.changed) for name, head in heads if not head.deleted]
            if len(found) <= limit:
                break
            after = (0, found[-1].key.name)
        return TemplatePage(tuple(lines[:limit]), lines[limit - 1].name if len(lines) > limit else None)

    async def preview(
        self,
        tenant: str,
        name: str,
        channel: ChannelName,
        variables: dict[str, object],
        *,
        version: int | None = None,
        locale: str | None = None,
    ) -> Content | None:
        """What it would say; None if there is no such template, `Invalid` if a variable is missing."""
        if locale is not None:
            check_locale(locale, "locale")
        stored = await self.get(tenant, name, version)
        compiled = None if stored is None else await self.compiled(tenant, name, stored.template.version)
        if compiled is None:
            return None
        compiled.check(variables, [channel])
        return compiled.render(channel, variables, locale)

    async def delete(self, tenant: str, name: str, *, force: bool = False) -> bool:
        """Remove all its versions; False if there is none. `Conflict` while something pending needs it."""
        there = await self._head(tenant, name)
        head = None if there is None else read(there, Latest)
        if there is None or head is None or head.deleted:
            return False
        if not force:
            await self._waiting.check_unused(tenant, name)
        gone = Latest(head.version, self._clock.now(), deleted=True)
        group: list[Put | Remove] = [_head_put(there.key, gone, there.version)]
        for start in range(1, head.version + 1, PAGE_MAX):
            numbers = range(start, min(start + PAGE_MAX, head.version + 1))
            group += [Remove(_version_key(tenant, name, n)) for n in numbers]
        [done] = await change(self._tables, [group], self._clock.now())
        if not done:
            raise Conflict(f"the template {name!r} was changed in the meantime: get it again and retry")
        self._latest.pop((tenant, name), None)
        return True

    async def compiled(self, tenant: str, name: str, version: int | None = None) -> Compiled | None:
        """A version ready to be rendered, the latest (as of a second ago) without a number; None if there is none."""
        number = version or await self._latest_number(tenant, name)
        if number is None:
            return None
        key = (tenant, name, number)
        if key in self._ready:
            self._ready.move_to_end(key)
            return self._ready[key]
        [row] = await self._tables.get([_version_key(*key)], self._clock.now())
        if row is None:
            return None
        compiled = await self._compile(read(row, Template))
        self._ready[key] = compiled
        if len(self._ready) > COMPILED_MAX:
            self._ready.popitem(last=False)
        return compiled

    async def _compile(self, template: Template) -> Compiled:
        """A large one aside, and one after the other: others must not wait while it is parsed."""
        if check_extent(template).is_small:
            return compile_template(template)
        async with self._aside:
            return await asyncio.to_thread(compile_template, template)

    async def _compile_new(self, template: Template) -> Compiled:
        """Compile it on another thread, because its constant parts are rendered, which may take long."""
        async with self._aside:
            compiled = await asyncio.to_thread(compile_template, template)
            await asyncio.to_thread(compiled.check_constants)
        return compiled

    async def _latest_number(self, tenant: str, name: str) -> int | None:
        elapsed = self._clock.elapsed()
        number, since = self._latest.get((tenant, name), (0, 0))
        if number and elapsed - since < FRESH_US:
            return number
        there = await self._head(tenant, name)
        head = None if there is None else read(there, Latest)
        if head is None or head.deleted:
            return None
        self._latest[tenant, name] = (head.version, elapsed)
        self._latest.move_to_end((tenant, name))
        if len(self._latest) > COMPILED_MAX:
            self._latest.popitem(last=False)
        return head.version

    async def _head(self, tenant: str, name: str) -> Row | None:
        [there] = await self._tables.get([RowKey("template", tenant, name)], self._clock.now())
        return there

    async def _try_put(self, tenant: str, template: Template, head: Latest, expected: int) -> bool:
        if template.version > VERSIONS_MAX:
            raise Invalid("name", f"has {VERSIONS_MAX} versions, the maximum: use another name")
        group = [
            _head_put(RowKey("template", tenant, template.name), head, expected),
            Put(
                _version_key(tenant, template.name, template.version),
                encode(template),
                0,
                (template.name, template.version),
            ),
        ]
        [done] = await change(self._tables, [group], self._clock.now())
        return bool(done)


def _version_key(tenant: str, name: str, version: int) -> RowKey:
    return RowKey("template_version", tenant, f"{name}/{version}")


def _head_put(key: RowKey, head: Latest, expected: int) -> Put:
    return Put(key, encode(head), expected, (head.version, head.changed, int(head.deleted)))


def _template(name: str, draft: NewTemplate, version: int) -> Template:
    if draft.urgency is not None and draft.expires_after is not None:
        raise Invalid("urgency", "and 'expires_after' set the same thing: leave one out")
    expires = None if draft.expires_after is None else parse_exact_duration(draft.expires_after, "expires_after")
    _check_said(draft.parts)
    _check_characters(draft.parts)
    return Template(name, draft.parts, version, draft.locale, draft.urgency, expires)


def _check_said(parts: Parts) -> None:
    """Refuse a part that says nothing. It is asked of what is written: what was stored before can still be read."""
    for channel, name in SAID.items():
        for language, part in getattr(parts, channel).items():
            if not getattr(part, name).strip():
                raise Invalid(f"parts.{channel}.{language}.{name}", "is empty: give some text, or leave this part out")


def _check_characters(parts: Parts) -> None:
    """Refuse a NUL character, which no message may have; in JSON it is a character like any other."""
    for channel in SAID:
        for language, part in getattr(parts, channel).items():
            for name in part.__struct_fields__:
                text = getattr(part, name)
                if isinstance(text, str) and "\x00" in text:
                    raise Invalid(f"parts.{channel}.{language}.{name}", "has a NUL character: leave it out")


def _same(one: Template, other: Template) -> bool:
    return one == msgspec.structs.replace(other, version=one.version)


def _stored(compiled: Compiled, head: Latest) -> StoredTemplate:
    return StoredTemplate(compiled.template, compiled.needs(), compiled.channels, head.version, head.changed)

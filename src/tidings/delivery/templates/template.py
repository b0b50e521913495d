"""A template that was checked: what it needs, and what it says to one person on one channel."""

import html
import re
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import msgspec

from tidings.delivery.templates.budget import Budget
from tidings.delivery.templates.extent import check_extent
from tidings.delivery.templates.locales import check_locale, choose
from tidings.delivery.templates.parts import EmailPart, InAppPart, Part, PushPart, SmsPart, Template, WebhookPart
from tidings.delivery.templates.source import Path, Source
from tidings.delivery.templates.values import check_values
from tidings.domain.errors import Invalid
from tidings.domain.names import check_name
from tidings.domain.notifications.address import check_line
from tidings.domain.notifications.message import (
    CHANNEL_NAMES,
    SMS_CHARACTERS_MAX,
    SUBJECT_CHARACTERS_MAX,
    ChannelName,
    Segments,
    segments,
)

LOCALES_MAX = 100
WEBHOOK_DEPTH_MAX = 16
PLAIN_WORK = 16  # of each character of a page whose words are taken

_BREAKS = re.compile(r"<(?:br|/p|/div|/tr|/li|/h[1-6])\b[^<>]*>", re.IGNORECASE)
_HIDDEN = re.compile(r"<(style|script|title)\b[^<>]*>[^<]*</\1>", re.IGNORECASE)
_MARKUP = re.compile(r"<[^<>]*>")

Variables = Mapping[str, Any]
Render = Callable[[Variables, Budget], "Content"]


class Content(msgspec.Struct, frozen=True, gc=False):
    """What a part says, rendered. `title` is a subject too; `segments` are those of a text message."""

    locale: str
    text: str = ""
    title: str = ""
    html: str | None = None
    data: dict[str, str] = {}
    json: bytes = b""
    segments: Segments | None = None


class Compiled:
    """A template, ready to be rendered. Made when it is stored, and kept for as long as it is used."""

    def __init__(self, template: Template) -> None:
        check_name(template.name, "name")
        check_extent(template)
        self.template = template
        self._parts: dict[ChannelName, dict[str, _Compiled]] = {}
        self._own = check_locale(template.locale, "locale")
        for channel in CHANNEL_NAMES:
            parts = _compile(getattr(template.parts, channel), f"parts.{channel}")
            if parts:
                self._parts[channel] = parts
        compiled = [part for parts in self._parts.values() for part in parts.values()]
        self._uses = frozenset(name for part in compiled for name in part.uses)
        if not self._parts:
            raise Invalid("parts", f"are empty: give a part for one of {', '.join(CHANNEL_NAMES)}")

    @property
    def channels(self) -> tuple[ChannelName, ...]:
        """The channels that it has something for."""
        return tuple(self._parts)

    def needs(self, channels: Iterable[ChannelName] | None = None) -> tuple[str, ...]:
        """The variables that it cannot do without, in whatever language: `name`, `order.id`."""
        return tuple(sorted(".".join(map(str, path)) for path in self._needs(channels)))

    def uses(self, names: Set[str]) -> Set[str]:
        """Which of these variables it may look at, needed or not; all of them where their names are variable too."""
        return names if any(name.startswith("[") for name in self._uses) else names & self._uses

    def check(self, variables: Variables, channels: Iterable[ChannelName] | None = None) -> None:
        """Refuse variables that are too large, or not all there."""
        check_values(variables)
        if missing := self.missing(variables, channels):
            names = ", ".join(map(repr, sorted(missing)))
            raise Invalid("variables", f"missing {names}, which template {self.template.name!r} needs")

    def missing(self, variables: Variables, channels: Iterable[ChannelName] | None = None) -> set[str]:
        """What it needs and is not there."""
        return {".".join(map(str, path)) for path in self._needs(channels) if not _has(variables, path)}

    def render(self, channel: ChannelName, variables: Variables, locale: str | None = None) -> Content:
        """What it says there, in the best language for this one."""
        parts = self._parts.get(channel)
        if parts is None:
            raise Invalid("channel", f"the template {self.template.name} has no part for {channel}")
        tag = choose(locale, self._own, parts)
        return parts[tag].render(variables, Budget())

    def _needs(self, channels: Iterable[ChannelName] | None) -> set[Path]:
        chosen = self._parts if channels is None else [channel for channel in channels if channel in self._parts]
        return {path for channel in chosen for part in self._parts[channel].values() for path in part.needs}


def compile_template(template: Template) -> Compiled:
    """Check a template; `Invalid` says which part is wrong, in which line, and why."""
    return Compiled(template)


def _compile(written: Mapping[str, Part], field: str) -> dict[str, "_Compiled"]:
    if len(written) > LOCALES_MAX:
        raise Invalid(field, f"has {len(written)} languages, more than {LOCALES_MAX}")
    tags = {check_locale(text, field): text for text in written}
    if len(tags) < len(written):
        raise Invalid(field, f"has a language twice: {', '.join(written)}")
    return {tag: _Compiled(written[text], tag, f"{field}.{text}") for tag, text in tags.items()}


class _Compiled:
    """One part in one language."""

    def __init__(self, part: Part, tag: str, field: str) -> None:
        self._tag = tag
        self._sources: list[Source] = []
        self._field = field
        self.render: Render = self._prepare(part)
        self.needs = frozenset(path for source in self._sources for path in source.needs)
        self.uses = frozenset(name for source in self._sources for name in source.uses)

    def _prepare(self, part: Part) -> Render:
        match part:
            case EmailPart():
                return self._email(part)
            case SmsPart():
                return self._sms(part)
            case PushPart():
                return self._push(part)
            case WebhookPart():
                body = self._json(part.body, 1)
                return lambda given, budget: Content(self._tag, json=msgspec.json.encode(body(given, budget)))
            case InAppPart():
                title, text = self._title(part.title, "title"), self._source(part.body, "body")
                return lambda given, budget: Content(self._tag, text.render(given, budget), title(given, budget))

    def _email(self, part: EmailPart) -> Render:
        if part.html is None and part.text is None:
            raise Invalid(self._field, "has no body: give html, text, or both")
        subject = self._title(part.subject, "subject")
        markup = None if part.html is None else self._source(part.html, "html", html=True)
        text = None if part.text is None else self._source(part.text, "text")

        def render(variables: Variables, budget: Budget) -> Content:
            page = None if markup is None else markup.render(variables, budget)
            words = text.render(variables, budget) if text is not None else self._words(page or "", budget)
            return Content(self._tag, words, subject(variables, budget), page)

        return render

    def _words(self, page: str, budget: Budget) -> str:
        budget.work -= PLAIN_WORK * len(page)
        if budget.work < 0:
            raise Invalid(
                f"{self._field}.html", "is too long when rendered to derive the plain text from it: give a text too"
            )
        return plain_text(page)

    def _sms(self, part: SmsPart) -> Render:
        source = self._source(part.text, "text")

        def render(variables: Variables, budget: Budget) -> Content:
            text = source.render(variables, budget).strip()
            if not text or len(text) > SMS_CHARACTERS_MAX:
                raise Invalid(f"{self._field}.text", f"becomes empty, or longer than {SMS_CHARACTERS_MAX} characters")
            return Content(self._tag, text, segments=segments(text))

        return render

    def _push(self, part: PushPart) -> Render:
        title, body = self._title(part.title, "title"), self._source(part.body, "body")
        data = {name: self._source(text, f"data.{name}") for name, text in part.data.items()}
        return lambda variables, budget: Content(
            "",
            body.render(variables, budget).strip(),
            title(variables, budget),
            data={name: source.render(variables, budget) for name, source in data.items()},
        )

    def _title(self, text: str, name: str) -> Callable[[Variables, Budget], str]:
        """One line: the ends are stripped, a line break inside is refused."""
        source, field = self._source(text, name), f"{self._field}.{name}"

        def render(variables: Variables, budget: Budget) -> str:
            title = check_line(source.render(variables, budget).strip(), field)
            if len(title) > SUBJECT_CHARACTERS_MAX:
                raise Invalid(field, f"becomes longer than {SUBJECT_CHARACTERS_MAX} characters")
            return title

        return render

    def _json(self, value: Any, depth: int) -> Callable[[Variables, Budget], Any]:
        """A JSON document whose texts are rendered, each in its place."""
        if depth > WEBHOOK_DEPTH_MAX:
            raise Invalid(f"{self._field}.body", f"is nested more than {WEBHOOK_DEPTH_MAX} levels deep")
        match value:
            case str():
                return self._source(value, "body").render
            case dict():
                fields = {str(name): self._json(item, depth + 1) for name, item in value.items()}
                return lambda given, budget: {name: render(given, budget) for name, render in fields.items()}
            case list():
                items = [self._json(item, depth + 1) for item in value]
                return lambda given, budget: [render(given, budget) for render in items]
            case _:
                return lambda _, __: value

    def _source(self, text: str, name: str, *, html: bool = False) -> Source:
        source = Source(text, f"{self._field}.{name}", html=html)
        self._sources.append(source)
        return source


def plain_text(page: str) -> str:
    """The words of an HTML page, for those who read without it."""
    words = _MARKUP.sub("", _BREAKS.sub("\n", _HIDDEN.sub("", page)))
    lines = (" ".join(line.split()) for line in html.unescape(words).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _has(variables: Variables, path: Path) -> bool:
    value: Any = variables
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return False
    return True

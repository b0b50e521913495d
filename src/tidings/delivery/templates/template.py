"""A template that was checked: what it needs, and what it says to one person on one channel."""

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidings.delivery.templates.language import Budget
from tidings.delivery.templates.parts import (
    EmailPart,
    InAppPart,
    Part,
    PushPart,
    SmsPart,
    Template,
    WebhookPart,
    check_extent,
)
from tidings.delivery.templates.source import Path, Pattern, PatternGroup, Source
from tidings.delivery.templates.values import check_locale, check_values, choose
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
RENDERED_MAX = 1_000  # descriptions of variables that are remembered
RENDERED_BYTES_MAX = 512  # of the values in one
PLAIN_WORK = 16  # of each character of a page whose words are taken

_BREAKS = re.compile(r"<(?:br|/p|/div|/tr|/li|/h[1-6])\b[^<>]*>", re.IGNORECASE)
_HIDDEN = re.compile(r"<(style|script|title)\b[^<>]*>[^<]*</\1>", re.IGNORECASE)
_MARKUP = re.compile(r"<[^<>]*>")
_ESCAPED_IN_JSON = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')

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
        self.is_small = check_extent(template).is_small
        self.template = template
        self._parts: dict[ChannelName, dict[str, _Compiled]] = {}
        self._own = check_locale(template.locale, "locale")
        for channel in CHANNEL_NAMES:
            parts = _compile(getattr(template.parts, channel), f"parts.{channel}")
            if parts:
                self._parts[channel] = parts
        compiled = [part for parts in self._parts.values() for part in parts.values()]
        uses = frozenset(name for part in compiled for name in part.uses)
        # The variables that it may look at, needed or not; None if their names are variable too.
        self.uses = None if any(name.startswith("[") for name in uses) else uses
        self.prints = uses - {name for part in compiled for name in part.examined}  # and does nothing else with them
        self._rendered: set[object] = set()
        if not self._parts:
            raise Invalid("parts", f"are empty: give a part for one of {', '.join(CHANNEL_NAMES)}")

    @property
    def channels(self) -> tuple[ChannelName, ...]:
        """The channels that it has something for."""
        return tuple(self._parts)

    def needs(self, channels: Iterable[ChannelName] | None = None) -> tuple[str, ...]:
        """The variables that it cannot do without, in whatever language: `name`, `order.id`."""
        return tuple(sorted(".".join(map(str, path)) for path in self._needs(channels)))

    def is_known_to_render(self, described: object) -> bool:
        """Whether it was rendered with variables that are described like these."""
        return described in self._rendered

    def remember_rendering(self, described: object, size: int) -> None:
        """Remember that it can be rendered with variables of this description, unless that is long."""
        if len(self._rendered) >= RENDERED_MAX:
            self._rendered.clear()
        if size <= RENDERED_BYTES_MAX:
            self._rendered.add(described)

    def check_constants(self) -> None:
        """Refuse what could never be rendered, whatever the variables are.

        It is asked of what is written: what an earlier release has stored can still be read.
        """
        for parts in self._parts.values():
            for part in parts.values():
                part.check_constants()

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
        return parts[choose(locale, self._own, parts)].render(variables, Budget())

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
        self._titles: list[_Title] = []
        self._field = field
        self.render: Render = self._prepare(part)
        self.needs = frozenset(path for source in self._sources for path in source.needs)
        self.uses = frozenset(name for source in self._sources for name in source.uses)
        self.examined = frozenset(name for source in self._sources for name in source.examined)

    def check_constants(self) -> None:
        """Refuse what fails whatever the variables are."""
        for title in self._titles:
            check_line(title.source.constant_text().strip(), title.field)
        budget = Budget()
        for source in self._sources:
            source.check_constants(budget)
        if not self.uses:
            self.render({}, Budget())

    def _prepare(self, part: Part) -> Render:
        match part:
            case EmailPart():
                return self._email(part)
            case SmsPart():
                return self._sms(part)
            case PushPart():
                return self._push(part)
            case WebhookPart():
                body = self._document(part.body)
                return lambda given, budget: Content(self._tag, json=body(given, budget))
            case InAppPart():
                return self._in_app(part)

    def _in_app(self, part: InAppPart) -> Render:
        title, body = self._title(part.title, "title"), self._source(part.body, "body")
        texts = _together([body, title.source])

        def render(variables: Variables, budget: Budget) -> Content:
            text, line = texts(variables, budget)
            return Content(self._tag, text, title.check(line))

        return render

    def _email(self, part: EmailPart) -> Render:
        if part.html is None and part.text is None:
            raise Invalid(self._field, "has no body: give html, text, or both")
        subject = self._title(part.subject, "subject")
        markup = None if part.html is None else self._source(part.html, "html", html=True)
        text = None if part.text is None else self._source(part.text, "text")
        texts = _together([each for each in (markup, text, subject.source) if each is not None])

        def render(variables: Variables, budget: Budget) -> Content:
            *bodies, line = texts(variables, budget)
            page = None if markup is None else bodies[0]
            words = bodies[-1] if text is not None else self._words(page or "", budget)
            return Content(self._tag, words, subject.check(line), page)

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
        names, data = list(part.data), [self._source(text, f"data.{name}") for name, text in part.data.items()]
        texts = _together([body, title.source, *data])

        def render(variables: Variables, budget: Budget) -> Content:
            text, line, *values = texts(variables, budget)
            return Content("", text.strip(), title.check(line), data=dict(zip(names, values, strict=True)))

        return render

    def _title(self, text: str, name: str) -> "_Title":
        title = _Title(self._source(text, name), f"{self._field}.{name}")
        self._titles.append(title)
        return title

    def _document(self, document: Any) -> Callable[[Variables, Budget], bytes]:
        """A JSON document as bytes. If all of its texts are patterns, it is one, too: the rest of it never changes."""
        render, sources = self._json(document, 1), self._sources
        pattern, cost = _document_pattern(document, sources), sum(source.cost for source in sources)
        group = None if pattern is None else PatternGroup([pattern], cost)

        def encode(variables: Variables, budget: Budget) -> bytes:
            if group is not None and (words := group.words(variables)) is not None:
                joined = "".join(words)
                if group.is_allowed(joined, budget) and _is_plain_in_json(joined):
                    return group.fill(0, words).encode()
            return msgspec.json.encode(render(variables, budget))

        return encode

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


class _Title(msgspec.Struct, frozen=True):
    """A text of one line: the ends are stripped, a line break inside is refused."""

    source: Source
    field: str

    def check(self, rendered: str) -> str:
        """The line that was rendered."""
        title = check_line(rendered.strip(), self.field)
        if len(title) > SUBJECT_CHARACTERS_MAX:
            raise Invalid(self.field, f"becomes longer than {SUBJECT_CHARACTERS_MAX} characters")
        return title


def _together(sources: Sequence[Source]) -> Callable[[Variables, Budget], Sequence[str]]:
    """Renders the texts of one message, at once if all of them are patterns."""
    patterns = [source.pattern for source in sources if source.pattern is not None]
    group = PatternGroup(patterns, sum(source.cost for source in sources))

    def one_by_one(variables: Variables, budget: Budget) -> Sequence[str]:
        return [source.render(variables, budget) for source in sources]

    def at_once(variables: Variables, budget: Budget) -> Sequence[str]:
        texts = group.render(variables, budget)
        return one_by_one(variables, budget) if texts is None else texts

    return at_once if len(patterns) == len(sources) else one_by_one


def _is_plain_in_json(text: str) -> bool:
    """Whether JSON escapes no character of a text."""
    if text.isprintable():  # no control character, and no half of a surrogate pair
        return '"' not in text and "\\" not in text
    return _ESCAPED_IN_JSON.search(text) is None


def _document_pattern(document: Any, sources: Sequence[Source]) -> Pattern | None:
    """The pattern of a JSON document, from those of its texts in their order; None if one has none."""
    patterns = [source.pattern for source in sources if source.pattern is not None]
    if len(patterns) < len(sources):
        return None
    texts = (each.text for each in patterns)

    def with_places(value: Any) -> Any:
        match value:
            case str():
                return next(texts)
            case dict():
                return {str(name).replace("%", "%%"): with_places(item) for name, item in value.items()}
            case list():
                return [with_places(item) for item in value]
            case _:
                return value

    text = msgspec.json.encode(with_places(document)).decode()
    return Pattern([name for each in patterns for name in each.names], text)


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
    return value is not None  # null would be printed as nothing

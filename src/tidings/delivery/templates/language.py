"""Liquid as we allow it: the tags and filters that notifications need, and a bound on everything that they can do.

python-liquid's own limits leave ways out, found by trying: a range is made before its length is looked at
(`(1..9999999999) | join`, `for ... reversed`), `replace: ""` multiplies two lengths, `date` takes `%999999999d`,
a list of many references is measured by its own size alone, and loops one after the other are not added up.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from liquid import BoundTemplate, Environment, RenderContext
from liquid.builtin.expressions.primitive import RangeLiteral
from liquid.exceptions import FilterArgumentError, LocalNamespaceLimitError, LoopIterationLimitError, ResourceLimitError
from liquid.token import Token
from liquid.undefined import StrictDefaultUndefined, Undefined

from tidings.delivery.templates.values import INTEGER_BITS_MAX

SOURCE_BYTES_MAX = 64 * 1024
OUTPUT_BYTES_MAX = 512 * 1024
VALUE_SIZE_MAX = 256 * 1024  # of what one filter gives, or all that a template keeps
WORK_MAX = 8 << 20  # characters that filters may read and write in one rendering
RANGE_MAX = 10_000
FORMAT_CHARACTERS_MAX = 64
DIGITS_MAX = 30

TAGS = frozenset(
    {"if", "unless", "case", "for", "break", "continue", "assign", "capture", "echo", "comment", "#", "cycle"}
)
FILTERS = frozenset(
    {
        *("abs", "at_least", "at_most", "ceil", "divided_by", "floor", "minus", "modulo", "plus", "round", "times"),
        *("append", "capitalize", "downcase", "escape", "lstrip", "newline_to_br", "prepend", "remove", "remove_first"),
        *("remove_last", "replace", "replace_first", "replace_last", "rstrip", "safe", "slice", "split", "strip"),
        *("strip_newlines", "truncate", "truncatewords", "upcase", "url_encode"),
        *(
            "compact",
            "concat",
            "first",
            "join",
            "last",
            "map",
            "reverse",
            "size",
            "sort",
            "sort_natural",
            "sum",
            "uniq",
        ),
        *("uniq", "where", "default", "date"),
    }
)
_PARSER_TAGS = frozenset({"content", "output", "illegal"})  # what the parser itself calls words, variables, the rest
_FORMATS = frozenset("aAbBdeHIjmMpSuUwWyYzZ%FTRDx-")


class Language(Environment):
    """One for HTML, which escapes what it inserts, and one for everything else."""

    loop_iteration_limit = RANGE_MAX
    local_namespace_limit = VALUE_SIZE_MAX
    output_stream_limit = OUTPUT_BYTES_MAX
    context_depth_limit = 30
    block_nesting_limit = 20

    def __init__(self, *, html: bool) -> None:
        super().__init__(undefined=StrictDefaultUndefined, autoescape=html)
        self.template_class = Bound
        self.tags = {name: tag for name, tag in self.tags.items() if name in TAGS | _PARSER_TAGS}
        self.filters = {name: work for name, work in self.filters.items() if name in FILTERS}
        self.filters["date"] = date


class Work(RenderContext):
    """One rendering, and what it has cost so far."""

    __slots__ = ("_kept", "_steps", "_work", "steps_max")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.steps_max = RANGE_MAX
        self._steps = 0
        self._work = 0
        self._kept: dict[str, int] = {}

    def assign(self, key: str, val: Any) -> None:
        self._kept[key] = weigh(val)
        self.locals[key] = val
        if sum(self._kept.values()) > VALUE_SIZE_MAX:
            raise LocalNamespaceLimitError(f"it keeps more than {VALUE_SIZE_MAX} characters in variables", token=None)
        self._charge(self._kept[key] + len(self._kept))

    def raise_for_loop_limit(self, length: int = 1) -> None:
        """Add up every loop that is begun: inner ones as often as they begin."""
        self._steps += length
        if self._steps > self.steps_max:
            raise LoopIterationLimitError(f"its loops take more than {self.steps_max} steps", token=None)

    def filter(self, name: str, token: Token | None) -> Callable[..., object]:
        inner = super().filter(name, token)

        def measured(value: object, *arguments: object, **options: object) -> object:
            self._charge(weigh(value) + sum(map(weigh, arguments)))
            self._charge(_foreseen(name, value, arguments))
            result = inner(value, *arguments, **options)
            self._charge(weigh(result))
            return result

        return measured

    def _charge(self, size: int) -> None:
        self._work += size + 1
        if self._work > WORK_MAX:
            raise ResourceLimitError(f"its filters work on more than {WORK_MAX} characters", token=None)


class Bound(BoundTemplate):
    """A parsed template that renders with bounds."""

    context_class = Work


class BoundedRange(RangeLiteral):
    """A range whose length is looked at before anybody walks it."""

    __slots__ = ()

    def _make_range(self, start: Any, stop: Any) -> range:
        made = super()._make_range(start, stop)
        if made.stop - made.start > RANGE_MAX:
            raise LoopIterationLimitError(f"a range has more than {RANGE_MAX} steps", token=self.token)
        return made


def weigh(value: object) -> int:
    """Characters of a value with everything in it; refused as soon as it is too much."""
    if issubclass(type(value), Undefined):  # which answers no other question, not even of what class it is
        return 1
    if isinstance(value, str):
        size = len(value)
    elif isinstance(value, list | tuple):
        size = 8 * len(value)
        for item in value:
            if size > VALUE_SIZE_MAX:
                break
            size += weigh(item)
    elif isinstance(value, dict):
        size = weigh(list(value)) + weigh(list(value.values()))
    elif isinstance(value, range):
        size = 8 * len(value)
    elif isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        raise ResourceLimitError(f"a number has more than {INTEGER_BITS_MAX} bits", token=None)
    else:
        size = 8
    if size > VALUE_SIZE_MAX:
        raise ResourceLimitError(f"a value has more than {VALUE_SIZE_MAX} characters", token=None)
    return size


def _foreseen(name: str, value: object, arguments: tuple[object, ...]) -> int:
    """What the filters cost whose result, or time, is more than the sum of what they are given."""
    texts = [item if isinstance(item, str) else str(item) for item in arguments]
    if name == "replace" and texts:
        found = str(value).count(texts[0])
        return _bounded(len(str(value)) + found * len(texts[1] if len(texts) > 1 else ""))
    if name == "join" and isinstance(value, list | tuple | range):
        return _bounded(len(value) * (8 + len(texts[0]) if texts else 1))
    if name == "uniq" and isinstance(value, list | tuple | range):
        return len(value) * len(value)
    if name == "round" and texts and len(texts[0].lstrip("+-")) > 2:
        raise FilterArgumentError(f"round takes at most {DIGITS_MAX} digits", token=None)
    return 0


def _bounded(size: int) -> int:
    if size > VALUE_SIZE_MAX:
        raise ResourceLimitError(f"a value has more than {VALUE_SIZE_MAX} characters", token=None)
    return size


def date(value: object, form: object = "%Y-%m-%d") -> str:
    """An instant or a day (ISO 8601, or seconds since the epoch) in another form; reads no clock."""
    text = str(form)
    if len(text) > FORMAT_CHARACTERS_MAX:
        raise FilterArgumentError(f"date takes a form of at most {FORMAT_CHARACTERS_MAX} characters", token=None)
    rest = iter(text)
    for character in rest:
        if character == "%":
            directive = next(rest, "")
            directive = next(rest, "") if directive == "-" else directive
            if directive not in _FORMATS or not directive:
                raise FilterArgumentError(f"date does not know %{directive}", token=None)
    return _moment(value).strftime(text)


def _moment(value: object) -> datetime:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        return datetime.fromisoformat(str(value)[:FORMAT_CHARACTERS_MAX])
    except (ValueError, OverflowError, OSError):
        told = f"date cannot read {str(value)[:40]!r}: give it as 2026-11-20T09:00:00+01:00"
        raise FilterArgumentError(told, token=None) from None

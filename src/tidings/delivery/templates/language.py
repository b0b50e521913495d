"""Liquid as we allow it: the tags and filters that notifications need, and a bound on everything that they can do.

python-liquid's own limits leave ways out, found by trying: a range is made before its length is looked at
(`(1..9999999999) | join`, `for ... reversed`), `replace: ""` multiplies two lengths, `date` takes `%999999999d`,
a list of many references is measured by its own size alone, loops one after the other are not added up, `contains` and
`==` are free, and `when 1, 1, 1` says its block three times.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from liquid import BoundTemplate, Environment, RenderContext
from liquid.ast import BlockNode
from liquid.builtin.expressions import Path
from liquid.builtin.expressions.primitive import RangeLiteral
from liquid.exceptions import FilterArgumentError, LocalNamespaceLimitError, LoopIterationLimitError, ResourceLimitError
from liquid.expression import Expression
from liquid.filter import flatten
from liquid.token import Token
from liquid.undefined import StrictDefaultUndefined, Undefined

from tidings.delivery.templates.values import INTEGER_BITS_MAX

WORK_MAX = 8_000_000
STEP_WORK = 300  # of each node and expression that is visited
ITEM_WORK = 8  # of each unit of a list: who prints or filters it does more than look at it
FILTER_WORK = 2 * STEP_WORK
LOOP_WORK = 4 * STEP_WORK  # to begin one
OUTPUT_BYTES_MAX = 512 * 1024
VALUE_SIZE_MAX = 256 * 1024  # of what one filter gives, or all that a template keeps


class Budget:
    """What is left: `work`, and `output` in characters."""

    __slots__ = ("_weights", "output", "work")

    def __init__(self) -> None:
        self.work = WORK_MAX
        self.output = OUTPUT_BYTES_MAX
        self._weights: dict[int, tuple[object, int]] = {}

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise ResourceLimitError("rendering takes too much work: use smaller loops and filters", token=None)

    def pay(self, value: object, factor: int = 1) -> None:
        """Spend the size of a value, `factor` times if it is no text."""
        if issubclass(type(value), str):
            self.spend(bounded(len(value)))  # type: ignore[arg-type]
        else:
            self.spend(self.weight(value) * factor)

    def weight(self, value: object) -> int:
        """The size of a value; lists are walked through once, as nothing changes them, and kept so that they stay."""
        if not issubclass(type(value), list | dict | tuple):
            return weigh(value)
        known = self._weights.get(id(value))
        if known is None:
            known = self._weights[id(value)] = (value, weigh(value))
            self.spend(known[1] * 4)
        return known[1]


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
    return bounded(size)


def bounded(size: int) -> int:
    """A size that a value may have."""
    if size > VALUE_SIZE_MAX:
        raise ResourceLimitError(f"a value has more than {VALUE_SIZE_MAX} characters", token=None)
    return size


SOURCE_BYTES_MAX = 64 * 1024
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
        *("compact", "concat", "first", "join", "last", "map", "reverse", "size", "sort", "sort_natural", "sum"),
        *("uniq", "where", "default", "date"),
    }
)
_PARSER_TAGS = frozenset({"content", "output", "illegal"})  # what the parser itself calls words, variables, the rest
_FORMATS = frozenset("aAbBdeHIjmMpSuUwWyYzZ%FTRDx-")


# Filters that take texts: what is not a text becomes one as if it were printed.
_OF_TEXTS = frozenset(
    {
        *("append", "capitalize", "downcase", "escape", "lstrip", "newline_to_br", "prepend", "remove", "remove_first"),
        *("remove_last", "replace", "replace_first", "replace_last", "rstrip", "safe", "split", "strip"),
        *("strip_newlines", "truncate", "truncatewords", "upcase", "url_encode"),
    }
)


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
    """The rendering of one text, which pays for what it does. `costs` are those of its blocks, by their identity."""

    __slots__ = ("_kept", "budget", "costs")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.budget = Budget()
        self.costs: dict[int, int] = {}
        self._kept: dict[str, int] = {}

    def assign(self, key: str, val: Any) -> None:
        self._kept[key] = self.budget.weight(val)
        self.locals[key] = val
        if sum(self._kept.values()) > VALUE_SIZE_MAX:
            raise LocalNamespaceLimitError(f"its variables hold more than {VALUE_SIZE_MAX} characters", token=None)
        self.budget.spend(self._kept[key] + len(self._kept))

    def raise_for_loop_limit(self, length: int = 1) -> None:
        """Nothing: each block pays whenever it is rendered."""
        del length

    def filter(self, name: str, token: Token | None) -> Callable[..., object]:
        inner, budget = super().filter(name, token), self.budget

        def measured(value: object, *arguments: object, **options: object) -> object:
            budget.pay(value, ITEM_WORK)
            for argument in arguments:
                budget.pay(argument, ITEM_WORK)
            value, arguments = _as_texts(name, value, arguments)
            budget.spend(FILTER_WORK + _foreseen(name, value, arguments, budget))
            result = inner(value, *arguments, **options)
            budget.pay(result)
            return result

        return measured


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


class PaidBlock(BlockNode):
    """A block that pays for what is in it, each time that a loop or a condition comes to it."""

    __slots__ = ()

    def render_to_output(self, context: RenderContext, buffer: Any) -> int:
        assert isinstance(context, Work)
        context.budget.spend(context.costs[id(self)])
        return super().render_to_output(context, buffer)


class PaidPath(Path):
    """A path with a variable in brackets, which may be a long text."""

    __slots__ = ()

    def evaluate(self, context: RenderContext) -> object:
        assert isinstance(context, Work)
        keys = [key.evaluate(context) if isinstance(key, Path) else key for key in self.path]
        context.budget.spend(4 * sum(len(key) for key in keys if isinstance(key, str)))
        return context.get(keys, token=self.token)


class Paid(Expression):
    """What is compared, printed or walked through: it pays for the size of what it gives."""

    __slots__ = ("factor", "inner")

    def __init__(self, inner: Expression, factor: int = 1) -> None:
        super().__init__(inner.token)
        self.inner = inner
        self.factor = factor

    def __str__(self) -> str:
        return str(self.inner)

    def evaluate(self, context: RenderContext) -> object:
        assert isinstance(context, Work)
        value = self.inner.evaluate(context)
        context.budget.pay(value, self.factor)
        return value

    def children(self) -> list[Expression]:
        return [self.inner]


class Printed(Paid):
    """What is printed: objects and lists as JSON."""

    __slots__ = ()

    def evaluate(self, context: RenderContext) -> object:
        value = super().evaluate(context)
        return as_json(value) if isinstance(value, dict | list | tuple) else value


def as_json(value: object) -> str:
    """An object or a list as compact JSON, its characters as they are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    bounded(len(text))
    return text


def as_text(value: object) -> object:
    """What is not a text, as Liquid prints it; numbers, texts and what is undefined stay as they are."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return as_json(value) if isinstance(value, dict | list | tuple) else value


def _plain(value: object) -> object:
    """What templates make themselves, and JSON does not know."""
    if isinstance(value, range):
        return list(value)
    return float(value) if isinstance(value, Decimal) else None


def _as_texts(name: str, value: object, arguments: tuple[object, ...]) -> tuple[object, tuple[object, ...]]:
    if issubclass(type(value), Undefined):
        return value, arguments
    if name in _OF_TEXTS:
        return as_text(value), tuple(each if issubclass(type(each), Undefined) else as_text(each) for each in arguments)
    if name == "slice":
        return (value if isinstance(value, list | tuple) else as_text(value)), arguments
    if name == "join":
        items = flatten(value) if isinstance(value, list | tuple) else [value]
        return (value if isinstance(value, range) else [as_text(item) for item in items]), arguments
    return value, arguments


def _foreseen(name: str, value: object, arguments: tuple[object, ...], budget: Budget) -> int:
    """What the filters cost whose result, or time, is more than the sum of what they are given."""
    if name == "replace" and arguments:
        text, wanted = str(value), str(arguments[0])
        return bounded(len(text) + text.count(wanted) * len(str(arguments[1]) if len(arguments) > 1 else ""))
    if name == "join" and isinstance(value, list | tuple | range):
        return bounded(len(value) * (8 + len(str(arguments[0])) if arguments else 1))
    if name == "uniq" and isinstance(value, list | tuple | range):
        return len(value) * budget.weight(value) // 4
    if name == "round" and arguments and len(str(arguments[0]).lstrip("+-")) > 2:
        raise FilterArgumentError(f"round takes at most {DIGITS_MAX} digits", token=None)
    return 0


def date(value: object, form: object = "%Y-%m-%d") -> str:
    """An instant or a day (ISO 8601, or seconds since the epoch) in another form; reads no clock."""
    text = str(form)
    if len(text) > FORMAT_CHARACTERS_MAX:
        raise FilterArgumentError(f"date takes a format of at most {FORMAT_CHARACTERS_MAX} characters", token=None)
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

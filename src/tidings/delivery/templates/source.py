"""One text of Liquid: checked once, when it is stored, and then rendered many times.

Most of a template is words and plain variables. Those are put together here; python-liquid renders the rest, and
whatever a plain look-up does not find.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import liquid.builtin.expressions
import msgspec
from liquid import escape
from liquid.ast import BlockNode, Node
from liquid.builtin.content import ContentNode
from liquid.builtin.expressions import FilteredExpression, LoopExpression
from liquid.builtin.expressions.logical import (
    ContainsExpression,
    EqExpression,
    GeExpression,
    GtExpression,
    LeExpression,
    LtExpression,
    NeExpression,
)
from liquid.builtin.expressions.primitive import IntegerLiteral, RangeLiteral
from liquid.builtin.output import OutputNode
from liquid.builtin.tags.case_tag import MultiExpressionBlockNode
from liquid.builtin.tags.cycle_tag import CycleNode
from liquid.builtin.tags.for_tag import ForNode
from liquid.context import RenderContext
from liquid.exceptions import LiquidError, LiquidInterrupt
from liquid.expression import Expression
from liquid.output import LimitedStringIO
from liquid.static_analysis import TemplateAnalysis
from liquid.stringify import to_liquid_string

from tidings.delivery.templates.language import (
    FILTERS,
    ITEM_WORK,
    LOOP_WORK,
    OUTPUT_BYTES_MAX,
    SOURCE_BYTES_MAX,
    STEP_WORK,
    Bound,
    BoundedRange,
    Budget,
    Language,
    Paid,
    PaidBlock,
    PaidPath,
    Printed,
    Work,
)
from tidings.domain.errors import Invalid

DETAIL_CHARACTERS_MAX = 200
NEWLINE = "\n"

# What python-liquid, or the interpreter under it, may raise for a template or a value that is not right.
_FAULTS = (LiquidError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
_LANGUAGES = {html: Language(html=html) for html in (False, True)}
_PROPERTIES = frozenset({"size", "first", "last"})  # of every list and text
_COMPARISONS = (
    ContainsExpression,
    EqExpression,
    GeExpression,
    GtExpression,
    LeExpression,
    LtExpression,
    NeExpression,
)

_WALKED = frozenset({list, dict})
_PLAIN = frozenset({str, int})  # what is written as it is
_BETWEEN = "\x00"  # stands between values that are escaped together
_ESCAPED_CHARACTERS_MAX = 5  # of one character in HTML: `&#39;`

Path = tuple[str | int, ...]
Step = str | tuple[Path, Node]
Words = Sequence[str]


class Pattern(msgspec.Struct, frozen=True):
    """A text with a place (`%s`) for each of some variables, whose values are escaped in HTML."""

    names: Sequence[str]
    text: str
    html: bool = False


class PatternGroup:
    """The patterns of one message, which share their values; `cost` is the work of rendering all of them.

    What is different (a value that is a list, a missing variable, texts that may become too long) is left to the
    general renderer, which finds the error or goes step by step.
    """

    __slots__ = ("_constant_length", "_cost", "_find", "_forms", "_growth_max", "_has_html")

    def __init__(self, patterns: Sequence[Pattern], cost: int) -> None:
        names = list(dict.fromkeys(name for each in patterns for name in each.names))
        self._find = _finder(names)
        self._forms = [(each.text, _picker([names.index(name) for name in each.names]), each.html) for each in patterns]
        self._has_html = any(each.html for each in patterns)
        self._growth_max = _ESCAPED_CHARACTERS_MAX * sum(len(each.names) for each in patterns)
        self._constant_length = sum(len(each.text % (("",) * len(each.names))) for each in patterns)
        self._cost = cost

    def words(self, variables: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The values of its variables as texts; None if one is missing, or neither a text nor a number."""
        try:
            values = self._find(variables)
        except LookupError:
            return None
        return tuple(map(str, values)) if _PLAIN.issuperset(map(type, values)) else None

    def render(self, variables: Mapping[str, Any], budget: Budget) -> list[str] | None:
        """The texts, in the order of the patterns; None if they need the general renderer."""
        words = self.words(variables)
        if words is None:
            return None
        joined = _BETWEEN.join(words)
        if not self.is_allowed(joined, budget):
            return None
        escaped: Words = words
        if self._has_html and words:
            escaped = str.split(escape(joined), _BETWEEN)  # all values by one call
            if len(escaped) != len(words):
                return None  # a value has the character between them, too
        texts = [text % pick(escaped if html else words) for text, pick, html in self._forms]
        budget.work -= self._cost
        budget.output -= sum(map(len, texts)) - self._constant_length
        return texts

    def is_allowed(self, joined: str, budget: Budget) -> bool:
        """Whether a budget is enough for texts with these words, wherever they stand and however they are escaped."""
        return self._cost <= budget.work and len(joined) * self._growth_max <= budget.output

    def fill(self, number: int, words: Words) -> str:
        """The text of one pattern with words that are fit for it."""
        text, pick, _ = self._forms[number]
        filled: str = text % pick(words)
        return filled


class Source:
    """A text that was checked. `needs` are the variables that it cannot do without, as paths; `uses` all by name.

    `examined` are those that it does more with than print them: filters, conditions, loops, fields. `pattern` is there
    if it only prints plain variables; `cost` is the work of rendering it.
    """

    __slots__ = (
        "_alone",
        "_bound",
        "_costs",
        "_field",
        "_html",
        "_ranges",
        "_steps",
        "cost",
        "examined",
        "needs",
        "pattern",
        "uses",
    )

    def __init__(self, text: str, field: str, *, html: bool = False) -> None:
        self._field = field
        self._html = html
        self._bound, analysis = _parse(text, field, html)
        around = RenderContext(self._bound)
        nodes = list(_nodes(self._bound.nodes, around))
        expressions = [expression for node in nodes for expression in _expressions(node.expressions())]
        self.needs = _needs(analysis, expressions)
        self.uses = frozenset(map(str, analysis.globals))
        names = {str(name) for node in nodes for name in (*node.template_scope(), *node.block_scope())}
        self._steps = [_step(node, names) for node in self._bound.nodes]
        printed = Counter(step[0] for step in self._steps if not isinstance(step, str))
        self.examined = frozenset(
            str(name) for name, found in analysis.globals.items() if len(found) > printed[(str(name),)]
        )
        self.pattern = _pattern(self._steps, html=html)
        self.cost = STEP_WORK + sum(_cost(step[1], around) for step in self._steps if not isinstance(step, str))
        self._alone = None if self.pattern is None else PatternGroup([self.pattern], self.cost)
        self._costs = {id(node): _block_cost(node, around) for node in nodes if isinstance(node, BlockNode)}
        _let_pay(nodes, expressions)
        self._ranges = [each for each in expressions if type(each) is BoundedRange and _is_constant(each)]

    def check_constants(self, budget: Budget) -> None:
        """Refuse what fails whatever the variables are: a range that is too long, or all of it if it has none."""
        try:
            for each in self._ranges:
                each.evaluate(self._context({}, budget))
        except LiquidError as error:
            raise Invalid(self._field, _reason(error)) from None
        if not self.uses:
            self.render({}, budget)

    def constant_text(self) -> str:
        """The text between its variables; none if it has tags, which may leave any part out."""
        if self.pattern is None:
            return ""
        return "".join(step for step in self._steps if isinstance(step, str))

    def render(self, variables: Mapping[str, Any], budget: Budget | None = None) -> str:
        """The text with its variables; `Invalid` says what is missing or too much.

        The texts of one message share a `budget`.
        """
        budget = budget or Budget()
        if self._alone is not None and (texts := self._alone.render(variables, budget)) is not None:
            return texts[0]
        html, context = self._html, None
        parts: list[str] = []
        try:
            budget.spend(self.cost)
        except LiquidError as error:
            raise Invalid(self._field, _reason(error)) from None
        for step in self._steps:
            if type(step) is str:
                parts.append(step)
                continue
            assert type(step) is tuple
            path, node = step
            value: Any = variables if path else None
            try:
                for key in path:
                    value = value[key]
            except (LookupError, TypeError):
                path = ()
            if not path or type(value) in _WALKED:
                context = context or self._context(variables, budget)
                text = self._by_liquid(node, context)
            elif type(value) is str:
                text = escape(value) if html else value
            else:
                text = to_liquid_string(value, html)
            self._write(len(text), budget)
            parts.append(text)
        return "".join(parts)

    def _write(self, characters: int, budget: Budget) -> None:
        budget.output -= characters
        if budget.output < 0:
            raise Invalid(self._field, f"becomes longer than {OUTPUT_BYTES_MAX} characters, all parts together")

    def _context(self, variables: Mapping[str, Any], budget: Budget) -> Work:
        context = Work(self._bound, globals=variables)
        context.budget, context.costs = budget, self._costs
        return context

    def _by_liquid(self, node: Node, context: Work) -> str:
        """One node by python-liquid: a tag, a filter, a list, or what a plain look-up did not find."""
        buffer = LimitedStringIO(context.budget.output)
        try:
            node.render(context, buffer)
        except LiquidInterrupt as error:
            raise Invalid(self._field, f"has a {error} outside of a loop") from None
        except _FAULTS as error:
            raise Invalid(self._field, _reason(error, node)) from None
        return buffer.getvalue()


def _parse(text: str, field: str, html: bool) -> tuple[Bound, TemplateAnalysis]:
    size = len(text.encode("utf-8", "replace"))
    if size > SOURCE_BYTES_MAX:
        raise Invalid(field, f"has {size} bytes, more than {SOURCE_BYTES_MAX}")
    try:
        bound = _LANGUAGES[html].from_string(text)
        analysis = bound.analyze()
        unknown = analysis.filters.keys() - FILTERS
    except _FAULTS as error:
        raise Invalid(field, _reason(error)) from None
    if unknown:
        raise Invalid(field, f"uses the unknown filter {min(unknown)!r}: there are {', '.join(sorted(FILTERS))}")
    assert isinstance(bound, Bound)
    return bound, analysis


def _is_constant(each: RangeLiteral) -> bool:
    return isinstance(each.start, IntegerLiteral) and isinstance(each.stop, IntegerLiteral)


def _nodes(nodes: Iterable[Node], context: RenderContext) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from _nodes(node.children(context), context)


def _expressions(expressions: Iterable[Expression]) -> Iterator[Expression]:
    for expression in expressions:
        yield expression
        yield from _expressions(expression.children())


def _block_cost(block: BlockNode, around: RenderContext) -> int:
    """What it takes to go through a block once; blocks inside of it pay for themselves."""
    return STEP_WORK + sum(_cost(node, around) for node in block.nodes)


def _cost(node: Node, around: RenderContext) -> int:
    inner = (child for child in node.children(around) if not isinstance(child, BlockNode))
    own = LOOP_WORK if isinstance(node, ForNode) else STEP_WORK
    steps = sum(1 for _ in _expressions(node.expressions()))
    return own + STEP_WORK * steps + sum(_cost(child, around) for child in inner)


def _let_pay(nodes: Iterable[Node], expressions: Iterable[Expression]) -> None:
    """Have ranges look at their length first, and blocks, comparisons, loops and outputs pay for what they do.

    The parser makes all of them of classes that do not.
    """
    for expression in expressions:
        if type(expression) is RangeLiteral:
            expression.__class__ = BoundedRange
        elif type(expression) is liquid.builtin.expressions.Path and expression.children():
            expression.__class__ = PaidPath
        elif isinstance(expression, _COMPARISONS):
            expression.left, expression.right = Paid(expression.left), Paid(expression.right)
        elif isinstance(expression, LoopExpression):
            expression.iterable = Paid(expression.iterable)
    for node in nodes:
        if type(node) is BlockNode:
            node.__class__ = PaidBlock
        elif isinstance(node, OutputNode):
            node.expression = Printed(node.expression, ITEM_WORK)
        elif isinstance(node, CycleNode):
            node.args = [Printed(argument, ITEM_WORK) for argument in node.args]
            node.group = None if node.group is None else Paid(node.group, ITEM_WORK)
        elif isinstance(node, MultiExpressionBlockNode):
            wanted = node.expression
            wanted.left, wanted.expressions = Paid(wanted.left), [Paid(each) for each in wanted.expressions]


def _needs(analysis: TemplateAnalysis, expressions: Iterable[Expression]) -> frozenset[Path]:
    """The variables that come from outside, without those that have a `default` wherever they are used."""
    spared = {
        expression.left.token.start_index
        for expression in expressions
        if isinstance(expression, FilteredExpression) and expression.filters and expression.filters[0].name == "default"
    }
    uses = [use for found in analysis.globals.values() for use in found if use.span.index not in spared]
    return frozenset(path for use in uses if (path := _path(use.segments)))


def _path(segments: Sequence[object]) -> Path:
    """As far as it is fixed: `items[i].name` needs `items`; what Liquid itself adds is not needed either."""
    fixed: list[str | int] = []
    for segment in segments:
        if not isinstance(segment, str | int) or (fixed and segment in _PROPERTIES):
            break
        fixed.append(segment)
    return tuple(fixed)


def _step(node: Node, names: set[str]) -> Step:
    """Words as they are; a plain variable as its path, if no tag can change it; everything else as it is."""
    if type(node) is ContentNode:
        return node.text
    if type(node) is OutputNode and type(node.expression) is FilteredExpression and not node.expression.filters:
        left = node.expression.left
        path = tuple(left.path) if type(left) is liquid.builtin.expressions.Path else ()
        keys = tuple(key for key in path if isinstance(key, str))
        if keys and keys == path and keys[0] not in names and _PROPERTIES.isdisjoint(keys):
            return keys, node
    return (), node


def _pattern(steps: Sequence[Step], *, html: bool) -> Pattern | None:
    """The pattern of a text, if it has nothing but words and plain variables."""
    names: list[str] = []
    parts: list[str] = []
    for step in steps:
        if isinstance(step, str):
            parts.append(step.replace("%", "%%"))
        elif len(step[0]) == 1 and isinstance(step[0][0], str):
            names.append(step[0][0])
            parts.append("%s")
        else:
            return None
    return Pattern(names, "".join(parts), html)


def _finder(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Finds the values of these variables by one call."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda variables: tuple([variables[name] for name in names])


def _picker(places: Sequence[int]) -> Callable[[Words], Any]:
    """Picks the words at these places as a tuple, as a formatting needs them."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda words: tuple([words[place] for place in places])


def _reason(error: Exception, node: Node | None = None) -> str:
    """What is wrong, and where, in one line."""
    if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
        return "is nested too deeply"
    if not isinstance(error, LiquidError):
        return f"cannot be rendered: {error}"[:DETAIL_CHARACTERS_MAX]
    token = error.token or (node.token if node is not None else None)
    told = " ".join(str(error.message).split())
    if token is not None and token.start_index >= 0:
        told = f"line {token.source.count(NEWLINE, 0, token.start_index) + 1}: {told}"
    return told[:DETAIL_CHARACTERS_MAX]

"""A 1 KB e-mail template with ten variables, rendered again and again on one core: subject, page and words."""

import time
from collections.abc import Callable
from html import escape

from bench.options import Options
from bench.report import Bar, Report
from bench.rounds import Rounds, divided
from bench.screen import note
from tidings.delivery.templates import Compiled, EmailPart, Parts, Template, compile_template

TITLE = "a 1 KB e-mail with ten variables, rendered on one core, a second; the limit is Python's own str.format"
RENDERINGS = 50_000
SOURCE_BYTES = 1_024

SUBJECT = "{{ name }}, your order {{ order }} is on its way"
PAGE = """<html><body><h1>Hello {{ name }}</h1>
<p>Your order <b>{{ order }}</b> of {{ day }} left our house at {{ time }} and will be with you on {{ arrival }}.</p>
<p>It goes to {{ street }}, {{ city }}. <a href="{{ link }}">Follow it</a> on its way, or write to {{ contact }}.</p>
<p>You paid {{ total }}. Thank you!</p>
<p>{filler}</p></body></html>
"""
WORDS = """Hello {{ name }},

your order {{ order }} of {{ day }} left our house at {{ time }} and will be with you on {{ arrival }}.
It goes to {{ street }}, {{ city }}. Follow it on its way: {{ link }}

You paid {{ total }}. Thank you!
"""
FILTERED = PAGE.replace("{{ name }}", "{{ name | capitalize }}").replace(
    "{{ total }}", "{% if total %}{{ total | default: 'nothing' }}{% endif %}"
)
VARIABLES = {
    "name": "Ada Lovelace",
    "order": 10042,
    "day": "20 November",
    "time": "09:00",
    "arrival": "Monday",
    "street": "12 St James's Square",
    "city": "London",
    "link": "https://example.com/orders/10042?from=mail&lang=en",
    "contact": "help@example.com",
    "total": "£ 24.50",
}

BARS = (Bar("render", "median", ">=", 10_000), Bar("render_with_filters", "median", ">=", 10_000))


def run(options: Options) -> Report:
    """Plain variables, then the same with filters and a condition, then the least that could be done."""
    rounds = Rounds("render")
    count = max(100, options.rows(RENDERINGS))
    plain, filtered = _template(PAGE), _template(FILTERED)
    for number in range(1, options.rounds + 1):
        note(f"render: round {number} of {options.rounds}")
        figures = {
            "render": _rate(lambda: plain.render("email", VARIABLES), count),
            "render_with_filters": _rate(lambda: filtered.render("email", VARIABLES), count),
            "check": _rate(lambda: plain.check(VARIABLES), count),
        }
        limit = {"render": _rate(_formatted, count)}
        rounds.add(figures, limit, divided(figures, limit))
    return rounds.report()


def _template(page: str) -> Compiled:
    """Filled up with words until its parts have 1 KB."""
    size = len(SUBJECT) + len(page) + len(WORDS)
    filler = "Some more words. " * (max(0, SOURCE_BYTES - size) // 17 + 1)
    part = EmailPart(SUBJECT, page.replace("{filler}", filler), WORDS)
    return compile_template(Template("bench", Parts(email={"en": part})))


_FORMS = [text.replace("{filler}", "").replace("{{ ", "{").replace(" }}", "}") for text in (SUBJECT, PAGE, WORDS)]


def _formatted() -> list[str]:
    escaped = {name: escape(str(value)) for name, value in VARIABLES.items()}
    return [_FORMS[0].format_map(VARIABLES), _FORMS[1].format_map(escaped), _FORMS[2].format_map(VARIABLES)]


def _rate(work: Callable[[], object], count: int) -> float:
    """How often in a second of this core; others on the machine do not count."""
    before = time.process_time()
    for _ in range(count):
        work()
    return count / (time.process_time() - before)

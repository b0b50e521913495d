"""The fast renderer gives the same text as python-liquid, except for objects and lists, which are JSON."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liquid import Environment
from liquid.exceptions import LiquidError
from liquid.stringify import to_liquid_string
from liquid.undefined import StrictDefaultUndefined

from tidings.delivery.templates.source import Source
from tidings.domain.errors import Invalid


def in_json(value: object) -> object:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value


def oracle(html: bool) -> Environment:
    """python-liquid by itself, which prints objects as JSON and gives its filters texts."""
    environment = Environment(undefined=StrictDefaultUndefined, autoescape=html)
    upcase = environment.filters["upcase"]
    environment.filters["upcase"] = lambda value: upcase(
        str(value).lower() if isinstance(value, bool) else in_json(value)
    )
    return environment


ORACLES = {html: oracle(html) for html in (False, True)}
NAMES = st.sampled_from(["a", "b", "c", "a.b", "a.b.c", "b.size", "c[0]", "c.first", "a['b']", "missing", "a.missing"])
PIECES = st.one_of(
    st.text(st.characters(exclude_characters="{}%", exclude_categories=["Cs"]), max_size=10),
    NAMES.map(lambda name: "{{ " + name + " }}"),
    NAMES.map(lambda name: "{{ " + name + " | upcase }}"),
    NAMES.map(lambda name: "{{ " + name + " | default: '<none>' }}"),
    NAMES.map(lambda name: "{% if " + name + " %}yes{% else %}no{% endif %}"),
    NAMES.map(lambda name: "{% for x in " + name + " %}{{ x }},{{ forloop.index }}{% endfor %}"),
    st.sampled_from(["{% assign a = 'new' %}", "{% assign x = b %}{{ x }}", "{%- capture b -%} z {%- endcapture -%}"]),
    st.sampled_from([" {{- a -}} ", "{% raw %}{{ a }}{% endraw %}", "{% cycle 'x', 'y' %}", "{{ 'lit' }}{{ 1.5 }}"]),
)
TEXTS = st.text("<&>'\"xé ", max_size=6)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXTS)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("bcd"), inner, max_size=3)


VALUES = st.recursive(SCALARS, nested, max_leaves=6)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    pieces=st.lists(PIECES, max_size=6),
    variables=st.dictionaries(st.sampled_from("abc"), VALUES),
    html=st.booleans(),
)
def test_rendering_agrees_with_python_liquid(pieces: list[str], variables: dict[str, Any], html: bool) -> None:
    text = "".join(pieces)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "liquid.builtin.output.to_liquid_string",
                lambda value, autoescape: to_liquid_string(in_json(value), autoescape),
            )
            expected: str | None = ORACLES[html].from_string(text).render(variables)
    except LiquidError:
        expected = None
    if expected is None:
        with pytest.raises(Invalid):
            Source(text, "text", html=html).render(variables)
    else:
        assert Source(text, "text", html=html).render(variables) == expected


@settings(max_examples=300)
@given(st.text("{}%|.'\"[]() abfori\n-=:,0", max_size=60))
def test_any_text_is_accepted_or_refused(text: str) -> None:
    with suppress(Invalid):
        assert isinstance(Source(text, "text").render({"a": "x", "b": [1]}), str)


GIVEN = {
    "o": {"a": 1, "b": [True, None, "é<b>"]},
    "l": [{"x": 1.5}, "t", ["n"]],
    "yes": True,
    "no": False,
    "nothing": None,
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ o }}", '{"a":1,"b":[true,null,"é<b>"]}'),
        ("{{ l }}", '[{"x":1.5},"t",["n"]]'),
        ("{{ o.b }}", '[true,null,"é<b>"]'),
        ("{{ yes }} {{ no }} [{{ nothing }}]", "true false []"),
        ("{% for pair in o %}{{ pair }};{% endfor %}", '["a",1];["b",[true,null,"é<b>"]];'),
        ("{% echo o %}{% cycle l, o %}", '{"a":1,"b":[true,null,"é<b>"]}[{"x":1.5},"t",["n"]]'),
        ("{% assign x = o %}{% capture y %}{{ x }}{% endcapture %}{{ y }}", '{"a":1,"b":[true,null,"é<b>"]}'),
        ("{{ o | append: '!' }}", '{"a":1,"b":[true,null,"é<b>"]}!'),
        ("{{ '!' | prepend: o.b }}", '[true,null,"é<b>"]!'),
        ("{{ 'x' | replace: 'x', l }}", '[{"x":1.5},"t",["n"]]'),
        ("{{ l | join: ', ' }}", '{"x":1.5}, t, n'),
        ("{{ o.b | join: ', ' }}", "true, , é<b>"),
        ("{{ yes | append: '!' }}{{ nothing | append: '!' }}{{ 'x' | append: no }}", "true!!xfalse"),
        ("{{ o | size }} {{ o.b | first }} {{ l | last | first }}", "2 true n"),
        ("{{ missing | default: o }}", '{"a":1,"b":[true,null,"é<b>"]}'),
        ("{{ 'a,b' | split: ',' }} {{ (1..3) }} {{ (1..3) | join: '-' }}", '["a","b"] 1..3 1-2-3'),
    ],
)
def test_objects_and_lists_are_json(text: str, said: str) -> None:
    assert Source(text, "text").render(GIVEN) == said


def test_json_in_html_is_escaped() -> None:
    assert Source("<p>{{ o.b }}</p>", "html", html=True).render(GIVEN) == "<p>[true,null,&#34;é&lt;b&gt;&#34;]</p>"
    assert "<b>" not in Source("{{ 'x' | append: o }}", "html", html=True).render(GIVEN)


def test_json_that_becomes_too_long_is_refused() -> None:
    """Control characters are six times as long in JSON."""
    with pytest.raises(Invalid, match="more than 262144 characters"):
        Source("{{ l }}", "text").render({"l": ["\x01" * 60_000]})

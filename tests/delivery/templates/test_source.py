"""The quick way of rendering says exactly what python-liquid says."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liquid import Environment
from liquid.exceptions import LiquidError
from liquid.undefined import StrictDefaultUndefined

from tidings.delivery.templates.source import Source
from tidings.domain.errors import Invalid

ORACLES = {html: Environment(undefined=StrictDefaultUndefined, autoescape=html) for html in (False, True)}
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
def test_both_ways_agree(pieces: list[str], variables: dict[str, Any], html: bool) -> None:
    text = "".join(pieces)
    try:
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
def test_any_text_is_taken_or_refused(text: str) -> None:
    with suppress(Invalid):
        assert isinstance(Source(text, "text").render({"a": "x", "b": [1]}), str)

"""Templates and variables that would exhaust a machine: each is refused quickly and in little memory."""

import resource
import time
from typing import Any

import pytest

from tests.delivery.templates.test_template import made
from tidings.delivery.templates import EmailPart, InAppPart, PushPart, WebhookPart
from tidings.delivery.templates.values import check_values
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import ChannelName

SECONDS_MAX = 1.5  # of this process, to parse and render it; on a quiet machine the worst takes a third
RENDERING_SECONDS_MAX = 0.5  # other requests wait meanwhile; on a quiet machine the worst takes 0.1
MEMORY_BYTES_MAX = 64 << 20

BIG = "x" * 60_000
LIST = list(range(3_000))
LOOP = "{% for i in (1..9999) %}{{ i }}{% endfor %}"

BOMBS = [
    "{% for i in (1..9999999999) %}x{% endfor %}",
    "{% for i in (1..9999999999) reversed %}x{% endfor %}",
    "{% for i in (1..9999999999) limit: 1 offset: 9999999990 %}x{% endfor %}",
    "{% for i in (1..n) %}x{% endfor %}",
    "{{ (1..9999999999) | join: '' }}",
    "{{ (1..9999999999) | size }}",
    "{{ (1..n) | reverse | first }}",
    "{% assign r = (1..9999999999) %}{% if r contains 'x' %}{% endif %}",
    "{% if (1..9999999999) contains 'x' %}{% endif %}",
    "{% case 1 %}{% when (1..9999999999) %}{% endcase %}",
    "{% echo (1..9999999999) | join: ',' %}",
    "{{ big | append: (1..9999999999) }}",
    "{% cycle (1..9999999999), 2 %}",
    "{% for i in (1..5000) %}{% for j in (1..5000) %}{% for k in (1..5000) %}x{% endfor %}{% endfor %}{% endfor %}",
    "{% for i in (1..9000) %}{% if 1 == 1 %}{% endif %}{% endfor %}" * 500,
    "{% for i in (1..9000) %}" + "{% if 1 == 2 or " + " or ".join(["1 == 2"] * 5_000) + " %}{% endif %}{% endfor %}",
    "{% for a in list %}{% for b in list %}{{ a }}{% endfor %}{% endfor %}",
    "{% assign a = big %}" + "{% assign a = a | append: a %}" * 40 + "{{ a }}",
    "{% capture a %}{{ big }}{% endcapture %}" + "{% capture a %}{{ a }}{{ a }}{% endcapture %}" * 30,
    "{% assign a = big | split: '' %}" + "{% assign a = a | concat: a %}" * 30,
    "{% assign a = big | split: ',' %}" + "{% assign a = a | concat: a %}" * 30 + "{{ a }}",
    "{% assign a = list %}" + "{% assign a = a | concat: a %}" * 30 + "{{ a | join: big }}",
    "{{ big | replace: '', big }}",
    "{{ big | replace: 'x', big }}",
    "{{ list | join: big }}",
    "{{ big | split: '' | join: big }}",
    "{{ big }}" * 5_000,
    "{{ big | upcase }}" * 3_000,
    "{% for i in (1..5000) %}{{ big }}{% endfor %}",
    "{% for i in (1..9000) %}{{ big | upcase | downcase | size }}{% endfor %}",
    "{% for i in (1..900) %}{{ list | uniq | size }}{% endfor %}",
    "{% for i in (1..900) %}{{ list | sort | reverse | size }}{% endfor %}",
    "{% assign n = 99999999 %}" + "{% assign n = n | times: n %}" * 30 + "{{ n }}",
    "{{ '" + "9" * 4_000 + "' | times: '" + "9" * 4_000 + "' }}",
    "{{ 5.5 | round: 999999999 }}",
    "{{ 1 | divided_by: 0 }}",
    "{{ '1e400' | ceil }}",
    "{{ '2026-11-20' | date: '%999999999d' }}",
    "{{ '2026-11-20' | date: '%-999999999d' }}",
    "{{ '2026-11-20' | date: big }}",
    "{{ 99999999999999999999 | date: '%Y' }}",
    "{{ 'now' | date: '%Y' }}",
    "{% assign a = '' %}{% for i in (1..9000) %}{% assign a = a | append: 'xxxxxxxxxxxxxxxxxxxxxxxxxx' %}{% endfor %}",
    "{% assign a1 = 'x' %}"
    + "".join(f"{{% assign a{n} = 'x' %}}" for n in range(2_500))
    + "{% for i in (1..9000) %}{% assign a1 = i %}{% endfor %}",
    "{% for i in (1..3900) %}" + "{% if list contains 'zz' %}{% endif %}" * 20 + "{% endfor %}",
    "{% for i in (1..9000) %}{% if big contains 'xxy' or list == rows or rows == list %}{% endif %}{% endfor %}",
    "{% for i in (1..9000) %}{{ rows | where: 'a', 3 | size }}{% endfor %}",
    "{% for i in (1..9000) %}{{ rows | map: 'a' | sum }}{% endfor %}",
    "{% for i in (1..9000) %}{% cycle list, rows %}{% endfor %}",
    "{% for i in (1..9000) %}{{ rows[big] | default: 1 }}{% endfor %}",
    "{% for i in (1..9000) %}{% for a in list reversed limit: 1 %}{% endfor %}{% endfor %}",
    "{% case list %}" + "{% when list %}{% when rows %}" * 1_000 + "{% endcase %}" + LOOP,
    ("{% case 1 %}{% when 1" + ",1" * 200 + " %}") * 15 + "{% endcase %}" * 15,
    "{{ blanks }}" * 5_000,
    "{{ deep }}{% for a in deep %}{% for b in a %}{% for c in b %}{{ c }}{% endfor %}{% endfor %}{% endfor %}" * 300,
]


def variables() -> dict[str, Any]:
    rows = [{"a": number % 7} for number in range(1_000)]
    deep = [[[["x" * 100] * 10] * 10] * 10]
    return {"big": BIG, "list": LIST, "rows": rows, "blanks": [""] * 5_000, "n": 9_999_999_999, "deep": deep}


@pytest.mark.slow
@pytest.mark.parametrize("text", BOMBS, ids=lambda text: text[:60])
def test_a_template_that_exceeds_its_budget_is_refused(text: str) -> None:
    before, memory = time.process_time(), peak_bytes()
    with pytest.raises(Invalid) as refused:
        made(email=EmailPart("s", text)).render("email", variables())
    assert time.process_time() - before < SECONDS_MAX
    assert peak_bytes() - memory < MEMORY_BYTES_MAX
    assert refused.value.field == "parts.email.en.html"
    assert 10 < len(refused.value.detail) <= 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channel", "part"),
    [
        ("webhook", WebhookPart({"a": [LOOP] * 500})),
        ("webhook", WebhookPart({"a": ["{{ big }}"] * 500})),
        ("push", PushPart("t", "b", {str(number): LOOP for number in range(500)})),
    ],
    ids=["loops in a document", "a long document", "loops in data"],
)
def test_all_texts_of_a_message_have_one_budget(channel: ChannelName, part: Any) -> None:
    bomb = made(**{channel: part})
    before = time.process_time()
    with pytest.raises(Invalid, match=r"too much work|all parts together"):
        bomb.render(channel, variables())
    assert time.process_time() - before < RENDERING_SECONDS_MAX


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (["{{ a | upcase }}"] * 60_000, "5,000 values"),
        ([0] * 1_000_000, "5,000 values"),
        (["x" * 60_000] * 60, "524,288 bytes"),
        (["{{a}}" * 5_000] * 5, "10,000 tags"),
    ],
)
def test_a_template_that_would_take_long_to_parse_is_refused_first(body: list[Any], says: str) -> None:
    before = time.process_time()
    with pytest.raises(Invalid, match=says):
        made(webhook=WebhookPart({"a": body}))
    assert time.process_time() - before < RENDERING_SECONDS_MAX


def test_a_long_html_page_without_a_text_part_is_refused() -> None:
    page, given = "&#1" * 20_000 + "{{ a | safe }}" * 10, {"a": "&#1" * 16_000}
    with pytest.raises(Invalid, match="give a text too"):
        made(email=EmailPart("s", page)).render("email", given)
    assert made(email=EmailPart("s", page, "t")).render("email", given).text == "t"


def peak_bytes() -> int:
    """The peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_usual_templates_stay_far_below_the_limits() -> None:
    text = "{% for item in items %}<tr><td>{{ item.name }}</td><td>{{ item.price | times: 2 }}</td></tr>{% endfor %}"
    items = [{"name": f"thing {number}", "price": number} for number in range(500)]
    content = made(in_app=InAppPart("t", text)).render("in_app", {"items": items})
    assert content.text.count("<tr>") == 500


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"x": "y" * 10_000_000}, "larger than 65536 bytes"),
        ({"x": ["y"] * 10_000_000}, "larger than 65536 bytes"),
        ({"x": {str(number): 1 for number in range(100_000)}}, "larger than 65536 bytes"),
        ({str(number): "y" * 1_000 for number in range(100)}, "larger than 65536 bytes"),
        ({"x": "é" * 40_000}, "larger than 65536 bytes"),
        ({"x": 10**5_000}, "more than 256 bits"),
        ({"x": [[[[[[[[[1]]]]]]]]]}, "nested more than 8 levels"),
        ({"x": object()}, "is a object"),
        ({"x": {1: 2}}, "is a dict"),
        ({"x": {"y": b"z"}}, "is a bytes"),
        ({5: "x"}, "a name that is not a string"),
    ],
)
def test_variables_that_are_refused(given: dict[Any, Any], says: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with pytest.raises(Invalid) as refused:
        check_values(given)
    assert says in refused.value.detail
    assert refused.value.field.startswith("variables")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 1


def test_a_list_that_holds_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Invalid, match="nested more than"):
        check_values({"x": ring})

"""Templates: a part for each channel, languages, required variables, and errors."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidings.delivery.templates import (
    Compiled,
    EmailPart,
    InAppPart,
    Parts,
    PushPart,
    SmsPart,
    Template,
    WebhookPart,
    compile_template,
)
from tidings.delivery.templates.source import PatternGroup
from tidings.delivery.templates.template import plain_text
from tidings.delivery.templates.values import choose
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import ChannelName


def made(**parts: Any) -> Compiled:
    """A template with these parts, in English unless they are by language."""
    by_language = {name: part if isinstance(part, dict) else {"en": part} for name, part in parts.items()}
    return compile_template(Template("reminder", Parts(**by_language)))


def test_an_email_has_a_subject_an_html_page_and_a_text() -> None:
    template = made(email=EmailPart("Hi {{ name }}\n", "<p>Dear {{ name }}</p>", "Dear {{ name }}"))
    content = template.render("email", {"name": "Ada & <Co>"})
    assert content.title == "Hi Ada & <Co>"
    assert content.html == "<p>Dear Ada &amp; &lt;Co&gt;</p>"
    assert content.text == "Dear Ada & <Co>"


def test_the_text_of_an_email_is_derived_from_its_html_page() -> None:
    page = "<title>x</title><style>p {}</style><h1>Hi&nbsp;{{ name }}</h1><p>Tea<br/>at   nine &amp; ten</p>"
    assert made(email=EmailPart("s", page)).render("email", {"name": "<b>"}).text == "Hi <b>\nTea\nat nine & ten\n"
    assert plain_text("a < b > c <p" + "<" * 50_000) == "a c <p" + "<" * 50_000 + "\n"


def test_values_not_marked_as_safe_are_escaped() -> None:
    page = "{{ a }}{{ a | upcase }}{% assign b = a %}{{ b }}{% for x in c %}{{ x }}{% endfor %}{{ a | safe }}"
    content = made(email=EmailPart("s", page)).render("email", {"a": "<i>", "c": ["<i>"]})
    assert content.html == "&lt;i&gt;&lt;I&gt;&lt;i&gt;&lt;i&gt;<i>"


def test_a_text_message_has_its_number_of_segments() -> None:
    content = made(sms=SmsPart("Hi {{ name }}, {{ text }}")).render("sms", {"name": "Ada", "text": "x" * 160})
    assert content.segments is not None
    assert (content.segments.count, content.segments.encoding) == (2, "GSM-7")
    for text in ("", "x" * 1_600):
        with pytest.raises(Invalid, match="becomes empty, or longer than 1600"):
            made(sms=SmsPart("{{ text }}{{ text }}")).render("sms", {"text": text})


def test_push_and_inbox() -> None:
    push = made(push=PushPart("Hi {{ name }}", "{{ order.id }} is here", {"order": "{{ order.id }}"}))
    content = push.render("push", {"name": "Ada", "order": {"id": 42}})
    assert (content.title, content.text, content.data) == ("Hi Ada", "42 is here", {"order": "42"})
    inbox = made(in_app=InAppPart("Hi {{ name }}", "Tea")).render("in_app", {"name": "Ada"})
    assert (inbox.title, inbox.text) == ("Hi Ada", "Tea")


def test_no_value_breaks_the_json_of_a_webhook() -> None:
    body = {"text": "Hi {{ name }}", "list": ["{{ name }}", 1, None, True], "deep": {"x": "{{ n }}"}}
    content = made(webhook=WebhookPart(body)).render("webhook", {"name": '", "admin": "true', "n": 3})
    name = '", "admin": "true'
    assert json.loads(content.json) == {"text": f"Hi {name}", "list": [name, 1, None, True], "deep": {"x": "3"}}


@given(st.text(st.characters(exclude_categories=())), st.text() | st.integers(-(2**64), 2**64))
@example('"\\\x00\x1f\x7f\u2028é😀</script>%s%', 7)
@example("\ud800", "")
def test_a_webhook_is_the_json_of_its_rendered_texts(name: str, number: str | int) -> None:
    body = {"100 %": "100 % {{ name }}%s", "a": [{"b": "{{ n }}{{ name }}"}, '\\ " é', 1.5, None], "n": "{{ n }}"}
    template = made(webhook=WebhookPart(body))
    given = {"name": name, "n": number}
    texts = {"100 %": f"100 % {name}%s", "a": [{"b": f"{number}{name}"}, '\\ " é', 1.5, None], "n": f"{number}"}
    try:
        wanted = msgspec.json.encode(texts)
    except UnicodeEncodeError:
        with pytest.raises(UnicodeEncodeError):
            template.render("webhook", given)
    else:
        assert template.render("webhook", given).json == wanted


PLAIN = st.text(st.characters(exclude_categories=()), max_size=8) | st.integers(-(2**64), 2**64)
VALUES: st.SearchStrategy[Any] = st.one_of(
    PLAIN, PLAIN, st.sampled_from(["<&>'\"\x00", "a\nb", "x" * 20_000, "<" * 9_000, None, True, 1.5, []])
)
TEXTS = st.lists(st.sampled_from(["{{ a }}", "{{ b }}", "{{ c }}", "100 %", "%s", "<p>\n"]), max_size=4).map("".join)


def rendered(template: Compiled, channel: ChannelName, variables: dict[str, Any], locale: str) -> object:
    """The content, or what is wrong."""
    try:
        return template.render(channel, variables, locale)
    except (Invalid, UnicodeEncodeError) as error:
        return type(error), str(error)


@given(texts=st.tuples(TEXTS, TEXTS, TEXTS), variables=st.dictionaries(st.sampled_from("abc"), VALUES))
@example(texts=("{{ a }}", "{{ a }}{{ b }}", "{{ b }}"), variables={"a": "x\x00y", "b": "<"})
@example(texts=("", "", ""), variables={})
def test_texts_rendered_at_once_are_those_rendered_step_by_step(
    texts: tuple[str, str, str], variables: dict[str, Any]
) -> None:
    one, two, three = texts
    template = made(
        email={"en": EmailPart(one, f"<b>{two}</b>", three), "de": EmailPart(one, f"{two}<br>{three}")},
        push=PushPart(one, two, {"x": three, "y": one}),
        in_app=InAppPart(one, two),
        webhook=WebhookPart({"x": one, "%": [two, three]}),
    )
    for channel, locale in [(channel, "en") for channel in template.channels] + [("email", "de")]:
        at_once = rendered(template, channel, variables, locale)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PatternGroup, "words", lambda *_: None)
            assert rendered(template, channel, variables, locale) == at_once


@given(
    st.sampled_from(["en", "de", "de-at", "zh-hant", "fr", ""]),
    st.sets(st.sampled_from(["en", "de", "de-at", "zh"]), min_size=1),
)
def test_a_language_is_chosen_whatever_its_case(wanted: str, available: set[str]) -> None:
    assert choose(wanted, "en", available) == choose(wanted.upper(), "en", available)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("de", "Hallo"),
        ("de-AT", "Servus"),
        ("de_at", "Servus"),
        ("de-CH-1996", "Hallo"),
        ("zh-Hant-TW", "nihao"),
        ("zh-x-private", "nihao"),
        ("fr", "Hello"),
        (None, "Hello"),
        ("", "Hello"),
        ("x", "Hello"),
    ],
)
def test_the_closest_language_is_chosen(wanted: str | None, text: str) -> None:
    words = {"en": "Hello", "de": "Hallo", "de-AT": "Servus", "zh": "nihao"}
    template = made(sms={tag: SmsPart(said) for tag, said in words.items()})
    assert template.render("sms", {}, wanted).text == text


def test_without_a_matching_language_another_is_used() -> None:
    assert made(sms={"fr": SmsPart("Salut"), "da": SmsPart("Hej")}).render("sms", {}, "en").text == "Hej"


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("{{ name }}", ["name"]),
        ("{{ order.id }} {{ order.items[0].name }}", ["order.id", "order.items.0.name"]),
        ("{{ name | default: 'you' }}", []),
        ("{{ name | default: other }}", ["other"]),
        ("{{ name | default: 'you' }} {{ name }}", ["name"]),
        ("{{ name | upcase | default: 'x' }}", ["name"]),
        ("{% if vip %}{{ code }}{% else %}{{ price }}{% endif %}", ["code", "price", "vip"]),
        ("{% unless a == b %}{% endunless %}{% case c %}{% when d %}{% endcase %}", ["a", "b", "c", "d"]),
        ("{% for item in items %}{{ item.name }}{{ forloop.index }}{% endfor %}", ["items"]),
        ("{% for i in (1..n) %}{{ i }}{% endfor %}", ["n"]),
        ("{% assign x = name | append: last %}{{ x }}", ["last", "name"]),
        ("{% capture y %}{{ z }}{% endcapture %}{{ y }}", ["z"]),
        ("{{ items.size }} {{ items.first.name }} {{ items | size }}", ["items"]),
        ("{{ a[b.c] }} {{ a['some key'] }}", ["a", "a.some key", "b.c"]),
        ("{% comment %}{{ nothing }}{% endcomment %}{% raw %}{{ raw }}{% endraw %}{% # {{ x }} %}", []),
        ("{{ 'text' }} {{ 5 }} {{ true }} {{ nil }}", []),
        (
            "{% if name contains part %}{% endif %}{{ x | replace: y, z | join: w }}",
            ["name", "part", "w", "x", "y", "z"],
        ),
    ],
)
def test_required_variables_of_a_template(text: str, needs: list[str]) -> None:
    assert list(made(in_app=InAppPart("t", text)).needs()) == needs


def test_a_missing_variable_is_named_before_anything_is_accepted() -> None:
    template = made(
        email={"en": EmailPart("{{ name }}", text="{{ order.id }}"), "de": EmailPart("{{ anrede }}", text="x")},
        sms=SmsPart("{{ code }}"),
    )
    assert template.channels == ("email", "sms")
    assert template.needs(["sms"]) == ("code",)
    full = {"name": "Ada", "order": {"id": 1}, "anrede": "Frau", "code": "1"}
    template.check(full)
    template.check({"order": {"id": 1}, "anrede": "", "name": "Ada"}, ["email"])
    with pytest.raises(Invalid, match="missing 'code'"):
        template.check({"code": None}, ["sms"])  # null would be printed as nothing
    for name in full:
        with pytest.raises(Invalid, match=f"variables: missing '{name}.*', which template 'reminder' needs"):
            template.check({key: value for key, value in full.items() if key != name})
    with pytest.raises(Invalid, match=r"missing 'order\.id'"):
        template.check({**full, "order": {}})
    with pytest.raises(Invalid, match=r"missing 'anrede', 'name', 'order\.id', which"):
        template.check({}, ["email"])


def test_a_missing_variable_that_analysis_cannot_find_is_an_error_at_rendering() -> None:
    template = made(in_app=InAppPart("t", "{% for item in items %}{{ item.name }}{% endfor %}"))
    with pytest.raises(Invalid, match=r"line 1: item\.name is undefined"):
        template.render("in_app", {"items": [{"id": 1}]})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("line one\n{{ name", "line 2"),
        ("{% if x %}", "expected tag endif"),
        ("a\nb\n{{ x | shout }}", "unknown filter 'shout': there are abs"),
        ("{{ x | strip_html }}", "unknown filter"),
        ("{% include 'other' %}", "unexpected tag 'include'"),
        ("{% render 'other' %}", "unexpected tag 'render'"),
        ("{% tablerow x in y %}{% endtablerow %}", "unexpected tag 'tablerow'"),
        ("{% endfor %}", "endfor"),
        ("{{ a..b }}", "line 1"),
        ("{{ x | date: }", "line 1"),
        ("x" * 65_537, "has 65537 bytes, more than 65536"),
        ("{{ a" + "[a" * 5_000 + "]" * 5_000 + " }}", "nested too deeply"),
        ("{% if a %}" * 50 + "{% endif %}" * 50, "nesting"),
    ],
)
def test_an_invalid_template_is_refused_when_stored(text: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        made(sms=SmsPart(text))
    assert refused.value.field == "parts.sms.en.text"
    assert says in refused.value.detail


def test_a_break_outside_of_a_loop_is_refused() -> None:
    with pytest.raises(Invalid, match="outside of a loop"):
        made(sms=SmsPart("{% break %}")).render("sms", {})


@pytest.mark.parametrize("value", ["a\nBcc: eve@example.com", "a\rb", "a\x00b", "a\u2028b"])
def test_a_variable_cannot_break_a_subject(value: str) -> None:
    template = made(email=EmailPart("Hi {{ name }}!", text="x"), push=PushPart("{{ name }}!", "x"))
    for channel, field in (("email", "parts.email.en.subject"), ("push", "parts.push.en.title")):
        with pytest.raises(Invalid, match="line break") as refused:
            template.render(channel, {"name": value})  # type: ignore[arg-type]
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (Template("a b", Parts(sms={"en": SmsPart("x")})), "name"),
        (Template("a", Parts()), "parts"),
        (Template("a", Parts(sms={"english!": SmsPart("x")})), "parts.sms"),
        (Template("a", Parts(sms={"de-at": SmsPart("x"), "de_AT": SmsPart("x")})), "parts.sms"),
        (Template("a", Parts(sms={f"a{n:05d}": SmsPart("x") for n in range(101)})), "parts.sms"),
        (Template("a", Parts(sms={"en": SmsPart("x")}), locale="??"), "locale"),
        (Template("a", Parts(email={"en": EmailPart("x")})), "parts.email.en"),
    ],
)
def test_invalid_templates_are_refused(template: Template, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        compile_template(template)
    assert refused.value.field == field


def test_a_channel_without_a_part_is_named() -> None:
    with pytest.raises(Invalid, match="reminder has no part for push"):
        made(sms=SmsPart("x")).render("push", {})


def test_expiry_by_duration_or_by_class() -> None:
    parts = Parts(sms={"en": SmsPart("x")})
    assert Template("a", parts).stale_after_us is None
    assert Template("a", parts, urgency="asap").stale_after_us is None
    assert Template("a", parts, urgency="time_sensitive").stale_after_us == 30 * 60_000_000
    assert Template("a", parts, urgency="digest").stale_after_us == 24 * 3_600_000_000
    assert Template("a", parts, urgency="digest", expires_after_us=5).stale_after_us == 5


def test_a_template_round_trips_through_json() -> None:
    template = Template("a", Parts(email={"en": EmailPart("s", "<p>")}, webhook={"en": WebhookPart({"x": ["y"]})}))
    assert msgspec.json.decode(msgspec.json.encode(template), type=Template) == template


@pytest.mark.parametrize(
    "subject",
    [
        "{% assign who = name %}\nHello {{ who }}",
        "{% comment %}News{% endcomment %}\n{{ name }}",
        "{{ name }}\nHello",
        "{% if name %}{{ name }}{% endif %}\n{% unless name %}you{% endunless %}",
    ],
)
def test_a_subject_is_only_refused_if_it_always_has_a_line_break(subject: str) -> None:
    made(email=EmailPart(subject, text="x")).check_constants()
    with pytest.raises(Invalid, match="line break"):
        made(email=EmailPart("Hello {{ name }}\nNews", text="x")).check_constants()

"""The document of a schedule: what is sent is what is stored, byte for byte."""

import base64
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.domain.errors import Invalid
from tidings.domain.schedules.command import Priority
from tidings.domain.schedules.schedule import Request, Timing
from tidings.shapes.fields import names_of
from tidings.shapes.notification import NewNotification
from tidings.shapes.refusal import refusal
from tidings.shapes.schedule import NewSchedule
from tidings.wires import document


def read(**members: Any) -> Request:
    return document.read(json.dumps({"topic": "t"} | members).encode())


def attempt(work: Callable[[], object]) -> object:
    """The result of the work, or its refusal."""
    try:
        return work()
    except Invalid as invalid:
        return invalid


def value_of(raw: bytes) -> bytes | None:
    return document.read(b'{"topic":"t","value":' + raw + b"}").value


def test_every_field_arrives() -> None:
    request = read(
        id="order-42",
        at="2026-11-20T09:00:00Z",
        key="k",
        value="v",
        headers=[["trace", "abc"], ["trace", "def"], ["empty", None], ["raw", {"base64": "AP8="}]],
        priority="low",
        expires_after="PT1H",
        late="skip",
        late_grace="90s",
        late_max="P1D",
        jitter="PT5M",
        labels={"campaign": "autumn"},
    )
    assert request == Request(
        "t",
        b"v",
        b"k",
        (("trace", b"abc"), ("trace", b"def"), ("empty", None), ("raw", b"\x00\xff")),
        "order-42",
        "2026-11-20T09:00:00Z",
        Priority.LOW,
        expires_after="PT1H",
        late="skip",
        late_grace="90s",
        late_max="P1D",
        jitter="PT5M",
        labels={"campaign": "autumn"},
    )


def test_missing_and_null_fields_have_no_value() -> None:
    empty = Request("t")
    assert read() == empty
    absent = dict.fromkeys(names_of(NewSchedule))
    assert document.read(json.dumps(absent | {"topic": "t"}).encode()) == empty


def test_scheduled_at_is_another_name_for_at() -> None:
    assert read(scheduled_at="+5s").at == "+5s"
    with pytest.raises(Invalid, match="only one of them"):
        read(at="+5s", scheduled_at="+5s")


def test_headers_may_be_an_object() -> None:
    assert read(headers={"a": "ä", "n": None, "b": {"base64": ""}}).headers == (
        ("a", "ä".encode()),
        ("n", None),
        ("b", b""),
    )
    assert read(headers=[]).headers == read(headers={}).headers == ()


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (b'"text"', b"text"),
        (b'""', b""),
        (b'"a\\u00e9\\n\\"\\ud83d\\ude00"', 'aé\n"😀'.encode()),
        ('"é 日本"'.encode(), "é 日本".encode()),
        (b"null", None),
        (b' { "b" : 1 ,\t"a" : [ 1 , 2 ] } ', b'{"b":1,"a":[1,2]}'),
        (b'{"s": "two  spaces", "t": "\\t\\u00e9"}', b'{"s":"two  spaces","t":"\\t\\u00e9"}'),
        (b"[1e400, 0.10, -0.0, 1E+2]", b"[1e400,0.10,-0.0,1E+2]"),
        (b"123456789012345678901234567890", b"123456789012345678901234567890"),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2}'),
        (b"true", b"true"),
        (b"0", b"0"),
        (b"[]", b"[]"),
        (b"{ }", b"{}"),
    ],
)
def test_values_are_stored_as_they_were_sent(sent: bytes, stored: bytes | None) -> None:
    assert value_of(sent) == stored


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
SAFE_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.slow
@given(JSON, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_any_json_is_stored_compact(value: Any, indent: int | str | None, ascii_only: bool) -> None:
    try:
        sent = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    if isinstance(refused := attempt(lambda: value_of(sent)), Invalid):
        assert "surrogate" in refused.detail
        return
    stored = value_of(sent)
    if value is None:
        assert stored is None
    elif isinstance(value, str):
        assert stored == value.encode()
    else:
        assert stored == compact


@given(st.binary(), st.binary())
def test_any_bytes_arrive_as_base64(key: bytes, value: bytes) -> None:
    request = read(key_base64=base64.b64encode(key).decode(), value_base64=base64.b64encode(value).decode())
    assert (request.key, request.value) == (key, value)


@given(SAFE_TEXT, SAFE_TEXT, SAFE_TEXT)
def test_any_text_arrives_as_utf8(key: str, value: str, header: str) -> None:
    request = read(key=key, value=value, headers=[[header, value]])
    assert (request.key, request.value) == (key.encode(), value.encode())
    assert request.headers == ((header, value.encode()),)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    outcome = attempt(lambda: document.read(body))
    assert not isinstance(outcome, Invalid) or outcome.detail


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*names_of(NewSchedule), "zzz"]), JSON, max_size=5))
def test_any_document_is_read_or_refused(members: dict[str, Any]) -> None:
    outcome = attempt(lambda: document.read(json.dumps(members).encode()))
    assert not isinstance(outcome, Invalid) or (outcome.detail and ":" in str(outcome))


def test_time_fields_arrive() -> None:
    assert read(at="+5s").timing is None
    said = {"rrule": "FREQ=DAILY", "zone": "UTC", "start": "2026-11-20", "until": "2027-11-20", "gap": "skip"}
    said |= {"overlap": "both", "calendar": "off", "on_excluded": "next_day"}
    assert read(**said, count=3, rdates=["a", "b"], exdates=["c"]).timing == Timing(
        **said, count=3, rdates=("a", "b"), exdates=("c",)
    )
    assert read(cron="@hourly").timing == Timing(cron="@hourly")


@pytest.mark.parametrize("field", document.TIMING)
def test_publishing_refuses_time_fields(field: str) -> None:
    value: Any = {"count": 3, "rdates": ["a"], "exdates": ["a"]}.get(field, "x")
    with pytest.raises(Invalid, match="publishing is always now") as refused:
        document.read(json.dumps({"value": "x", field: value}).encode(), topic="t")
    assert refused.value.field == field


def test_a_long_unknown_name_is_shortened() -> None:
    with pytest.raises(Invalid) as refused:
        read(**{"x" * 5000: 1})
    assert len(refused.value.field) < 60


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"txt": "x"}, "content.txt: unknown field: did you mean 'text'?"),
        ({"zzz": "x"}, "content.zzz: unknown field: use one of data, html, text, title"),
    ],
)
def test_an_unknown_nested_field_is_refused_with_the_closest_name(body: Any, text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(json.dumps({"user": "a", "content": body}).encode(), type=NewNotification)
    assert str(refusal(error.value, NewNotification)) == text


def test_publishing_takes_the_topic_of_the_path() -> None:
    assert document.read(b'{"value":"x"}', topic="t").topic == "t"
    assert document.read(b'{"topic":"t"}', topic="t").topic == "t"
    for wrong in (b'{"topic":"other"}', b'{"at":"+5s"}', b'{"scheduled_at":"+5s"}', b'{"every":"PT1H"}'):
        with pytest.raises(Invalid, match="leave it out"):
            document.read(wrong, topic="t")


def test_replacing_takes_the_id_of_the_path() -> None:
    assert document.read(b'{"topic":"t"}', schedule_id="a").id == "a"
    assert document.read(b'{"topic":"t","id":"a"}', schedule_id="a").id == "a"
    with pytest.raises(Invalid, match="leave it out"):
        document.read(b'{"topic":"t","id":"b"}', schedule_id="a")

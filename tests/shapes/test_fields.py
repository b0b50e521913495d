"""Field declarations as they are read, and that every edge has every field of a schedule."""

from typing import Annotated, Literal

import msgspec
import pytest

from tidings.edges.cli.commands import notify, schedule
from tidings.edges.http.openapi.describe import components, shapes
from tidings.shapes.fields import Duration, Sent, about, field_at, fields_of, help_of, names_of
from tidings.shapes.notification import NewNotification
from tidings.shapes.schedule import NewSchedule, Outcome
from tidings.wires import native
from tidings.wires.answers import OutcomeDocument
from tidings.wires.document import CARRIED, TIMING


class Inner(Sent, frozen=True, kw_only=True):
    """Inside another one."""

    word: Annotated[Literal["a", "b"], about("One of two.")]


class Example(Sent, frozen=True, kw_only=True):
    """One of each kind."""

    text: Annotated[str | None, about("A text, unlike `count`. More about it.", "x", "y", "z", absent="none")] = None
    count: Annotated[int, about("A number.", minimum=1)] = 3
    choice: Annotated[Literal["low", "high"] | None, about("`low` or `high`.")] = None
    mixed: Annotated[tuple[Literal["p", "q"], ...] | Literal["all"] | None, about("Some.")] = None
    length: Annotated[Duration | None, about("A length of time.")] = None
    inner: Annotated[Inner | None, about("An object.")] = None
    texts: Annotated[dict[str, str], about("Texts.", {"k": "v"})] = msgspec.field(default_factory=dict)


def test_a_field_is_read_from_its_declaration() -> None:
    text = fields_of(Example)["text"]
    assert (text.description, text.examples, text.absent) == (
        "A text, unlike `count`. More about it.",
        ("x", "y", "z"),
        "none",
    )
    assert (text.choices, text.required, text.is_duration) == ((), False, False)
    assert fields_of(Example)["length"].is_duration
    assert fields_of(Inner)["word"].required


def test_choices_are_words_and_nothing_else() -> None:
    assert fields_of(Example)["choice"].choices == ("low", "high")
    mixed = fields_of(Example)["mixed"]
    assert (mixed.choices, mixed.words) == ((), ("p", "q", "all"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text", 'text, for example "x" or "y"'),
        ("count", "a whole number from 1 on"),
        ("choice", 'one of "low", "high"'),
        ("length", 'text, for example "PT1H" or "90s"'),
        ("inner", "an object"),
        ("texts", 'an object of texts, for example {"k": "v"}'),
    ],
)
def test_a_refusal_names_what_to_send(name: str, said: str) -> None:
    assert fields_of(Example)[name].send == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text", "a text, unlike --count (for example x; default: none)"),
        ("count", "a number (default: 3)"),
        ("choice", "low or high"),
        ("length", "a length of time (for example PT1H)"),
    ],
)
def test_the_help_of_an_option_is_the_first_sentence(name: str, said: str) -> None:
    assert help_of(Example, name) == said


def test_a_field_is_found_by_its_path() -> None:
    found = field_at(Example, "inner.word")
    assert found is not None
    assert found.choices == ("a", "b")
    assert field_at(Example, "mixed[0]") == fields_of(Example)["mixed"]
    assert field_at(Example, "text.more") is None
    assert field_at(Example, "nothing") is None


def test_every_field_is_described() -> None:
    bare = [
        (shape.__name__, name)
        for shape in shapes()
        for name, field in fields_of(shape).items()
        if not field.description
    ]
    assert bare == []
    unended = [name for shape in shapes() for name, field in fields_of(shape).items() if field.description[-1:] != "."]
    assert unended == []


def test_every_shape_is_in_openapi() -> None:
    assert {shape.__name__ for shape in shapes()} <= components().keys()


# Fields that are not an option, a header or an attribute of the same name.
SPECIAL_FIELDS = {"topic", "key", "key_base64", "value", "value_base64", "headers", "scheduled_at"}


def test_a_request_carries_every_field_of_a_schedule() -> None:
    converted = {*SPECIAL_FIELDS, "id", "at", "priority"}
    assert {*TIMING, *CARRIED} == {*names_of(NewSchedule)} - converted


def test_kafka_takes_every_field_of_a_schedule_as_a_header() -> None:
    headers = {f"tidings-{name.replace('_', '-')}" for name in {*names_of(NewSchedule)} - SPECIAL_FIELDS}
    assert headers - {*native.ACCEPTED} == set()


def test_the_command_line_has_an_option_for_every_field() -> None:
    by_hand = {*SPECIAL_FIELDS, "id", "labels", "bus", "count"}
    taken = {*schedule.WHEN, *schedule.BESIDE, *schedule.LISTS}
    assert {*names_of(NewSchedule)} - by_hand == taken | {*schedule.OPTIONS}
    assert {*names_of(NewNotification)} - notify.SPECIAL_FIELDS == {*notify.OPTIONS}


def test_an_outcome_has_the_fields_that_are_declared() -> None:
    assert {*OutcomeDocument.__struct_fields__} == {*names_of(Outcome), "line"}

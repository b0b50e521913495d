"""Plain requests become columns at once: as JSON documents and as requests of the library they give the same commands
as one by one, and the same refusals."""

from random import Random
from typing import Any

import msgspec
import pytest

from tidings.domain.errors import Invalid
from tidings.domain.names import Priority
from tidings.domain.schedules.command import Add, CommandBatch, PlainAdds
from tidings.domain.schedules.iso8601 import format_instant
from tidings.domain.schedules.schedule import Limits, Request
from tidings.domain.schedules.when import DAY_US
from tidings.intake.admission import Admission, check_new_id, plain_of
from tidings.wires import document

NOW = 1_795_165_200_000_000
TENANT = "acme"
DOCUMENTS = 1_500
REQUESTS = 1_000

MEMBERS: dict[str, list[Any]] = {
    "topic": ["greetings", "orders", "notify.email", "a b", "", None, "x" * 300, 5],
    "id": [None, "a", "order-1", "é", "", "x" * 300, "tid_" + "1" * 33, "tid_1", "a\x00b", "a\tb", 7],
    "at": [
        *(format_instant(NOW + ahead_us) for ahead_us in (0, 1, -1, -DAY_US, DAY_US, 3_000 * DAY_US, 40_000 * DAY_US)),
        *("2027-01-01T00:00:00Z", "2027-01-01T00:00:00.5Z", "2027-01-01T00:00:00+01:00", "+5s", "PT1H", "tomorrow"),
        *(None, 5, "2027-01-01T00:00:00", "1969-01-01T00:00:00Z", "2027-02-30T00:00:00Z", "2027-01-01T00:00:00.5z"),
    ],
    "value": [None, "text", "a\\b\n", "é", {"b": 1, "a": [1.50, None]}, 1.5, [], "", True, "v" * 70_000, "v" * 256],
    "key": [None, "k", "", "é", "k" * 5_000],
    "headers": [
        *([], None, {"a": "b"}, [["a", "1"], ["a", None]], [["b", {"base64": "AAE="}]], [["c", {"base64": "?"}]]),
        *([["a\x00", "x"]], [["é", "x"]], [["n", "x"]] * 80),
    ],
}
MORE: dict[str, list[Any]] = {
    "priority": ["high", "normal", "low", "none"],
    "labels": [{}, {"a": "b"}],
    "every": ["PT1H"],
    "zone": ["Europe/Berlin"],
    "jitter": ["PT1M"],
    "expires_after": ["PT1M"],
    "late": ["skip", "fire_latest"],
    "past": ["send", "refuse"],
    "bus": ["log", "kafka"],
    "scheduled_at": ["+5s"],
    "value_base64": ["AAE=", "?"],
    "key_base64": ["AAE="],
    "unknown": [1],
}
USUAL = {name: values[:2] for name, values in MEMBERS.items()}


def written(random: Random) -> bytes:
    """Most are plain; some have any field, with any value."""
    chosen: dict[str, Any] = {"topic": "greetings"}
    for name, values in (USUAL if random.random() < 0.5 else MEMBERS).items():
        if random.random() < 0.6:
            chosen[name] = random.choice(values)
    if random.random() < 0.3:
        name = random.choice([*MORE])
        chosen[name] = random.choice(MORE[name])
    return b"{" if random.random() < 0.01 else msgspec.json.encode(chosen)


def one_by_one(admission: Admission, body: bytes, topic: str | None) -> Add | str:
    """The general way."""
    try:
        request = document.read(body, topic)
        if request.id is not None:
            check_new_id(request.id)
        return admission.admit(TENANT, request, NOW)
    except Invalid as invalid:
        return repr(invalid.all)


def admissions(**options: Any) -> tuple[Admission, Admission]:
    return Admission(Limits(), **options), Admission(Limits(), **options)


@pytest.mark.parametrize("topic", [None, "greetings"])
@pytest.mark.parametrize("options", [{}, {"bus": "kafka"}, {"past": "refuse", "low_jitter_us": 5}], ids=repr)
def test_documents_give_the_same_commands(topic: str | None, options: dict[str, Any]) -> None:
    random, (columns, oracle) = Random(5), admissions(**options)
    plain = 0
    for _ in range(DOCUMENTS):
        body = written(random)
        expected = one_by_one(oracle, body, topic)
        batch = CommandBatch()
        try:
            found = document.plain_of(document.decode_document(body), topic, NOW)
        except Invalid:
            found = None
        if found is not None and columns.admit_plain(batch, TENANT, found, NOW):
            assert [*batch] == [expected], body
            assert isinstance(batch.parts[0], PlainAdds)
            plain += 1
        else:
            assert not batch
            assert one_by_one(columns, body, topic) == expected
    assert plain > DOCUMENTS / 20


def test_requests_give_the_same_commands() -> None:
    random, (columns, oracle) = Random(6), admissions()
    plain = 0
    for _ in range(REQUESTS):
        request = Request(
            random.choice(["greetings", "orders"]),
            random.choice([None, b"v", bytes(300)]),
            random.choice([None, b"k"]),
            random.choice([(), (("a", b"1"), ("a", None))]),
            random.choice([None, "a", "order 7", "é"]),
            random.choice([None, NOW, NOW - 1, NOW + DAY_US, format_instant(NOW + DAY_US), "+5s"]),
            random.choice([Priority.NORMAL, Priority.NORMAL, Priority.HIGH]),
            labels=random.choice([None, None, {"a": "b"}]),
            past=random.choice([None, "send"]),
        )
        expected = oracle.admit(TENANT, request, NOW)
        batch = CommandBatch()
        found = plain_of(request, NOW)
        if found is not None and columns.admit_plain(batch, TENANT, found, NOW):
            assert [*batch] == [expected]
            plain += 1
        else:
            assert columns.admit(TENANT, request, NOW) == expected
    assert plain > REQUESTS / 10


def test_a_batch_keeps_the_order_of_its_commands() -> None:
    admission = Admission(Limits())
    batch, expected = CommandBatch(), []
    for number in range(60):
        request = Request("greetings", b"%d" % number, id=f"n{number}" if number % 7 else None, at=NOW + number)
        if number % 11 == 10:
            request = msgspec.structs.replace(request, priority=Priority.HIGH)
        tenant = "acme" if number < 50 else "other"
        expected.append(admission.admit(tenant, request, NOW))
        plain = plain_of(request, NOW)
        if plain is None or not admission.admit_plain(batch, tenant, plain, NOW):
            batch.append(expected[-1])
    assert [*batch] == expected
    assert len(batch.parts) > 10
    assert {part.tenant for part in batch.parts if isinstance(part, PlainAdds)} == {"acme", "other"}
    for part in batch.parts:
        assert not isinstance(part, PlainAdds) or len({(add.tenant, add.id is None) for add in part}) == 1

"""Facts as documents, and the queue that never blocks."""

import asyncio
import threading

import pytest

pytest.importorskip("confluent_kafka")

from tidings.bus.kafka.topics import Cluster
from tidings.clock import SystemClock
from tidings.domain.facts import Changed, Handed, Missed, Refused
from tidings.domain.schedules.command import Add, Cancel, Command, Outcome, Replace
from tidings.domain.schedules.schedule import Message, Outgoing, pack
from tidings.domain.schedules.when import Once
from tidings.edges.kafka import facts
from tidings.edges.kafka.facts import KafkaFacts, documents
from tidings.testing import eventually

AT = 1_795_165_200_000_000


def add(topic: str = "kafka:orders", schedule_id: str | None = "a", message: Message | None = None) -> Add:
    content = pack(message or Message(None, b"x"))
    return Add("t", schedule_id, topic, Once(AT), content, bytes(16), AT)


def outgoing(topic: str) -> Outgoing:
    return Outgoing(0, "t", topic, "a", 1, 2, AT, AT + 5, pack(Message(None, b"x")))


def test_documents_of_changes() -> None:
    commands: list[Command] = [add(), Replace(add()), Cancel("t", "a"), add("orders", None)]
    outcomes = [
        Outcome("a", "scheduled", due=AT),
        Outcome("a", "already_released", state="released"),
        Outcome("a", "cancelled", in_flight=3),
        Outcome("b", "rejected", reason="no"),
    ]
    found = list(documents(Changed(AT, commands, outcomes)))
    assert [(tenant, name) for tenant, name, _ in found] == [("t", "a"), ("t", "a"), ("t", "a"), ("t", "b")]
    at = "2026-11-20T09:00:00.000000Z"
    first, second, third, fourth = (document for _, _, document in found)
    assert first == {
        "fact": "accepted",
        "at": at,
        "tenant": "t",
        "bus": "kafka",
        "topic": "orders",
        "id": "a",
        "action": "add",
        "outcome": "scheduled",
        "due_at": at,
    }
    assert (second["fact"], second["action"], second["outcome"]) == ("rejected", "replace", "already_released")
    assert (third["fact"], third["in_flight"]) == ("cancelled", 3)
    assert (fourth["fact"], fourth["reason"], fourth["bus"]) == ("rejected", "no", "log")


def test_a_refused_record_and_its_rejection_are_one_fact() -> None:
    refused = Refused(AT, "t", "record", ("one", "two"), ("assignments.t", 2, 17))
    [(tenant, name, document)] = documents(refused)
    assert (tenant, name, document["fact"]) == ("t", None, "rejected")
    source = (document["source_topic"], document["source_partition"], document["source_offset"])
    assert source == ("assignments.t", 2, 17)
    assert document["reasons"] == ("one", "two")
    assert list(documents([outgoing("rejections.t")])) == []


def test_a_command_without_effect_is_rejected_whatever_its_outcome() -> None:
    for word in ("cancelled", "already_released", "in_flight"):
        for command in (add(), Replace(add())):
            [(_, _, document)] = documents(Changed(AT, [command], [Outcome("a", word, state="cancelled")]))
            assert (document["fact"], document["outcome"]) == ("rejected", word)


def test_documents_of_releases_and_of_facts_without_an_id() -> None:
    [(_, name, document)] = documents([outgoing("orders")])
    assert name == "a"
    assert (document["fact"], document["occurrence"]) == ("released", "a/1/2")
    [(tenant, name, document)] = documents(Missed(AT, {"expired": 2}))
    assert (tenant, name, document["reasons"]) == ("", None, {"expired": 2})
    [(tenant, name, document)] = documents(Refused(AT, "t", "at"))
    assert (tenant, name, document["field"]) == ("t", None, "at")
    assert list(documents(Handed(AT, 3))) == []


def test_facts_that_do_not_fit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "WAITING_FACTS_MAX", 3)
    listener = KafkaFacts(Cluster("127.0.0.1:1"), SystemClock())
    listener(Changed(AT, [add(), add()], [Outcome("a", "scheduled")] * 2))
    listener.released([outgoing("orders")] * 2)
    listener(Missed(AT, {"expired": 1}))
    listener(Refused(AT, "t", "at"))
    assert listener.dropped == 3
    assert listener.problem is None


async def test_an_error_in_one_fact_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The node continues, and later facts are published."""
    found: list[str | None] = []

    def produce(_: KafkaFacts, __: object, ___: str, ____: bytes, key: str | None) -> None:
        if key == "bad":
            raise UnicodeEncodeError("utf-8", "bad", 0, 1, "a fault of ours")
        found.append(key)

    monkeypatch.setattr(KafkaFacts, "_produce", produce)
    monkeypatch.setattr(facts._Outlet, "prepare", lambda _: None)
    monkeypatch.setattr(facts._Outlet, "topics", lambda _, __: [facts.FACTS])
    listener = KafkaFacts(Cluster("127.0.0.1:1", settings={"log_level": "0"}), SystemClock())
    for names in (["a", "bad", "b"], ["bad"], ["c"]):
        outcomes = [Outcome(name, "scheduled") for name in names]
        listener(Changed(AT, [add(schedule_id=name) for name in names], outcomes))
    listener.stop()
    await listener.run()
    assert found == ["a", "c"]
    assert listener.dropped == 3
    assert [record.levelname for record in caplog.records if "dropped" in record.message] == ["WARNING"]


async def test_a_cancelled_listener_leaves_no_thread() -> None:
    def threads() -> set[int | None]:
        return {thread.ident for thread in threading.enumerate() if "kafka-facts" in thread.name}

    before = threads()
    running = asyncio.create_task(KafkaFacts(Cluster("127.0.0.1:1"), SystemClock()).run())
    await eventually(lambda: threads() - before)
    running.cancel()
    await asyncio.wait({running})
    await eventually(lambda: threads() <= before)

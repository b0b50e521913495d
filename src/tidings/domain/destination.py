"""Destinations: a topic of the built-in log, or a topic of Kafka.

Internally a destination is one string: `orders` is a topic of the log, `kafka:orders` of Kafka. No topic has a colon in
its name.
"""

from typing import Literal

Bus = Literal["log", "kafka"]

BUSES: tuple[Bus, ...] = ("log", "kafka")
KAFKA = "kafka:"


def join(bus: Bus, topic: str) -> str:
    """The destination for a bus and a topic."""
    return KAFKA + topic if bus == "kafka" else topic


def split(destination: str) -> tuple[Bus, str]:
    """The bus and the topic of a destination."""
    return ("kafka", destination[len(KAFKA) :]) if is_kafka(destination) else ("log", destination)


def is_kafka(destination: str) -> bool:
    """Whether the destination is a Kafka topic."""
    return destination.startswith(KAFKA)

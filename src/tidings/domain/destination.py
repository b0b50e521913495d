"""Where a message appears: a topic of the built-in log, or a topic of Kafka.

Inside, both are one text: `orders` is on the log, `kafka:orders` on Kafka. No topic's name holds a colon.
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
    """Whether it lies on Kafka."""
    return destination.startswith(KAFKA)

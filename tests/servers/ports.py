"""Free ports on this machine."""

import random
import socket
from itertools import islice

HOST = "127.0.0.1"

# Below the ports that systems give to outgoing connections: otherwise a client that looks for a dead server could
# take the port, or even connect to itself.
RANGE = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """This many ports on which nothing listens."""
    drawn = random.SystemRandom().sample(RANGE, len(RANGE))
    return list(islice(filter(is_free, drawn), count))


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True

"""A broker for developers, until Ctrl-C: `make kafka`."""

import argparse
import contextlib
import signal
import sys

from tests.servers.downloads import Missing
from tests.servers.java import kafka_version
from tests.servers.kafka import Broker, StartFailed
from tests.servers.ports import is_free

PORT = 9092
COMFORT = {"auto.create.topics.enable": "true"}
READY = """\
Kafka {version} answers on localhost:{port}, in plain text. Topics are made when they are first used.
Its data in {folder} is removed at the end: Ctrl-C.

In another terminal:
  .venv/bin/tidings serve --kafka localhost:{port}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make kafka", description="Start a real Kafka broker, until Ctrl-C.")
    parser.add_argument("--port", type=int, default=PORT, help=f"where it listens, {PORT} if not given")
    port = parser.parse_args().port
    if not is_free(port):
        print(f'something listens on port {port} already: make kafka ARGS="--port {port + 1}"', file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            return serve(port)
    except (Missing, StartFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def serve(port: int) -> int:
    """Until it is interrupted; that a broker ends by itself is a failure."""
    print("starting Kafka; the first time its jars are fetched, about 50 MB", flush=True)
    with Broker.start(port=port, properties=COMFORT) as broker:
        print(READY.format(version=kafka_version(), port=port, folder=broker.folder), flush=True)
        broker.wait()
        print(f"the broker has ended:\n{broker.tail()}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

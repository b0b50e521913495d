"""A server for developers, until Ctrl-C: `make kafka`, `make postgres`."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable

from tests.servers import kafka, postgres
from tests.servers.downloads import Missing
from tests.servers.java import kafka_version
from tests.servers.kafka import Broker
from tests.servers.ports import is_free
from tests.servers.postgres import DURABLE, Postgres

COMFORT = {"auto.create.topics.enable": "true"}
KAFKA_READY = """\
Kafka {version} answers on localhost:{port}, in plain text. Topics are made when they are first used.
Its data in {folder} is removed at the end: Ctrl-C.

In another terminal:
  .venv/bin/tidings serve --kafka localhost:{port}
"""
POSTGRES_READY = """\
PostgreSQL {version} answers on localhost:{port}, with the role tidings_node and the database tidings.
The administrator is tidings: psql postgres://tidings@127.0.0.1:{port}/postgres. No password is asked for; any will do.
Its data in {folder} is removed at the end: Ctrl-C.

In other terminals, as many nodes as you like, each on a port of its own:
  .venv/bin/tidings serve --store postgres://tidings_node@127.0.0.1:{port}/tidings
  .venv/bin/tidings serve --store postgres://tidings_node@127.0.0.1:{port}/tidings --port 8461
  .venv/bin/tidings nodes
"""
SET_UP = ("CREATE ROLE tidings_node LOGIN", "CREATE DATABASE tidings OWNER tidings_node")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make kafka|postgres", description="Start a real server, until Ctrl-C.")
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--port", type=int, help="where it listens, its usual port if not given")
    arguments = parser.parse_args()
    usual, serve = SERVERS[arguments.server]
    port = arguments.port or usual
    if not is_free(port):
        hint = f'make {arguments.server} ARGS="--port {port + 1}"'
        print(f"something listens on port {port} already: {hint}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            print(f"{serve(port)}", file=sys.stderr)
            return 1
    except (Missing, kafka.StartFailed, postgres.StartFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def serve_kafka(port: int) -> str:
    """Until it is interrupted; a broker that ends by itself is reported as a failure."""
    print("starting Kafka; the first time its jars are fetched, about 50 MB", flush=True)
    with Broker.start(port=port, properties=COMFORT) as broker:
        print(KAFKA_READY.format(version=kafka_version(), port=port, folder=broker.folder), flush=True)
        broker.wait()
        return f"the broker has ended:\n{broker.tail()}"


def serve_postgres(port: int) -> str:
    """The same."""
    with Postgres.start(DURABLE, port) as server:
        with server.connect() as connection:
            for statement in SET_UP:
                connection.execute(statement.encode())
            version = connection.info.server_version // 10_000
        print(POSTGRES_READY.format(version=version, port=port, folder=server.folder), flush=True)
        server.wait()
        return f"the server has ended:\n{server.tail()}"


SERVERS: dict[str, tuple[int, Callable[[int], str]]] = {
    "kafka": (9092, serve_kafka),
    "postgres": (5432, serve_postgres),
}


if __name__ == "__main__":
    sys.exit(main())

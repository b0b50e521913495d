"""The composition root: the only package that names stores, buses and providers."""

from tidings.node.kafka import join_kafka
from tidings.node.serve import SWITCH_INTERVAL_S, build_engine, run_node, serve_node, url_from_here, url_of
from tidings.node.stores import (
    CannotStart,
    copy_store,
    create_key,
    list_keys,
    migrate_store,
    open_store,
    revoke_key,
    take_back,
)

__all__ = [
    "SWITCH_INTERVAL_S",
    "CannotStart",
    "build_engine",
    "copy_store",
    "create_key",
    "join_kafka",
    "list_keys",
    "migrate_store",
    "open_store",
    "revoke_key",
    "run_node",
    "serve_node",
    "take_back",
    "url_from_here",
    "url_of",
]

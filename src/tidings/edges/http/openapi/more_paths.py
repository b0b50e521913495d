"""The paths of consumer groups, of keys, and of those who watch over the process."""

from typing import Any

from tidings.edges.http.openapi import examples as e
from tidings.edges.http.openapi.operations import answer, in_path, operation, sent
from tidings.edges.http.openapi.shapes import Schema

_GROUP = "/v1/topics/{topic}/groups/{group}"
_PLACE = [in_path("topic", "The topic."), in_path("group", "The group's name.")]


def group_paths() -> dict[str, Schema]:
    """Consumer groups: members share a topic's partitions."""
    member = {200: answer("Its place.", "Membership", e.MEMBERSHIP)}
    fetched = {200: answer("Some records of its partitions.", "Fetched", {"records": [e.RECORD]})}
    committed = {"member": "worker-1", "committed": {"2": 1}}
    kept = {200: answer("Kept, and on disk.", "Committed", committed)}
    left = {200: answer("Its partitions move at once.", "Left", {"member": "worker-1", "left": True})}
    fetch = "The next records. If a fetch fails on its way, join again: what it took is given out again then"
    return {
        f"{_GROUP}/join": _group("joinGroup", "Become a member", member, "Join", {"member": "worker-1"}),
        f"{_GROUP}/heartbeat": _group("heartbeat", "Stay a member, learn the partitions", member, "Member", e.MEMBER),
        f"{_GROUP}/fetch": _group("fetchRecords", fetch, fetched, "Fetch", e.FETCH),
        f"{_GROUP}/commit": _group("commitOffsets", "Keep what is done", kept, "Commit", e.COMMIT),
        f"{_GROUP}/leave": _group("leaveGroup", "Hand the partitions over", left, "Member", e.MEMBER),
    }


def _group(name: str, summary: str, answers: dict[int, Schema], schema: str, example: Any) -> Schema:
    body = sent(schema, example, required=schema != "Join")
    return {"post": operation("Groups", name, summary, answers, "409 413 415", parameters=_PLACE, body=body)}


def key_paths() -> dict[str, Schema]:
    """API keys; only for a key that may manage keys, or on a machine without any."""
    keys = answer("Every key, never the key itself.", "Keys", {"keys": [e.KEY]})
    made = answer("Made. The key is shown this once.", "Key", e.NEW_KEY_SHOWN)
    revoked = answer("From now on it is nothing.", "Revoked", {"name": "laptop", "revoked": True})
    body = sent("NewKey", e.NEW_KEY)
    named = [in_path("name", "The key's name.")]
    return {
        "/v1/keys": {
            "get": operation("Keys", "listKeys", "List", {200: keys}),
            "post": operation("Keys", "createKey", "Create", {201: made}, "413 415", body=body),
        },
        "/v1/keys/{name}": {
            "delete": operation("Keys", "revokeKey", "Revoke", {200: revoked}, "404", parameters=named)
        },
    }


def watch_paths() -> dict[str, Schema]:
    """Health, metrics and this description. They need no key."""
    alive = answer("The process answers.", "Status", {"status": "ok", "version": "0.1.0"})
    ready = answer("It takes changes.", "Status", {"status": "ready", "detail": "ready"})
    figures = answer("In the text format of Prometheus.", "", e.METRICS, "text/plain")
    described: Schema = {
        "description": "OpenAPI 3.1.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    page = answer("A page to try it.", "", "<!doctype html>", "text/html")
    way = answer("There.", "", "see /docs\n", "text/plain", Location="`/docs`.")
    return {
        "/healthz": _watch("health", "Whether the process is alive", alive),
        "/readyz": _watch("readiness", "Whether it takes changes now", ready, "503"),
        "/metrics": _watch("metrics", "Figures for Prometheus", figures, "404"),
        "/openapi.json": _watch("openapi", "This description", described),
        "/docs": _watch("docs", "A page to try it", page),
        "/": {"get": operation("Watching", "home", "To the page to try it", {307: way}, guarded=False)},
    }


def _watch(name: str, summary: str, done: Schema, problems: str = "") -> Schema:
    return {"get": operation("Watching", name, summary, {200: done}, problems, guarded=False)}

"""The intended differences between the answers of version 0.1 and those of today, each with its reason."""

from typing import Any

from tidings.domain.notifications.address_key import address_key
from tidings.shapes.fields import names_of
from tidings.shapes.schedule import TimeShown

WAITING = ("pending", "paused")
TEXT = "(text)"


def expected(answers: dict[str, Any]) -> dict[str, Any]:
    """The recorded answers with the intended differences applied."""
    return {name: as_today(name, answer) for name, answer in answers.items() if not is_retry(name)}


def is_retry(name: str) -> bool:
    """Whether it is about the retry of a delivery: 0.1 showed those among the schedules, as `<delivery>~<number>`."""
    return "/v1/schedules/" in name and "~" in name


def as_today(name: str, answer: Any) -> Any:
    """One of them."""
    _, _, path = name.partition(" ")
    if path.partition("?")[0] == "/v1/schedules":
        return finished_last([row for row in answer if "~" not in row["id"]])
    if path == "/v1/suppressions":
        return normalised(answer)
    if path == "/v1/channels":
        return with_files(answer)
    return with_content(answer) if path.startswith("/v1/notifications") else answer


def finished_last(rows: list[Any]) -> list[Any]:
    """Lists show what waits first, and then what is finished, the latest first: 0.1 sorted all by due time."""
    finished = [row for row in rows if row["state"] not in WAITING]
    return [row for row in rows if row["state"] in WAITING] + finished[::-1]


def normalised(rows: list[Any]) -> list[Any]:
    """An address has one suppression (of each category): 0.1 had one for each way of writing the address.

    The fixtures have one for the normalised address too, which is kept.
    """
    return [row for row in rows if row["address"] == address_key(row["channel"], row["address"])]


def with_files(answer: Any) -> Any:
    """The provider that writes messages into files is called `files`: 0.1 called it `outbox`."""
    rows = answer["body"]["providers"]
    renamed = [row | {"provider": "files"} if row["provider"] == "outbox" else row for row in rows]
    return answer | {"body": answer["body"] | {"providers": renamed}}


def with_content(answer: Any) -> Any:
    """What a notification says without a template is its `content`: 0.1 called the field `words`."""
    if isinstance(answer, list):
        return [with_content(each) for each in answer]
    if isinstance(answer, dict):
        return {"content" if name == "words" else name: with_content(value) for name, value in answer.items()}
    return answer


def without_additions(name: str, answer: Any, former: Any) -> Any:
    """An answer of today without what 0.1 did not show of a notification: its ETag, and when it is due as requested."""
    if "/v1/notifications" not in name:
        return answer
    if isinstance(answer, list) and isinstance(former, list):
        return [without_additions(name, *pair) for pair in zip(answer, former, strict=True)]
    if not isinstance(answer, dict) or not isinstance(former, dict):
        return answer
    added = {"etag", *names_of(TimeShown)} - former.keys()
    return {
        field: without_additions(name, value, former.get(field))
        for field, value in answer.items()
        if field not in added
    }


def comparable(answer: Any) -> Any:
    """An answer with a mark in place of each of its rewritten texts, and without its ETag if it has one."""
    if isinstance(answer, list):
        return [comparable(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    if "zones" in answer:
        return sorted(zone["name"] for zone in answer["zones"])
    texts = rewritten(answer)
    marked: dict[str, Any] = {
        name: TEXT if name in texts and isinstance(value, str) else comparable(value) for name, value in answer.items()
    }
    body = marked.get("body")
    if isinstance(body, dict) and TEXT in body.values():
        marked.pop("etag", None)
    return marked


def rewritten(document: dict[str, Any]) -> set[str]:
    """The fields of which only the presence is compared: texts of Tidings for people are rewritten since 0.1.

    `tzdata` is the version of the time zone rules, which is that of the installed package.
    """
    fields = {"note", "tzdata"}
    if str(document.get("type")).startswith("urn:tidings:problem:"):
        fields |= {"title", "detail"}
    elif document.keys() == {"field", "detail"}:
        fields.add("detail")
    return fields

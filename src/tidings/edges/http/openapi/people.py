"""The people in the API's description: users, their inboxes, and addresses that nothing goes to."""

from typing import get_args

from tidings.domain.address import Platform
from tidings.domain.rendered import CHANNEL_NAMES
from tidings.domain.user import InQuiet
from tidings.edges.http.openapi.operations import NDJSON, answer, content, header, in_path, operation, query, sent
from tidings.edges.http.openapi.schedules import nullable
from tidings.edges.http.openapi.shapes import INSTANT, Schema, array, instant, number, or_null, ref, shape, text

CURSOR = query("cursor", "Where the page before ended.")
LIMIT = query("limit", "At most so many.", number("", minimum=1, maximum=1000, default=100))
NEXT = or_null(text("Where to go on; null: that was all."))
CHANNEL = text("The channel.", enum=list(CHANNEL_NAMES))
IF_MATCH = header("If-Match", "Only if the ETag is still this one.")

_USER_ID = in_path("id", "The user's id: 1 to 100 letters, digits and `. _ @ + : ~ = -`.")
_OWNER = in_path("user", "The user's id.")
_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_WISHES: Schema = {"type": "object", "additionalProperties": {"type": "boolean"}}
_HOURS = or_null(text("Hours alone.", examples=["22:00-07:00"]))
_PROFILE: dict[str, Schema] = {
    "name": text("Her name; templates know it as `name`."),
    "email": text("Her mailbox."),
    "phone": text("Her telephone, as `+15550100`."),
    "webhook": text("A URL that is called for her."),
    "locale": text("Her language, such as `de` or `pt-BR`."),
}
_SENT: dict[str, Schema] = nullable(_PROFILE) | {
    "zone": or_null(text("Whose clocks she lives by; UTC without one.", examples=["America/New_York"])),
    "devices": array(ref("Device"), "Where her apps are, at most 20."),
    "preferences": _WISHES | {"description": "Yes or no by channel, category, or `channel/category`."},
    "quiet": {"description": "When she is left alone.", "oneOf": [_HOURS, ref("QuietHours")]},
    "variables": _TEXTS | {"description": "What templates may use for her."},
}
_CHANGES = _SENT | {
    name: _SENT[name] | {"type": [_SENT[name]["type"], "null"]} for name in ("devices", "preferences", "variables")
}
_COUNTS: Schema = {"type": "object", "additionalProperties": {"type": "integer"}}

SCHEMAS: dict[str, Schema] = {
    "Device": shape(
        "One installation of an app.",
        "platform token",
        platform=text("Whose push service.", enum=list(get_args(Platform))),
        token=text("As the app received it."),
    ),
    "QuietHours": shape(
        "Hours of her day, over midnight if they end before they begin.",
        "hours",
        hours=text("From and to.", examples=["22:00-07:00"]),
        then=text("What becomes of what falls into them.", enum=list(get_args(InQuiet)), default="defer"),
        spares_high={"type": "boolean", "description": "Whether high priority goes through.", "default": True},
    ),
    "NewUser": shape("A user as she is sent.", "", id=or_null(text("As in the path.")), **_SENT),
    "UserChanges": shape("Fields to change (RFC 7396): null removes one, objects are merged.", "", **_CHANGES),
    "User": shape(
        "A user; what she does not have is left out.",
        "id zone",
        id=text("Her id."),
        **_PROFILE,
        zone=text("Whose clocks she lives by."),
        devices=_SENT["devices"],
        preferences=_SENT["preferences"],
        quiet=ref("QuietHours"),
        variables=_SENT["variables"],
    ),
    "UserPage": shape("Some users, by id.", "users cursor", users=array(ref("User")), cursor=NEXT),
    "UserOutcome": shape(
        "What happened.",
        "id outcome",
        id=text("Her id."),
        outcome=text("What was done.", enum=["created", "replaced", "changed", "deleted"]),
    ),
    "Erased": shape(
        "What was removed.",
        "id outcome removed cancelled suppressions providers",
        id=text("Her id."),
        outcome={"const": "erased"},
        removed=_COUNTS | {"description": "How many documents, by kind."},
        cancelled=number("How many pending schedules will not leave any more."),
        suppressions=number("How many suppressed addresses were reduced to a digest."),
        providers=array(text("A channel."), "Through which messages went to her: what they keep is for them to erase."),
    ),
    "Imported": shape(
        "How far an import has come.",
        "lines created replaced bad bad_lines",
        lines=number("Lines read."),
        created=number("Users made."),
        replaced=number("Users replaced."),
        bad=number("Lines left out."),
        bad_lines=array(ref("BadLine"), "Those since the line before, up to 1,000 of all."),
        done={"const": True, "description": "On the last line alone, which has the totals."},
    ),
    "BadLine": shape(
        "A line that was left out.",
        "line field reason",
        line=number("Its number, from 1."),
        field=text("What is wrong."),
        reason=text("What to change."),
    ),
    "InboxLine": shape(
        "A line in an inbox.",
        "id title body at",
        id=text("Its id."),
        title=text("Its title."),
        body=text("What it opens to."),
        at=instant("When it came."),
        read_at=instant("When she read it."),
    ),
    "InboxPage": shape("Some lines, the latest first.", "lines cursor", lines=array(ref("InboxLine")), cursor=NEXT),
    "Unread": shape(
        "How many she has not read.",
        "unread more",
        unread=number("Counted up to 1,000."),
        more={"type": "boolean", "description": "Whether there are more than that."},
    ),
    "MarkRead": shape(
        "Which lines she has read: one of the two.",
        "",
        ids=array(text("Of a line."), "At most 1,000."),
        all={"type": "boolean", "description": "All that are there now."},
    ),
    "MarkedRead": shape(
        "What was marked.",
        "user outcome read",
        user=text("Whose."),
        outcome={"const": "read"},
        read=number("How many."),
        unknown=array(text("An id."), "Those that she does not have."),
    ),
    "NewSuppression": shape(
        "Why nothing goes there.",
        "",
        reason=text("In one line, at most 200 characters.", default="by hand"),
        category=or_null(text("Only this category; without one nothing at all.")),
    ),
    "Suppression": shape(
        "An address that nothing goes to.",
        "channel reason since",
        channel=CHANNEL,
        address=text("The address; gone once its person was erased."),
        reason=text("Why."),
        category=text("Only this category."),
        user=text("Whose it was."),
        since=instant("Since when."),
    ),
    "SuppressionPage": shape(
        "Some of them, the latest first.",
        "suppressions cursor",
        suppressions=array(ref("Suppression")),
        cursor=NEXT,
    ),
    "SuppressionOutcome": shape(
        "What happened.",
        "channel address outcome",
        channel=CHANNEL,
        address=text("The address."),
        outcome=text("What was done.", enum=["suppressed", "unchanged", "removed"]),
    ),
}

_ADA = {"name": "Ada", "email": "ada@example.com", "phone": "+15550100", "zone": "America/New_York"}
_SHOWN = {"id": "ada"} | _ADA | {"quiet": {"hours": "22:00-07:00"}}
_ETAG = "Her version, for `If-Match`."
_LINE = {"id": "n_1/1", "title": "It is nine", "body": "Good morning, Ada.", "at": INSTANT}
_PROGRESS = {"lines": 3, "created": 1, "replaced": 0, "bad": 1, "bad_lines": [], "done": True}
_SUPPRESSION = {"channel": "email", "address": "ada@example.com", "reason": "bounced: 550", "since": INSTANT}


def user_paths() -> dict[str, Schema]:
    """Users."""
    page = answer("A page.", "UserPage", {"users": [_SHOWN], "cursor": None})
    erased = {
        "id": "ada",
        "outcome": "erased",
        "removed": {"user": 1},
        "cancelled": 0,
        "suppressions": 0,
        "providers": ["smtp"],
    }
    erase = answer("Gone, everywhere.", "Erased", erased)
    lines = answer("Progress after each batch; the last line has the totals.", "Imported", _PROGRESS, NDJSON)
    file: Schema = {
        "required": True,
        "content": {
            "text/csv": content("", "id,email\nada,ada@example.com\n"),
            NDJSON: content("", '{"id":"ada","email":"ada@example.com"}\n'),
        },
    }
    prefix = query("prefix", "Only ids that begin with this.")
    return {
        "/v1/users": {"get": operation("Users", "listUsers", "List", {200: page}, parameters=[prefix, CURSOR, LIMIT])},
        "/v1/users/{id}": _one_user(),
        "/v1/users/{id}/erase": {
            "post": operation(
                "Users", "eraseUser", "Remove all that is hers", {200: erase}, "404 413", parameters=[_USER_ID]
            )
        },
        "/v1/users/import": {
            "post": operation("Users", "importUsers", "Many from a file", {200: lines}, "415", body=file)
        },
    }


def _one_user() -> Schema:
    changed = {"id": "ada", "outcome": "changed"}
    new = header("If-None-Match", "`*`: only if there is none yet.")
    put = {
        201: answer("Made.", "UserOutcome", {"id": "ada", "outcome": "created"}, ETag=_ETAG, Location="Where she is."),
        200: answer("Another profile in place of hers.", "UserOutcome", changed | {"outcome": "replaced"}, ETag=_ETAG),
    }
    patched = {200: answer("Changed.", "UserOutcome", changed, ETag=_ETAG)}
    gone = {200: answer("Her profile is gone.", "UserOutcome", changed | {"outcome": "deleted"})}
    shown = {200: answer("The user.", "User", _SHOWN, ETag=_ETAG)}
    changing, few = [_USER_ID, IF_MATCH], "404 409 412"
    body = sent("UserChanges", {"phone": None, "locale": "en"})
    return {
        "get": operation("Users", "showUser", "Show one", shown, "404", parameters=[_USER_ID]),
        "put": operation(
            "Users",
            "putUser",
            "Make her, or put another profile in place of hers",
            put,
            "409 412 413 415",
            parameters=[*changing, new],
            body=sent("NewUser", _ADA | {"quiet": "22:00-07:00"}),
        ),
        "patch": operation(
            "Users", "changeUser", "Change some fields", patched, f"{few} 413 415", parameters=changing, body=body
        ),
        "delete": operation("Users", "deleteUser", "Remove her profile alone", gone, few, parameters=changing),
    }


def inbox_paths() -> dict[str, Schema]:
    """What a person was told inside the product."""
    page = answer("A page.", "InboxPage", {"lines": [_LINE], "cursor": None})
    count = answer("How many.", "Unread", {"unread": 3, "more": False})
    marked = answer("Marked.", "MarkedRead", {"user": "ada", "outcome": "read", "read": 3})
    events = answer(
        "Server-sent events: `data` is a line, `id` the cursor behind it.",
        "",
        'id: 1795165200000000.ada/n_1/1\ndata: {"id":"n_1/1",...}\n\n',
        "text/event-stream",
    )
    last = header("Last-Event-ID", "Goes on behind this event; goes before `cursor`.")
    only = query("unread", "Only what she has not read.", {"type": "boolean", "default": False})
    read = sent("MarkRead", {"all": True})
    after = query("cursor", "A position; absent: from now on.")
    one = "/v1/inbox/{user}"
    listed = [_OWNER, only, CURSOR, LIMIT]
    return {
        one: {"get": operation("Inbox", "listInbox", "Her lines", {200: page}, parameters=listed)},
        f"{one}/unread": {"get": operation("Inbox", "countUnread", "How many", {200: count}, parameters=[_OWNER])},
        f"{one}/read": {
            "post": operation(
                "Inbox", "markRead", "Mark as read", {200: marked}, "413 415", parameters=[_OWNER], body=read
            )
        },
        f"{one}/stream": {
            "get": operation("Inbox", "followInbox", "Follow", {200: events}, parameters=[_OWNER, after, last])
        },
    }


def suppression_paths() -> dict[str, Schema]:
    """Addresses that nothing goes to."""
    page = answer("A page.", "SuppressionPage", {"suppressions": [_SUPPRESSION], "cursor": None})
    place = {"channel": "email", "address": "ada@example.com"}
    put = {
        201: answer("Nothing goes there.", "SuppressionOutcome", place | {"outcome": "suppressed"}),
        200: answer("It was so already.", "SuppressionOutcome", place | {"outcome": "unchanged"}),
    }
    gone = {200: answer("Messages go there again.", "SuppressionOutcome", place | {"outcome": "removed"})}
    where = [in_path("channel", "The channel."), in_path("address", "The address, percent-encoded.")]
    by_channel = query("channel", "Only of this channel.", CHANNEL)
    of = query("category", "That of one category; without it that of the whole address.")
    body = sent("NewSuppression", {"reason": "asked by telephone"}, required=False)
    tag = "Suppressions"
    return {
        "/v1/suppressions": {
            "get": operation(tag, "listSuppressions", "List", {200: page}, parameters=[by_channel, CURSOR, LIMIT])
        },
        "/v1/suppressions/{channel}/{address}": {
            "put": operation(tag, "addSuppression", "Send nothing there", put, "413", parameters=where, body=body),
            "delete": operation(tag, "removeSuppression", "Send again", gone, "404", parameters=[*where, of]),
        },
    }

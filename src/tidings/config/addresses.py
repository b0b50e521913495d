"""The address of a store: what it may look like, and how it is shown. A URL's password is shown to nobody."""

import re
from typing import NamedTuple
from urllib.parse import quote

POSTGRES = ("postgres://", "postgresql://")
SQLITE = "sqlite:"
HINT = "name a file, or postgres://user:password@host:5432/database"
SECRETS = ("password", "sslpassword", "passfile", "oauth_client_secret")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_POSTGRES = re.compile(r"postgres(?:ql)?:", re.IGNORECASE)
_PARAMETERS = re.compile(
    r"(?:^|\s)(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=", re.IGNORECASE
)
_SECRET = re.compile(rf"([?&](?:{'|'.join(SECRETS)})=)[^&#]*", re.IGNORECASE)


class Place(NamedTuple):
    """A store as somebody names it; what is left out is what the settings say."""

    store: str | None
    schema: str | None = None


def is_postgres(path: str) -> bool:
    """Whether an address is the URL of a database rather than a file."""
    return path.startswith(POSTGRES)


def check_store(text: str) -> str:
    """The address that is meant: `sqlite:` before a file is left out, `Postgres://` is written small.

    ValueError for what nobody means as the name of a file. What was written is not shown: it may hold a password.
    """
    scheme = scheme_of(text)
    if scheme is not None and scheme.lower() in ("postgres", "postgresql"):
        return scheme.lower() + text[len(scheme) :]
    if scheme is not None:
        raise ValueError(f"{scheme}:// is no store: {HINT}")
    if _POSTGRES.match(text):
        raise ValueError(f"the URL of a database has two slashes: {HINT}")
    if _PARAMETERS.search(text):
        raise ValueError(f"parameters such as host=... are not taken: {HINT}")
    return text[len(SQLITE) :] if text.lower().startswith(SQLITE) else text


def scheme_of(path: str) -> str | None:
    """What stands before the :// of a URL; None of a file."""
    found = _SCHEME.match(path)
    return found[1] if found else None


def without_password(path: str, instead: str = "") -> str:
    """The same without its passwords; what is put instead of one is not empty where a reader must see that it was.

    Whatever stands before the last @ may be part of a password in which a character was not written as it should.
    """
    found = _SCHEME.match(path)
    if found is None:
        return path
    head, rest = path[: found.end()], path[found.end() :]
    before, at, after = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    hidden = f":{instead}" if colon and instead else ""
    replacement = quote(instead, safe="*")
    return head + user + hidden + at + _SECRET.sub(rf"\g<1>{replacement}", after)

"""The address of a store as people may see it: a URL has a password, which nobody else is shown."""

import re
from urllib.parse import quote

POSTGRES = ("postgres://", "postgresql://")
SECRETS = ("password", "sslpassword", "passfile", "oauth_client_secret")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET = re.compile(rf"([?&](?:{'|'.join(SECRETS)})=)[^&#]*", re.IGNORECASE)


def is_postgres(path: str) -> bool:
    """Whether an address is the URL of a database rather than a file."""
    return path.startswith(POSTGRES)


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

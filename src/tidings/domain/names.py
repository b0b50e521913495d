"""Names of API keys and tenants: what they may be made of, everywhere the same."""

import re

from tidings.domain.errors import Invalid

DEFAULT_TENANT = "default"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def check_name(text: object, field: str) -> None:
    """Refuse what cannot be the name of a key or a tenant."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise Invalid(field, "use 1 to 63 letters, digits, '.', '_' and '-', the first a letter or digit")

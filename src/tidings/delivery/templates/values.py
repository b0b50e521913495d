"""The variables of a notification: plain JSON values, bounded in size and depth before any template sees them."""

from collections.abc import Mapping

from tidings.domain.errors import Invalid

VARIABLES_BYTES_MAX = 64 * 1024
DEPTH_MAX = 8
INTEGER_BITS_MAX = 256


def check_values(variables: Mapping[str, object]) -> None:
    """Refuse what is no JSON, nested too deeply, or too large altogether."""
    size = 0
    for name, value in variables.items():
        if not isinstance(name, str):
            raise Invalid("variables", "have a name that is not a string")
        size += len(name) + _size(value, f"variables.{name[:60]}", 1)
        if size > VARIABLES_BYTES_MAX:
            _too_large(f"variables.{name[:60]}")


def _size(value: object, field: str, depth: int) -> int:
    """Bytes of texts, and some for everything else; stops as soon as it is too much."""
    if depth > DEPTH_MAX:
        raise Invalid(field, f"is nested more than {DEPTH_MAX} levels deep")
    match value:
        case str():
            size = len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
        case None | bool() | float():
            return 8
        case int():
            if value.bit_length() > INTEGER_BITS_MAX:
                raise Invalid(field, f"is a number of more than {INTEGER_BITS_MAX} bits: send it as a string")
            return 8
        case list():
            size = _sum(value, field, depth)
        case dict() if all(isinstance(key, str) for key in value):
            size = sum(map(len, value)) + _sum(list(value.values()), field, depth)
        case _:
            raise Invalid(
                field, f"is a {type(value).__name__}: use strings, numbers, booleans, null, lists and objects"
            )
    if size > VARIABLES_BYTES_MAX:
        _too_large(field)
    return size


def _sum(values: list[object], field: str, depth: int) -> int:
    size = 8 * len(values)
    for value in values:
        if size > VARIABLES_BYTES_MAX:
            _too_large(field)
        size += _size(value, field, depth + 1)
    return size


def _too_large(field: str) -> None:
    raise Invalid(field, f"makes the variables larger than {VARIABLES_BYTES_MAX} bytes: send a link instead")

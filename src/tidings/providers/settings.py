"""The settings of a provider: checked against its struct, all errors at once, and its secrets read.

A secret is given by its place, `{env = "NAME"}` or `{file = "/run/secrets/name"}`, never by its value.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.secret import Secret

SECRET_BYTES_MAX = 64 * 1024
SECRET = 'a secret: {env = "NAME"} or {file = "/path"}'
Settings = TypeVar("Settings", bound=msgspec.Struct)
_PLACES = 'write {env = "NAME"} or {file = "/path"}: a secret is kept in the environment or in a file, not here'
_EXPECTED = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Secret: SECRET,
}
_LISTS = {int: "a list of whole numbers", str: "a list of texts"}


def read_settings(kind: type[Settings], settings: Mapping[str, Any]) -> Settings:
    """Settings as this struct, with their secrets; `Invalid` names everything that is wrong."""
    _refuse(_errors(kind, settings, _read))
    return msgspec.convert(dict(settings), kind, dec_hook=_read)


def check_settings(kind: type[msgspec.Struct], settings: Mapping[str, Any]) -> None:
    """Refuse settings that do not fit the struct, or hold a secret itself, without reading a secret."""
    _refuse(_errors(kind, settings, _place))


def read_secret(place: object) -> Secret:
    """The secret at a place."""
    match place:
        case {"env": str(name), **rest} if not rest:
            text = os.environ.get(name, "")
            if not text:
                raise ValueError(f"the environment variable {name} is not set, or empty")
        case {"file": str(path), **rest} if not rest:
            text = _file(path)
        case _:
            raise ValueError(_PLACES)
    return Secret(text)


def expected(kind: Any) -> str:
    """What a setting of a type takes, in the words of the configuration."""
    if get_origin(kind) in {Union, UnionType}:
        return " or ".join(expected(each) for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Literal:
        return " or ".join(f'"{word}"' for word in get_args(kind))
    if get_origin(kind) is tuple:
        return _LISTS.get(get_args(kind)[0], "a list")
    return _EXPECTED.get(kind, "a value that the provider accepts")


def _refuse(errors: list[Invalid]) -> None:
    """Report all errors at once, so that a node need not be started once for each."""
    if errors:
        raise Invalid(errors[0].field, errors[0].detail, tuple(errors[1:]))


def _errors(
    kind: type[msgspec.Struct], settings: Mapping[str, Any], secret: Callable[[type, object], object]
) -> list[Invalid]:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    known = ", ".join(fields)
    errors = [
        Invalid(name, f"is not a known setting: the settings are {known}") for name in sorted(settings.keys() - fields)
    ]
    for name, field in fields.items():
        if name not in settings:
            if field.required:
                errors.append(Invalid(name, f"is missing: give {expected(field.type)}"))
            continue
        try:
            msgspec.convert(settings[name], field.type, dec_hook=secret)
        except msgspec.ValidationError as error:
            is_secret = expected(field.type) == SECRET
            detail = str(error).partition(" - at `")[0] if is_secret else f"is not {expected(field.type)}"
            errors.append(Invalid(name, detail))
    return errors


def _read(kind: type, value: object) -> object:
    if kind is Secret:
        return read_secret(value)
    raise NotImplementedError


def _place(kind: type, value: object) -> object:
    """An empty secret for a valid place, which is not looked at."""
    match value:
        case {"env": str(), **rest} | {"file": str(), **rest} if kind is Secret and not rest:
            return Secret("")
        case _:
            raise ValueError(_PLACES)


def _file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read: {error.strerror}") from None
    if not raw.strip() or len(raw) > SECRET_BYTES_MAX:
        raise ValueError(f"the file {path} is empty, or larger than {SECRET_BYTES_MAX} bytes")
    try:
        return raw.decode().strip()
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not text in UTF-8") from None

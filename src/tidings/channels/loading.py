"""Opening a channel by its provider's name: entry points of the group `tidings.channels`, settings, secrets.

A secret is written as where it is kept, `{env = "NAME"}` or `{file = "/run/secrets/name"}`, never as itself.
"""

import os
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.secret import Secret
from tidings.ports import Plugin, Provider, ProviderContext

GROUP = "tidings.channels"
# Our own are there even where the code is newer than what was noted when it was installed.
BUILT_IN = ("apns", "fcm", "in_app", "outbox", "sendgrid", "smtp", "twilio", "webhook")
SECRET_BYTES_MAX = 64 * 1024
Settings = TypeVar("Settings", bound=msgspec.Struct)
_HOW = 'write {env = "NAME"} or {file = "/path"}: a secret is kept in the environment or in a file, not here'
SECRET = 'a secret: {env = "NAME"} or {file = "/path"}'
_WANTED = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Secret: SECRET,
}
_LISTS = {int: "a list of whole numbers", str: "a list of texts"}


def providers() -> dict[str, EntryPoint]:
    """What is installed, by name. Two packages that claim one name are a mistake that nobody should have to guess."""
    found = {name: EntryPoint(name, f"tidings.channels.{name}:PLUGIN", GROUP) for name in BUILT_IN}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise Invalid("provider", f"{point.name!r} is claimed by {other.value} and by {point.value}: remove one")
    return found


def open_channel(provider: str, settings: Mapping[str, Any], surroundings: ProviderContext) -> Provider:
    """A channel that is ready to send; what is wrong with its settings is refused by name."""
    plugin = _plugin(provider)
    return plugin.open(read_settings(plugin.settings, settings), surroundings)


def read_settings(kind: type[Settings], settings: Mapping[str, Any]) -> Settings:
    """Settings of one provider, checked, their secrets read."""
    _refuse(_wrong(kind, settings, _read))
    return msgspec.convert(dict(settings), kind, dec_hook=_read)


def check_settings(provider: str, settings: Mapping[str, Any]) -> None:
    """Refuse what can be told without reading a secret; above all one that was written where it must not stand."""
    check_places(_plugin(provider).settings, settings)


def check_places(kind: type[msgspec.Struct], settings: Mapping[str, Any]) -> None:
    """The same of settings of a kind."""
    _refuse(_wrong(kind, settings, _place))


def _refuse(wrong: list[Invalid]) -> None:
    """All at once: nobody wants to start a node once for each mistake."""
    if wrong:
        raise Invalid(wrong[0].field, wrong[0].detail, tuple(wrong[1:]))


def _wrong(
    kind: type[msgspec.Struct], settings: Mapping[str, Any], secret: Callable[[type, object], object]
) -> list[Invalid]:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    known = ", ".join(fields)
    wrong = [
        Invalid(name, f"is not a known setting: the settings are {known}") for name in sorted(settings.keys() - fields)
    ]
    for name, field in fields.items():
        if name not in settings:
            if field.required:
                wrong.append(Invalid(name, f"is missing: give {wanted(field.type)}"))
            continue
        try:
            msgspec.convert(settings[name], field.type, dec_hook=secret)
        except msgspec.ValidationError as error:
            is_secret = wanted(field.type) == SECRET
            told = str(error).partition(" - at `")[0] if is_secret else f"is not {wanted(field.type)}"
            wrong.append(Invalid(name, told))
    return wrong


def wanted(kind: Any) -> str:
    """What a setting takes, in the words of who writes it."""
    if get_origin(kind) in {Union, UnionType}:
        return " or ".join(wanted(each) for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Literal:
        return " or ".join(f'"{word}"' for word in get_args(kind))
    if get_origin(kind) is tuple:
        return _LISTS.get(get_args(kind)[0], "a list")
    return _WANTED.get(kind, "a value that the provider accepts")


def read_secret(kept: object) -> Secret:
    """The secret that is kept where this says."""
    match kept:
        case {"env": str(name), **rest} if not rest:
            text = os.environ.get(name, "")
            if not text:
                raise ValueError(f"the environment variable {name} is not set, or empty")
        case {"file": str(path), **rest} if not rest:
            text = _file(path)
        case _:
            raise ValueError(_HOW)
    return Secret(text)


def _plugin(provider: str) -> Plugin:
    point = providers().get(provider)
    if point is None:
        raise Invalid(
            "provider", f"{provider!r} is not installed: available are {', '.join(sorted(providers())) or 'none'}"
        )
    try:
        plugin = point.load()
    except ModuleNotFoundError as error:
        raise Invalid("provider", f"{provider} needs {error.name}, which is not installed") from error
    if not isinstance(plugin, Plugin):
        raise Invalid("provider", f"{point.value} is not a tidings.ports.Plugin")
    return plugin


def _read(kind: type, value: object) -> object:
    if kind is Secret:
        return read_secret(value)
    raise NotImplementedError


def _place(kind: type, value: object) -> object:
    """A place that a secret can be kept at, without looking there."""
    match value:
        case {"env": str(), **rest} | {"file": str(), **rest} if kind is Secret and not rest:
            return Secret("")
        case _:
            raise ValueError(_HOW)


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

"""Loads settings from `tidings.toml`, `TIDINGS_*` variables and flags; a later one overrides an earlier one."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from tidings.config.checks import ONLY_FILE, ProviderTable, read_providers, render_providers, secret_variables
from tidings.config.options import OPTIONS, PREFIX, SECTIONS, Value, parse, to_toml, written
from tidings.config.settings import Config
from tidings.domain.errors import TidingsError

FILE_NAME = "tidings.toml"
CHANNELS = "channels"
FILE_VARIABLE = "TIDINGS_CONFIG"
NO_SETTINGS = (FILE_VARIABLE, "TIDINGS_URL", "TIDINGS_KEY", "TIDINGS_TENANT")  # variables of the command line
CRASH_VARIABLE = "TIDINGS_CRASH_AT"
# Variables that Kubernetes sets in every container for a Service named tidings.
_KUBERNETES_SERVICE = re.compile(r"TIDINGS_(PORT=[a-z]+://.*|PORT_\w+=.*|SERVICE_\w+=.*)", re.DOTALL)


Found = tuple[str, str, str, object]  # name of the option, location for errors, origin to show, value as written


class ConfigError(TidingsError):
    """Invalid settings: each problem says where it is and what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Loaded(msgspec.Struct, frozen=True):
    """The settings, and the origin of each by its name."""

    config: Config
    origins: dict[str, str]


def load(file: str | None, environment: Mapping[str, str], flags: Mapping[str, tuple[str, str]]) -> Loaded:
    """Load the settings from the file, the environment and the flags.

    `flags` maps an option's name to the flag as written and its value.
    """
    problems: list[str] = []
    values: dict[str, Value] = {name: option.default for name, option in OPTIONS.items()}
    origins = dict.fromkeys(OPTIONS, "default")
    path, document = _read_file(file or environment.get(FILE_VARIABLE), problems)
    providers = read_providers(document.pop(CHANNELS, {}), path, problems)
    origins |= {f"{CHANNELS}.{provider.name}": str(path) for provider in providers}
    found = [
        *_from_file(document, path, problems),
        *_from_environment(environment, {*secret_variables(document), *_variables_of(providers)}, problems),
        *_from_flags(flags, problems),
    ]
    for name, location, origin, raw in found:
        try:
            values[name], origins[name] = parse(OPTIONS[name], raw), origin
        except ValueError as error:
            problems.append(f"{location}: {error}")
    if problems:
        raise ConfigError(problems)
    hints = get_type_hints(Config)
    sections = {
        section: hints[section](**{option.field: values[option.name] for option in options})
        for section, options in SECTIONS.items()
    }
    return Loaded(Config(**sections, channels=providers), origins)


def _read_file(named: str | None, problems: list[str]) -> tuple[Path, dict[str, Any]]:
    """The configuration file and its content, which is empty if there is no file."""
    path = Path(named or FILE_NAME)
    if named is None and not path.exists():
        return path, {}
    try:
        return path, tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror}): name a file that exists, or leave it out")
    except ValueError as error:
        problems.append(f"{path}: is not valid TOML: {error}")
    return path, {}


def _variables_of(providers: tuple[ProviderTable, ...]) -> Iterator[str]:
    for provider in providers:
        yield from secret_variables(provider.written)


def _from_file(document: Mapping[str, Any], path: Path, problems: list[str]) -> Iterator[Found]:
    for section, table in document.items():
        if section not in SECTIONS:
            label = f"[{section}]" if isinstance(table, dict) else section
            problems.append(f"{path}: {label} {_unknown_section(section)}")
        elif not isinstance(table, dict):
            problems.append(f"{path}: {section} must be a section: write [{section}] and its keys below")
        else:
            for key, value in table.items():
                name = f"{section}.{key}"
                if name in OPTIONS:
                    yield name, f"{path}: [{section}] {key}", str(path), value
                else:
                    problems.append(f"{path}: [{section}] {key} {_unknown_key(section, key)}")


def _from_environment(environment: Mapping[str, str], secrets: set[str], problems: list[str]) -> Iterator[Found]:
    names = {option.variable: option.name for option in OPTIONS.values()}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in {*NO_SETTINGS, CRASH_VARIABLE, *secrets}:
            continue
        if _KUBERNETES_SERVICE.fullmatch(f"{variable}={environment[variable]}"):
            continue
        if variable in names:
            yield names[variable], variable, variable, environment[variable]
        else:
            problems.append(f"{variable} {_unknown(variable, [*names, *NO_SETTINGS], 'variable')}")


def _from_flags(flags: Mapping[str, tuple[str, str]], problems: list[str]) -> Iterator[Found]:
    for name, (flag, value) in flags.items():
        if name in OPTIONS:
            yield name, flag, flag, value
        else:
            section, _, key = name.partition(".")
            reason = _unknown_key(section, key) if section in SECTIONS else _unknown_section(section)
            problems.append(f"{flag} {reason}")


def _unknown_section(name: str) -> str:
    if name == CHANNELS:
        return f"cannot be set here: {ONLY_FILE}"
    return _unknown(name, list(SECTIONS), "section") + _elsewhere(name)


def _unknown_key(section: str, key: str) -> str:
    return _unknown(key, [option.key for option in SECTIONS[section]], "key") + _elsewhere(key)


def _elsewhere(key: str) -> str:
    names = [option.name for option in OPTIONS.values() if option.key == key]
    return f" (there is {' and '.join(names)})" if names else ""


def _unknown(word: str, known: list[str], noun: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=3, cutoff=0.6)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return f"is not a {noun}: {guess}allowed are {', '.join(known)}"


def render(loaded: Loaded) -> str:
    """The settings as a file that could be loaded again, with the origin of each as a comment."""
    lines: list[str] = []
    for section, options in SECTIONS.items():
        lines += ["", f"[{section}]"]
        for option in options:
            value = getattr(getattr(loaded.config, section), option.field)
            text = written(option, value)
            is_bare = isinstance(value, int | tuple | dict) and option.kind not in {"size", "duration"}
            shown = text if is_bare else to_toml(text)
            lines.append(f"{f'{option.key} = {shown}':<40} # {loaded.origins[option.name]}")
    lines += render_providers(loaded.config.channels, loaded.origins)
    return "\n".join(lines[1:]) + "\n"

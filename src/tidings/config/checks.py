"""Checks of single settings, and of the tables of providers. Errors never show a password."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import IPv6Address
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from tidings.domain.notifications.rate_limit import Rate

POSTGRES = ("postgres://", "postgresql://")
SQLITE = "sqlite:"
HINT = "name a file, or postgres://user:password@host:5432/database"
SECRETS = ("password", "sslpassword", "passfile", "oauth_client_secret")
PORT_MAX = 65_535
SERVERS_HINT = "write host:port, more after commas, such as kafka-1:9092,kafka-2:9092 or [::1]:9092"
PATTERN_HINT = "use letters, digits, '.', '_' and '-', and '*', '?' or '[abc]' for any of them"
TENANT_HINT = "a tenant has 1 to 229 letters, digits, '.', '_' and '-'"
TOPIC_HINT = "a topic has 1 to 249 letters, digits, '.', '_' and '-', and is not '.' or '..'"
SCHEMA_HINT = "use 1 to 63 lower-case letters, digits and '_', not beginning with a digit or with pg_"
URL_HINT = "write one such as https://notify.example.com"
SECRET_HINT = 'write {env = "NAME"} or {file = "/path"}'
NODE_HINT = "use 1 to 100 letters, digits, '.', ':', '_' and '-'"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_POSTGRES = re.compile(r"postgres(?:ql)?:", re.IGNORECASE)
_PARAMETERS = re.compile(
    r"(?:^|\s)(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=", re.IGNORECASE
)
_SECRET = re.compile(rf"([?&](?:{'|'.join(SECRETS)})=)[^&#]*", re.IGNORECASE)
_PATTERN = re.compile(r"(?:[A-Za-z0-9._*?-]|\[!?[A-Za-z0-9._-]+\]){1,249}")
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,229}")
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_NODE = re.compile(r"[A-Za-z0-9.:_-]{1,100}")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,253}[A-Za-z0-9_.])?")


class StoreUrl(NamedTuple):
    """A store as it is named on the command line; what is left out comes from the settings."""

    store: str | None
    schema: str | None = None


def is_postgres(path: str) -> bool:
    """Whether the address of a store is a PostgreSQL URL rather than a file."""
    return path.startswith(POSTGRES)


def check_store(text: str) -> str:
    """The normalized address of a store: without `sqlite:` before a file, and with the scheme of a URL in lower case.

    ValueError for what is not meant as a file name. The error does not show the text: it may hold a password.
    """
    scheme = scheme_of(text)
    if scheme is not None and scheme.lower() in ("postgres", "postgresql"):
        return scheme.lower() + text[len(scheme) :]
    if scheme is not None:
        raise ValueError(f"{scheme}:// is not a kind of store: {HINT}")
    if _POSTGRES.match(text):
        raise ValueError(f"the URL of a database needs two slashes: {HINT}")
    if _PARAMETERS.search(text):
        raise ValueError(f"parameters such as host=... are not supported: {HINT}")
    return text[len(SQLITE) :] if text.lower().startswith(SQLITE) else text


def scheme_of(path: str) -> str | None:
    """The scheme of a URL; None for a file."""
    found = _SCHEME.match(path)
    return found[1] if found else None


def without_password(path: str, instead: str = "") -> str:
    """The address without its passwords; `instead` takes the place of each.

    Everything before the last @ counts as the password, which may hold an @ that was not percent-encoded.
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


def check_servers(text: str) -> str:
    """Addresses of brokers, without spaces around them."""
    servers = [server.strip() for server in text.split(",")]
    for server in servers:
        host, colon, port = server.rpartition(":")
        if not server:
            raise ValueError(f"{text!r} has an empty entry: {SERVERS_HINT}")
        if "://" in server:
            raise ValueError(f"{server!r} is a URL: {SERVERS_HINT}; kafka.security says how to connect")
        if not colon:
            raise ValueError(f"{server!r} has no port: {SERVERS_HINT}")
        if not _is_host(host):
            raise ValueError(f"{server!r} has no valid host: {SERVERS_HINT}")
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
            raise ValueError(f"{server!r} has no port from 1 to {PORT_MAX}: {SERVERS_HINT}")
    return ",".join(servers)


def _is_host(text: str) -> bool:
    if not (text.startswith("[") and text.endswith("]")):
        return _HOST.fullmatch(text) is not None
    try:
        IPv6Address(text[1:-1])
    except ValueError:
        return False
    return True


def _fits(form: re.Pattern[str], noun: str, hint: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError(f"{text!r} is not a {noun}: {hint}")
        return text

    return check


def check_lanes(number: int) -> int:
    """A number of lanes, which must be a power of two: some bits of a digest of the id select the lane."""
    if number & (number - 1):
        below = 1 << number.bit_length() - 1
        raise ValueError(f"'{number}' is not a power of two: write {below} or {2 * below}, for example")
    return number


def check_url(text: str) -> str:
    """The base of the URLs that others call, without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or "@" in text:
        raise ValueError(f"{text!r} is not an http or https URL that others can call: {URL_HINT}")
    return text.rstrip("/")


def check_secret_source(word: str) -> str:
    """Where a secret is kept: an environment variable or a file."""
    if word not in {"env", "file"}:
        raise ValueError(f"a secret cannot be written here: {SECRET_HINT}")
    return word


check_pattern = _fits(_PATTERN, "pattern", PATTERN_HINT)
check_tenant = _fits(_TENANT, "tenant", TENANT_HINT)
check_topic = _fits(_TOPIC, "topic", TOPIC_HINT)
check_schema = _fits(_SCHEMA, "valid name of a schema", SCHEMA_HINT)
check_node = _fits(_NODE, "valid name of a node", NODE_HINT)

# The checks by setting: of its text or texts, of its number, and (`NAMES`) of the names in its table.
TEXTS: dict[str, Callable[[str], str]] = {
    "node.name": check_node,
    "store.path": check_store,
    "store.schema": check_schema,
    "kafka.servers": check_servers,
    "kafka.tenants": check_pattern,
    "kafka.schedules": check_tenant,
    "kafka.history": check_topic,
    "kafka.destinations": check_pattern,
    "delivery.public_url": check_url,
}
NUMBERS: dict[str, Callable[[int], int]] = {"store.lanes": check_lanes}
NOT_EMPTY = ("node.roles", "node.channels")
NAMES: dict[str, Callable[[str], str]] = {
    "kafka.schedules": check_topic,
    "kafka.destinations": check_tenant,
    "delivery.link_key": check_secret_source,
    "delivery.older_link_key": check_secret_source,
}


NAME_HINT = "use 1 to 50 letters, digits, '_' and '-'"
RATE_HINT = 'write how many in which time, such as "100/s", "30/min" or "5000/h", and "100/s burst 20" for 20 at once'
TABLE_HINT = "write [channels.{name}] and its settings below"
ONLY_FILE = 'providers are set in the file: [channels.smtp] and its settings below, secrets as {env = "NAME"}'
BURST_S = 0.25  # the default burst of a rate is what it allows in this time

OWN = ("provider", "rate", "tenant_rate", "tenant_rates", "receipts")  # keys that every provider has

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*/\s*(s|min|h)(?:\s+burst\s+(\d{1,9}))?")
_SECONDS = {"s": 1, "min": 60, "h": 3_600}


class ProviderTable(msgspec.Struct, frozen=True, kw_only=True):
    """One configured provider. `written` is its whole table, `settings` the keys that are the provider's own."""

    name: str
    provider: str
    written: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    rate: Rate | None = None
    tenant_rate: Rate | None = None
    tenant_rates: dict[str, Rate] = {}
    receipts: dict[str, Any] | None = None


def read_providers(table: object, path: object, problems: list[str]) -> tuple[ProviderTable, ...]:
    """The providers of a file. Errors are added to `problems`; of values they show only rates: others may be secret."""
    if not isinstance(table, dict):
        problems.append(f"{path}: channels must be a section: {TABLE_HINT.format(name='smtp')}")
        return ()
    found = []
    for name, content in table.items():
        table_path = f"{path}: [channels.{name}]"
        if not _NAME.fullmatch(name):
            problems.append(f"{table_path} is not a valid name of a provider: {NAME_HINT}")
        elif not isinstance(content, dict):
            problems.append(f"{path}: [channels] {name} must be a table: {TABLE_HINT.format(name=name)}")
        else:
            try:
                found.append(_provider(name, content))
            except ValueError as error:
                problems.append(f"{table_path} {error}")
    return tuple(found)


def _provider(name: str, content: Mapping[str, Any]) -> ProviderTable:
    provider, receipts = content.get("provider", name), content.get("receipts")
    if not isinstance(provider, str):
        raise ValueError('provider must be the name of a provider, such as "smtp"')
    if receipts is not None and not isinstance(receipts, dict):
        raise ValueError("receipts must be a table: write how they are signed (docs/reference/configuration.md)")
    return ProviderTable(
        name=name,
        provider=provider,
        written=dict(content),
        settings={key: value for key, value in content.items() if key not in OWN},
        rate=_rate("rate", content["rate"]) if "rate" in content else None,
        tenant_rate=_rate("tenant_rate", content["tenant_rate"]) if "tenant_rate" in content else None,
        tenant_rates=_tenant_rates(content.get("tenant_rates", {})),
        receipts=receipts,
    )


def _tenant_rates(table: object) -> dict[str, Rate]:
    if not isinstance(table, dict):
        raise ValueError('tenant_rates must be a table of tenants, such as {acme = "10/s"}')
    return {check_tenant(tenant): _rate(f"tenant_rates.{tenant}", text) for tenant, text in table.items()}


def _rate(key: str, text: object) -> Rate:
    found = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{key}: {text!r} is not a rate: {RATE_HINT}")
    per_s = float(found[1]) / _SECONDS[found[2]]
    burst = max(1, int(per_s * BURST_S)) if found[3] is None else int(found[3])
    try:
        return Rate(per_s, burst)
    except ValueError as error:
        raise ValueError(f"{key}: {text!r}: {error}") from None


def secret_variables(document: object) -> Iterator[str]:
    """The environment variables that a file names as holding secrets (`{env = "NAME"}`), anywhere in it."""
    match document:
        case {"env": str(name), **rest} if not rest:
            yield name
        case dict():
            for value in document.values():
                yield from secret_variables(value)
        case _:
            pass


def render_providers(providers: Iterable[ProviderTable], origins: Mapping[str, str]) -> Iterator[str]:
    """The tables as they could be written again. They never hold a secret itself, only where it is kept."""
    for provider in providers:
        yield ""
        yield f"[channels.{provider.name}]"
        for key, value in provider.written.items():
            yield f"{f'{key} = {_toml(value)}':<40} # {origins[f'channels.{provider.name}']}"


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return f"{{{', '.join(f'{_toml(name)} = {_toml(item)}' for name, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case str():
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case _:
            return str(value)

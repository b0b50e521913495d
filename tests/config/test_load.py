"""Settings: precedence, units, and errors that name what is wrong and where."""

import tomllib
from pathlib import Path

import pytest

from tidings.config import Config, ConfigError, load, render
from tidings.config.options import OPTIONS
from tidings.config.settings import Node
from tidings.domain.notifications.rate_limit import Rate
from tidings.domain.schedules.schedule import Limits


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "tidings.toml") -> str:
    Path(name).write_text(text, "utf-8")
    return name


def problems(file: str | None = None, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, environment, {})
    return str(caught.value)


def test_defaults_apply_without_any_settings() -> None:
    loaded = load(None, {"HOME": "/root"}, {})
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {"default"}


def test_file_then_environment_then_flags() -> None:
    write('[server]\nhost = "a"\nport = 1\n[store]\npath = "file.db"\n')
    environment = {"TIDINGS_SERVER_PORT": "2", "TIDINGS_STORE_PATH": "variable.db"}
    loaded = load(None, environment, {"store.path": ("--store", "flag.db")})
    assert loaded.config.server.host == "a"
    assert loaded.config.server.port == 2
    assert loaded.config.store.path == "flag.db"
    origins = [loaded.origins[name] for name in ("server.host", "server.port", "store.path")]
    assert origins == ["tidings.toml", "TIDINGS_SERVER_PORT", "--store"]


def test_the_file_can_be_named() -> None:
    write("[server]\nport = 1\n", "one.toml")
    write("[server]\nport = 2\n", "two.toml")
    assert load("one.toml", {}, {}).config.server.port == 1
    assert load(None, {"TIDINGS_CONFIG": "two.toml"}, {}).config.server.port == 2
    assert load("one.toml", {"TIDINGS_CONFIG": "two.toml"}, {}).config.server.port == 1


def test_variables_of_other_parts_are_ignored() -> None:
    load(None, {"TIDINGS_URL": "x", "TIDINGS_KEY": "y", "TIDINGS_CRASH_AT": "z"}, {})


def test_variables_of_a_kubernetes_service_are_ignored() -> None:
    address = "tcp://10.0.0.1:8460"
    service = {"TIDINGS_PORT": address, "TIDINGS_PORT_8460_TCP": address, "TIDINGS_PORT_8460_TCP_PROTO": "tcp"}
    service |= {"TIDINGS_SERVICE_HOST": "10.0.0.1", "TIDINGS_SERVICE_PORT": "8460", "TIDINGS_SERVICE_PORT_HTTP": "8460"}
    assert load(None, service, {}).config == Config()
    assert "TIDINGS_PORT is not a variable: did you mean" in problems(TIDINGS_PORT="9000")


def test_every_limit_has_a_key_in_human_units() -> None:
    keys = {option.field for option in OPTIONS.values() if option.section == "limits"}
    assert keys == set(Limits.__struct_fields__)
    write('[limits]\nvalue_size_max = "2 MiB"\nhorizon = "10y"\nperiod_min = "5s"\nlabels_max = 7\n')
    limits = load(None, {}, {}).config.limits
    assert limits == Limits(value_bytes_max=2 * 2**20, horizon_s=3653 * 86_400, period_min_s=5, labels_max=7)


def test_an_unlimited_setting_shows_none() -> None:
    write('[log]\nretention_size = "10 GiB"\n')
    assert load(None, {}, {}).config.log.retention_bytes == 10 * 2**30
    assert load(None, {"TIDINGS_LOG_RETENTION_SIZE": "none"}, {}).config.log.retention_bytes is None


def test_printed_settings_can_be_loaded_again() -> None:
    environment = {"TIDINGS_STORE_PATH": 'a "b"\\c\x7f.db', "TIDINGS_LOG_RETENTION": "90s"}
    printed = render(load(None, environment, {"limits.labels_max": ("--set limits.labels_max", "9")}))
    assert 'retention = "90s"' in printed
    assert "# TIDINGS_LOG_RETENTION" in printed
    assert "# --set limits.labels_max" in printed
    assert set(tomllib.loads(printed)) == set(Config.__struct_fields__) - {"channels"}
    again = load(write(printed, "again.toml"), {}, {})
    assert again.config == load(None, environment, {"limits.labels_max": ("", "9")}).config
    assert render(again).count("# again.toml") == len(OPTIONS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[server]\nprot = 1",
            ["tidings.toml: [server] prot", "did you mean port", "allowed are host, port"],
        ),
        ("[sever]\nport = 1", ["tidings.toml: [sever]", "did you mean server"]),
        ("port = 1", ["tidings.toml: port", "not a section", "server.port"]),
        ("server = 1", ["tidings.toml: server", "write [server]"]),
        ("[store]\nport = 1", ["[store] port", "server.port"]),
        ("[server]\nport = 70000", ["[server] port", "'70000'", "at most 65535"]),
        ("[server]\nport = true", ["[server] port", "True", "whole number"]),
        ('[server]\nhost = ""', ["[server] host", "empty"]),
        ("[log]\nretention = 7", ["[log] retention", "7", "7d"]),
        ('[log]\nretention = "7"', ["[log] retention", "'7' has no unit", "7d"]),
        ('[log]\nretention = "7 days"', ["'days'", "us, ms, s, m, min, h, d, w, y"]),
        ('[log]\nretention_size = "1 gib"', ["'gib'", "did you mean 1 GiB"]),
        ('[log]\nretention = "0s"', ["[log] retention", "at least 1us"]),
        ('[log]\nretention = "0.1us"', ["whole number of the smallest unit"]),
        ('[log]\nretention = "1111111111111111s"', ["more than 15 digits"]),
        ('[limits]\nperiod_min = "500ms"', ["[limits] period_min", "whole seconds"]),
        ('[limits]\nid_size_max = "1 KiB"', ["[limits] id_size_max: '1 KiB'", "at most 900 B"]),
        ('[limits]\nhorizon = "60y"', ["[limits] horizon: '60y'", "at most 18300d"]),
        ('[limits]\nvalue_size_max = "much"', ["value_size_max", "'much' is not understood", "16 KiB"]),
        ('[logs]\nformat = "xml"', ["[logs] format", "'xml'", "auto, human, json"]),
        (
            '[kafka]\nwires = ["intervals", "mqtt"]',
            ["[kafka] wires: 'mqtt' is not known", "intervals, kaspr, etf1, native"],
        ),
        ("[kafka]\nwires = 1", ["[kafka] wires: 1 is not understood", '["a", "b"]']),
        ("[kafka]\ntenants = [1]", ["[kafka] tenants: [1] is not understood"]),
        ('[kafka]\ntenants = ["a b"]', ["[kafka] tenants: 'a b' is not a pattern", "'*', '?' or '[abc]'"]),
        ('[kafka]\ntenants = ["a[b"]', ["[kafka] tenants: 'a[b' is not a pattern"]),
        ('[kafka]\ntenants = [""]', ["[kafka] tenants: '' has an empty entry"]),
        ('[kafka]\nschedules = "videos"', ["[kafka] schedules: 'videos' is not name=text", "a=x,b=y"]),
        ("[kafka]\nschedules = [1]", ["[kafka] schedules: [1] is not understood"]),
        ('[kafka.schedules]\n"a/b" = "x"', ["[kafka] schedules: 'a/b' is not a topic"]),
        ('[kafka.schedules]\nvideos = "a b"', ["[kafka] schedules: 'a b' is not a tenant"]),
        ('[kafka]\nhistory = "a/b"', ["[kafka] history: 'a/b' is not a topic"]),
        ("[kafka.schedules]\nvideos = 1", ["[kafka] schedules: 'videos' has no text"]),
        ('[kafka.destinations]\nacme = ["a/b"]', ["[kafka] destinations: 'a/b' is not a pattern"]),
        ('[kafka.destinations]\n"*" = ["a"]', ["[kafka] destinations: '*' is not a tenant"]),
        ("[kafka.destinations]\nacme = 1", ["[kafka] destinations: 1 is not understood", "a=x,a=y"]),
        ("[server", ["tidings.toml", "not valid TOML"]),
    ],
)
def test_a_wrong_setting_names_itself_and_what_is_allowed(text: str, said: list[str]) -> None:
    write(text)
    found = problems()
    assert [word for word in said if word not in found] == [], found


@pytest.mark.parametrize(
    ("written", "servers"),
    [
        ("localhost:9092", "localhost:9092"),
        ("kafka-1.acme_net:9092, 10.0.0.2:19092", "kafka-1.acme_net:9092,10.0.0.2:19092"),
        ("[::1]:9092,[2001:db8::2]:65535", "[::1]:9092,[2001:db8::2]:65535"),
        ("none", None),
    ],
)
def test_addresses_of_brokers(written: str, servers: str | None) -> None:
    assert load(None, {"TIDINGS_KAFKA_SERVERS": written}, {}).config.kafka.servers == servers


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("http://localhost:19092", "'http://localhost:19092' is a URL"),
        ("foo:99999", "'foo:99999' has no port from 1 to 65535"),
        ("foo:0", "'foo:0' has no port from 1 to 65535"),
        ("foo:port", "'foo:port' has no port from 1 to 65535"),
        ("foo:", "'foo:' has no port from 1 to 65535"),
        ("localhost", "'localhost' has no port"),
        (":9092", "':9092' has no valid host"),
        ("a b:9092", "'a b:9092' has no valid host"),
        ("::1:9092", "'::1:9092' has no valid host"),
        ("[::1]", "'[::1]' has no"),
        ("[::x]:9092", "'[::x]:9092' has no valid host"),
        ("localhost:9092,", "'localhost:9092,' has an empty entry"),
        ("a:1,,b:2", "'a:1,,b:2' has an empty entry"),
    ],
)
def test_invalid_broker_addresses_are_refused(written: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {"kafka.servers": ("--kafka", written)})
    assert str(caught.value).startswith(f"--kafka: {said}")
    assert "write host:port, more after commas, such as kafka-1:9092,kafka-2:9092 or [::1]:9092" in str(caught.value)


def test_kafka_tables_in_a_file_and_in_one_line() -> None:
    lines = {
        "TIDINGS_KAFKA_WIRES": "Intervals, native",
        "TIDINGS_KAFKA_TENANTS": "acme,shop-*,[a-f]?",
        "TIDINGS_KAFKA_SCHEDULES": "schedules=default,videos=video",
        "TIDINGS_KAFKA_DESTINATIONS": "acme=orders.*,acme=audit,mute=",
    }
    kafka = load(None, lines, {}).config.kafka
    assert kafka.wires == ("intervals", "native")
    assert kafka.tenants == ("acme", "shop-*", "[a-f]?")
    assert kafka.schedules == {"schedules": "default", "videos": "video"}
    assert kafka.destinations == {"acme": ("orders.*", "audit"), "mute": ()}
    write(
        """
        [kafka]
        wires = ["intervals", "native"]
        tenants = ["acme", "shop-*", "[a-f]?"]
        schedules = {schedules = "default", videos = "video"}
        [kafka.destinations]
        acme = ["orders.*", "audit"]
        mute = []
        """
    )
    loaded = load(None, {}, {})
    assert loaded.config.kafka == kafka
    assert load(write(render(loaded), "again.toml"), {}, {}).config.kafka == kafka
    write("")
    nothing = load(None, {}, {f"kafka.{key}": ("--set", "none") for key in ("wires", "tenants", "schedules")})
    assert (nothing.config.kafka.wires, nothing.config.kafka.tenants, nothing.config.kafka.schedules) == ((), (), {})
    assert "'schedules' is given twice" in problems(TIDINGS_KAFKA_SCHEDULES="schedules=a,schedules=b")


def test_choices_ignore_case_and_accept_yes_and_no() -> None:
    write('[kafka]\nsecurity = "SASL_SSL"\nsasl_mechanism = "scram-sha-512"\nfacts = true\nstats = "No"\n')
    kafka = load(None, {}, {}).config.kafka
    assert (kafka.security, kafka.sasl_mechanism) == ("sasl_ssl", "SCRAM-SHA-512")
    assert (kafka.facts, kafka.stats) == ("on", "off")
    assert load(None, {"TIDINGS_KAFKA_FACTS": "no", "TIDINGS_KAFKA_STATS": "TRUE"}, {}).config.kafka.stats == "on"
    assert "'maybe' is not known: use off, on" in problems(TIDINGS_KAFKA_FACTS="maybe")
    assert "'yes' is not known" in problems(TIDINGS_KAFKA_TOPICS="yes")


def test_variables_and_flags_are_named_too() -> None:
    assert "TIDINGS_SERVER_PORT: '-1'" in problems(TIDINGS_SERVER_PORT="-1")
    unknown = problems(TIDINGS_SERVER_PROT="1")
    assert "TIDINGS_SERVER_PROT is not a variable: did you mean TIDINGS_SERVER_PORT" in unknown
    assert unknown.endswith("TIDINGS_CONFIG, TIDINGS_URL, TIDINGS_KEY, TIDINGS_TENANT")
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {"log.retentoin": ("--set log.retentoin", "1d"), "lgo.x": ("--set lgo.x", "1")})
    first, second = caught.value.problems
    assert first.startswith("--set log.retentoin is not a key: did you mean retention")
    assert second.startswith("--set lgo.x is not a section: did you mean log")


def test_all_problems_are_reported_at_once() -> None:
    write("[server]\nprot = 1\nport = 99999\n[lgo]\n")
    with pytest.raises(ConfigError) as caught:
        load(None, {"TIDINGS_X": ""}, {})
    assert len(caught.value.problems) == 4


def test_a_named_file_must_exist() -> None:
    assert "missing.toml: cannot be read" in problems("missing.toml")


@pytest.mark.parametrize("lanes", ["1", "2", "16", "256"])
def test_lanes(lanes: str) -> None:
    assert load(None, {"TIDINGS_STORE_LANES": lanes}, {}).config.store.lanes == int(lanes)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("TIDINGS_STORE_LANES", "12", "TIDINGS_STORE_LANES: '12' is not a power of two: write 8 or 16"),
        ("TIDINGS_STORE_LANES", "512", "'512' is out of bounds: at least 1, at most 256"),
        ("TIDINGS_STORE_SCHEMA", "My Schema", "'My Schema' is not a valid name of a schema: use 1 to 63 lower-case"),
        ("TIDINGS_STORE_SCHEMA", "pg_own", "not beginning with a digit or with pg_"),
        ("TIDINGS_NODE_NAME", "a b", "'a b' is not a valid name of a node: use 1 to 100 letters"),
        ("TIDINGS_NODE_ROLES", "api,cook", "'cook' is not known: use api"),
        ("TIDINGS_NODE_ROLES", "none", "TIDINGS_NODE_ROLES: is empty: write a list such as"),
    ],
)
def test_settings_of_a_node_are_checked(variable: str, text: str, said: str) -> None:
    assert said in problems(**{variable: text})


def test_roles_in_a_file() -> None:
    write('[node]\nroles = ["api", "dispatch"]\nname = "north-1:8460"\n')
    assert load(None, {}, {}).config.node == Node("north-1:8460", ("api", "dispatch"))
    assert 'roles = ["api", "dispatch"]' in render(load(None, {}, {}))


def test_the_password_of_a_store_is_not_printed() -> None:
    write('[store]\npath = "postgres://me:secret@db/shop?password=secret"\n')
    printed = render(load(None, {}, {}))
    assert "secret" not in printed
    assert 'path = "postgres://me:***@db/shop?password=***"' in printed


# Channels

CHANNELS = """
[delivery]
public_url = "https://notify.example.com/"
link_key = {env = "TIDINGS_LINK_KEY"}

[channels.backup]
provider = "smtp"
host = "mail.example.com"
sender = "news@example.com"
port = 25

[channels.smtp]
host = "other.example.com"
password = {env = "TIDINGS_MAIL_PASSWORD"}
rate = "100/s"
tenant_rate = "30/min burst 5"
tenant_rates = {acme = "3600/h"}
receipts = {secret = {file = "/run/secrets/x"}}
"""
SECRETS = {"TIDINGS_LINK_KEY": "a key that signs links", "TIDINGS_MAIL_PASSWORD": "hunter2"}


def test_channels_come_in_the_order_of_the_file() -> None:
    write(CHANNELS)
    config = load(None, SECRETS, {}).config
    first, second = config.channels
    assert (first.name, first.provider, second.name, second.provider) == ("backup", "smtp", "smtp", "smtp")
    assert first.settings == {"host": "mail.example.com", "sender": "news@example.com", "port": 25}
    assert set(second.settings) == {"host", "password"}
    assert second.rate == Rate(100, 25)
    assert second.tenant_rate == Rate(0.5, 5)
    assert second.tenant_rates == {"acme": Rate(1, 1)}
    assert second.receipts == {"secret": {"file": "/run/secrets/x"}}
    assert config.delivery.public_url == "https://notify.example.com"


def test_printed_channels_can_be_loaded_again_and_show_no_secret() -> None:
    write(CHANNELS)
    loaded = load(None, SECRETS, {})
    printed = render(loaded)
    assert not any(secret in printed for secret in SECRETS.values())
    assert load(write(printed, "again.toml"), SECRETS, {}).config == loaded.config


def test_a_secret_variable_is_ignored_only_if_the_file_names_it() -> None:
    assert "TIDINGS_LINK_KEY is not a variable" in problems(**SECRETS)
    assert load(None, {"TIDINGS_DELIVERY_LINK_KEY": "env=X"}, {}).config.delivery.link_key == {"env": "X"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[channels]\nsmtp = 1", "[channels] smtp must be a table: write [channels.smtp]"),
        ("channels = 1", "channels must be a section"),
        ('[channels."a b"]', "[channels.a b] is not a valid name of a provider: use 1 to 50 letters"),
        ("[channels.smtp]\nprovider = 1", "[channels.smtp] provider must be the name of a provider"),
        ('[channels.smtp]\nrate = "fast"', "[channels.smtp] rate: 'fast' is not a rate: write how many in which time"),
        ("[channels.smtp]\nrate = 5", "rate: 5 is not a rate"),
        ('[channels.smtp]\nrate = "0/s"', "must be more than 0 per second"),
        ('[channels.smtp]\ntenant_rate = "1/s burst 0"', "a burst of at least 1"),
        ("[channels.smtp]\ntenant_rates = 1", "tenant_rates must be a table of tenants"),
        ('[channels.smtp]\ntenant_rates = {"a/b" = "1/s"}', "'a/b' is not a tenant"),
        ("[channels.smtp]\nreceipts = 1", "receipts must be a table"),
        (
            '[delivery]\npublic_url = "notify.example.com"',
            "is not an http or https URL that others can call: write one such as https",
        ),
        ('[delivery]\nlink_key = {text = "a"}', "a secret cannot be written here: write {env"),
        ('[delivery]\nlink_key = "abc"', "is not name=text"),
    ],
)
def test_invalid_tables_of_channels_are_refused(text: str, said: str) -> None:
    write(text)
    assert said in problems()


def test_channels_can_be_set_only_in_the_file() -> None:
    with pytest.raises(ConfigError, match="providers are set in the file"):
        load(None, {}, {"channels.smtp.host": ("--set channels.smtp.host", "x")})

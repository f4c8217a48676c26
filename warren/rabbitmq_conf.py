"""Reads `rabbitmq.conf`: lines of `key = value`, in RabbitMQ's sysctl format and with its keys.

Answerable for the grammar, for the keys, and for saying what is wrong in words that lead to the
line. A key nobody knows is an error, for it is a typing error that would go unnoticed; a key that
RabbitMQ knows and Warren has no use for is a warning, so that existing files can be used as they
are. All errors of a file are reported together.

`#` starts a comment anywhere outside of single quotes. A dot inside a name is written `\\.`. A key
that is set twice counts as set last. `$name` in `KEYS` stands for one part of anybody's choice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from warren.config import (
    CERTIFICATE_NAMES,
    LOG_LEVELS,
    CertificateName,
    Config,
    Listener,
    LogLevel,
    SslOptions,
)
from warren.core.information_unit import parse_bytes
from warren.core.memory_monitor import Absolute, Fraction, Limit
from warren.core.pattern import InvalidPattern, compile_permission

SETTING = re.compile(r"\s*(?P<key>[^=\s#]+)\s*=\s*(?P<value>.*?)\s*\Z")
QUOTED = re.compile(r"'([^']*)'\s*(?:#.*)?\Z")
FRAME_MIN = 4096
# RabbitMQ's cap for messages, whatever is configured.
MESSAGE_SIZE_CAP = 536_870_912
MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL", "RABBIT-CR-DEMO")

Parse: TypeAlias = Callable[[str], Any]


class ConfigError(Exception):
    """The file cannot be used; `problems` names every line that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Loaded(NamedTuple):
    """What a file says, and what to tell the user about it."""

    config: Config
    warnings: list[str]


class _Kind(NamedTuple):
    """How a value is read, and what is wanted when it cannot be."""

    parse: Parse
    wanted: str


class _Setting(NamedTuple):
    line: int
    key: str
    value: str


def parse_config(text: str, source: str = "rabbitmq.conf") -> Loaded:
    """The configuration in the text of a file. Raises `ConfigError`."""
    problems: list[str] = []
    warnings: list[str] = []
    values: dict[str, dict[str, Any]] = {}
    for setting in _settings(text, source, problems):
        where = f"{source}, line {setting.line}"
        parts = _parts(setting.key)
        pattern = _find(KEYS, parts)
        if pattern is None:
            if _is_known_elsewhere(parts):
                warnings.append(f"{where}: {setting.key} has no effect in Warren")
            else:
                problems.append(f"{where}: unknown key {setting.key}; {_nearest(parts)}")
            continue
        kind = KEYS[pattern]
        try:
            value = kind.parse(setting.value)
        except (ValueError, InvalidPattern):
            problems.append(f"{where}: {setting.key} = {setting.value}: {kind.wanted} was wanted")
            continue
        values.setdefault(pattern, {})[_chosen_part(pattern, parts)] = value
    config = _assemble(values)
    if config.tls_listeners and not (config.ssl.certfile and config.ssl.keyfile):
        problems.append(
            f"{source}: listeners.ssl needs ssl_options.certfile and ssl_options.keyfile"
        )
    if config.tls_listeners and config.proxy_protocol:
        problems.append(f"{source}: proxy_protocol is not offered together with listeners.ssl")
    if problems:
        raise ConfigError(problems)
    return Loaded(config, warnings)


def _settings(text: str, source: str, problems: list[str]) -> Iterator[_Setting]:
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = SETTING.match(line)
        value = "" if match is None else _without_comment(match["value"])
        if match is None or not value:
            problems.append(f"{source}, line {number}: {line.strip()!r} is not key = value")
            continue
        yield _Setting(number, match["key"], value)


def _without_comment(value: str) -> str:
    quoted = QUOTED.match(value)
    return quoted[1] if quoted else value.partition("#")[0].rstrip()


def _parts(key: str) -> list[str]:
    """The parts of a key: split at dots, but not at `\\.`, which is a dot of the name."""
    return [part.replace(r"\.", ".") for part in re.split(r"(?<!\\)\.", key)]


def _matches(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) == len(parts) and all(
        wanted.startswith("$") or wanted == part
        for wanted, part in zip(pattern, parts, strict=True)
    )


def _find(patterns: Mapping[str, _Kind], parts: list[str]) -> str | None:
    return next((one for one in patterns if _matches(one.split("."), parts)), None)


def _chosen_part(pattern: str, parts: list[str]) -> str:
    for wanted, part in zip(pattern.split("."), parts, strict=True):
        if wanted.startswith("$"):
            return part
    return ""


def _is_known_elsewhere(parts: list[str]) -> bool:
    if any(_matches(known.split("."), parts) for known in KEYS_WITHOUT_EFFECT):
        return True
    beginnings = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return not beginnings.isdisjoint(FAMILIES_WITHOUT_EFFECT)


def _nearest(parts: list[str]) -> str:
    """The known key that looks most like it, with the names the user chose."""
    candidates = {}
    for pattern in (*KEYS, *KEYS_WITHOUT_EFFECT):
        wanted = pattern.split(".")
        filled = [
            parts[index] if part.startswith("$") and index < len(parts) else part
            for index, part in enumerate(wanted)
        ]
        candidates[".".join(filled)] = pattern
    found = get_close_matches(".".join(parts), candidates, n=1, cutoff=0.0)
    return f"the nearest known key is {found[0]}"


def _number(low: int, high: int | None = None) -> Parse:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]+", text):
            raise ValueError(text)
        number = int(text)
        if number < low or (high is not None and number > high):
            raise ValueError(text)
        return number

    return parse


def _fraction(text: str) -> Fraction:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        raise ValueError(text)
    return Fraction(float(text))


def _part(text: str) -> float:
    """A share that is less than the whole."""
    share = _fraction(text).of_total
    if share >= 1:
        raise ValueError(text)
    return share


def _absolute(text: str) -> Absolute:
    return Absolute(parse_bytes(text))


def _one_of(*choices: str) -> _Kind:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    wanted = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    return _Kind(parse, wanted)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _frame_max(text: str) -> int:
    number: int = _number(0)(text)
    if 0 < number < FRAME_MIN:
        raise ValueError(text)
    return number


def _unless(word: str, parse: Parse) -> Parse:
    """None for the word, else what `parse` makes of the text."""
    return lambda text: None if text == word else parse(text)


def _permission(text: str) -> str:
    compile_permission(text)
    return text


TEXT = _Kind(str, "some text")
FILE = _Kind(Path, "the path of a file")
BOOLEAN = _Kind(_boolean, "true or false")
NONE = _one_of("none")
LISTENER = _Kind(Listener.parse, "a port, or an address and a port such as 127.0.0.1:5672")
MILLISECONDS = _Kind(_number(1), "a number of milliseconds above 0")
PATTERN = _Kind(_permission, "a regular expression")
SHARE = _Kind(_fraction, "a fraction such as 0.4")
BYTES = _Kind(_absolute, "an amount of bytes such as 512MB, 1GiB or 4096")

# Smaller files would be files of one batch; offsets in larger ones would not fit a place.
STORE_FILE_BYTES_MIN = 64 << 10
STORE_FILE_BYTES_MAX = 1 << 30
# Copies of larger messages for each queue serve nobody.
EMBED_BELOW_MAX = 1 << 20

KEYS: Mapping[str, _Kind] = {
    # The first two are Warren's own; RabbitMQ takes them from its environment.
    "data_dir": _Kind(Path, "the path of a directory"),
    "node_name": TEXT,
    "listeners.tcp": NONE,
    "listeners.tcp.$name": LISTENER,
    "listeners.ssl": NONE,
    "listeners.ssl.$name": LISTENER,
    "ssl_options.cacertfile": FILE,
    "ssl_options.certfile": FILE,
    "ssl_options.keyfile": FILE,
    "ssl_options.verify": _one_of("verify_peer", "verify_none"),
    "ssl_options.fail_if_no_peer_cert": BOOLEAN,
    "ssl_cert_login_from": _one_of(*CERTIFICATE_NAMES),
    "proxy_protocol": BOOLEAN,
    "channel_max": _Kind(_number(0, 65535), "a number from 0 to 65535"),
    "frame_max": _Kind(_frame_max, f"0 or a number of bytes from {FRAME_MIN} on"),
    "heartbeat": _Kind(_number(0, 65535), "a number of seconds from 0 to 65535"),
    "handshake_timeout": MILLISECONDS,
    "max_message_size": _Kind(
        _number(1, MESSAGE_SIZE_CAP), f"a number of bytes from 1 to {MESSAGE_SIZE_CAP}"
    ),
    "connection_max": _Kind(
        _unless("infinity", _number(0)), "a number of connections, or infinity"
    ),
    "consumer_timeout": _Kind(
        _unless("infinity", _number(1)), "a number of milliseconds above 0, or infinity"
    ),
    "default_consumer_prefetch": _Kind(_number(0, 65535), "a number from 0 to 65535"),
    "auth_mechanisms.$name": _one_of(*MECHANISMS),
    "default_user": TEXT,
    "default_pass": TEXT,
    "default_vhost": TEXT,
    "default_permissions.configure": PATTERN,
    "default_permissions.write": PATTERN,
    "default_permissions.read": PATTERN,
    "default_user_tags.$tag": BOOLEAN,
    "loopback_users": NONE,
    "loopback_users.$user": BOOLEAN,
    "vm_memory_high_watermark.relative": SHARE,
    "vm_memory_high_watermark.absolute": BYTES,
    "vm_memory_high_watermark_paging_ratio": _Kind(_part, "a fraction below 1 such as 0.5"),
    "msg_store_file_size_limit": _Kind(
        _number(STORE_FILE_BYTES_MIN, STORE_FILE_BYTES_MAX),
        f"a number of bytes from {STORE_FILE_BYTES_MIN} to {STORE_FILE_BYTES_MAX}",
    ),
    "queue_index_embed_msgs_below": _Kind(
        _number(0, EMBED_BELOW_MAX), f"a number of bytes from 0 to {EMBED_BELOW_MAX}"
    ),
    "disk_free_limit.relative": SHARE,
    "disk_free_limit.absolute": BYTES,
    "log.console.level": _one_of(*LOG_LEVELS),
    "log.default.level": _one_of(*LOG_LEVELS),
}

# Known to RabbitMQ 3.10 and of no use here (yet).
KEYS_WITHOUT_EFFECT = (
    "auth_backends.$name",
    "auth_backends.$name.authn",
    "auth_backends.$name.authz",
    "background_gc_enabled",
    "background_gc_target_interval",
    "channel_operation_timeout",
    "channel_tick_interval",
    "cluster_keepalive_interval",
    "cluster_name",
    "cluster_partition_handling",
    "cluster_partition_handling.pause_if_all_down.nodes.$name",
    "cluster_partition_handling.pause_if_all_down.recover",
    "collect_statistics",
    "collect_statistics_interval",
    "credential_validator.min_length",
    "credential_validator.regexp",
    "credential_validator.validation_backend",
    "definitions.import_backend",
    "definitions.local.path",
    "definitions.skip_if_unchanged",
    "hipe_compile",
    "lazy_queue_explicit_gc_run_operation_threshold",
    "load_definitions",
    "log.channel.file",
    "log.channel.level",
    "log.connection.file",
    "log.connection.level",
    "log.console",
    "log.dir",
    "log.exchange",
    "log.exchange.level",
    "log.federation.file",
    "log.federation.level",
    "log.file",
    "log.file.level",
    "log.file.rotation.compress",
    "log.file.rotation.count",
    "log.file.rotation.date",
    "log.file.rotation.size",
    "log.journald",
    "log.journald.level",
    "log.mirroring.file",
    "log.mirroring.level",
    "log.queue.file",
    "log.queue.level",
    "log.ra.file",
    "log.ra.level",
    "log.upgrade.file",
    "log.upgrade.level",
    "management.csp.policy",
    "management.disable_basic_auth",
    "management.disable_stats",
    "management.enable_queue_totals",
    "management.hsts.max_age",
    "management.hsts.policy",
    "management.http_log_dir",
    "management.load_definitions",
    "management.login_session_timeout",
    "management.path_prefix",
    "management.rates_mode",
    "management.tcp.backlog",
    "management.tcp.compress",
    "management.tcp.idle_timeout",
    "management.tcp.inactivity_timeout",
    "management.tcp.ip",
    "management.tcp.max_keepalive",
    "management.tcp.nodelay",
    "management.tcp.port",
    "management.tcp.request_timeout",
    "management.tcp.shutdown_function",
    "memory_monitor_interval",
    "mirroring_flow_control",
    "mirroring_sync_batch_size",
    "mirroring_sync_max_throughput",
    "mnesia_table_loading_retry_limit",
    "mnesia_table_loading_retry_timeout",
    "motd_file",
    "net_ticktime",
    "num_acceptors.ssl",
    "num_acceptors.tcp",
    "password_hashing_module",
    "product.name",
    "product.version",
    "queue_explicit_gc_run_operation_threshold",
    "queue_index_max_journal_entries",
    "queue_master_locator",
    "reverse_dns_lookups",
    "ssl_cert_login_san_index",
    "ssl_cert_login_san_type",
    "ssl_handshake_timeout",
    "ssl_options.bypass_pem_cache",
    "ssl_options.cacert",
    "ssl_options.cert",
    "ssl_options.ciphers.$name",
    "ssl_options.client_renegotiation",
    "ssl_options.crl_check",
    "ssl_options.depth",
    "ssl_options.dh",
    "ssl_options.dhfile",
    "ssl_options.honor_cipher_order",
    "ssl_options.honor_ecc_order",
    "ssl_options.key.$name",
    "ssl_options.log_alert",
    "ssl_options.password",
    "ssl_options.psk_identity",
    "ssl_options.reuse_sessions",
    "ssl_options.secure_renegotiate",
    "ssl_options.versions.$name",
    "total_memory_available_override_value",
    "vm_memory_calculation_strategy",
)
# Whole families of such keys, by how they begin: plug-ins, and what belongs to Erlang.
FAMILIES_WITHOUT_EFFECT = (
    "amqp1_0",
    "auth_cache",
    "auth_http",
    "auth_ldap",
    "auth_oauth2",
    "cluster_formation",
    "cluster_nodes",
    "distribution",
    "federation",
    "log.console.formatter",
    "log.exchange.formatter",
    "log.file.formatter",
    "log.journald.formatter",
    "log.syslog",
    "management.cors",
    "management.listener",
    "management.restrictions",
    "management.sample_retention_policies",
    "management.ssl",
    "management_agent",
    "mqtt",
    "prometheus",
    "raft",
    "shovel",
    "stomp",
    "stream",
    "sysmon_handler",
    "tcp_listen_options",
    "trust_store",
    "web_mqtt",
    "web_stomp",
)


class _Values:
    """What was set, by the pattern of the key and the part the user chose."""

    def __init__(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        self._values = values

    def one(self, pattern: str, default: Any = None) -> Any:
        return self._values.get(pattern, {}).get("", default)

    def several(self, pattern: str, default: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values, in the order of the names the user chose."""
        chosen = self._values.get(pattern)
        if chosen is None:
            return default
        return tuple(chosen[name] for name in sorted(chosen, key=_numbers_first))

    def listeners(self, pattern: str, default: tuple[Listener, ...]) -> tuple[Listener, ...]:
        """`none` and addresses: with both, the addresses count."""
        if self.one(pattern) == "none":
            default = ()
        return self.several(f"{pattern}.$name", default)

    def names(self, pattern: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """The chosen parts set to true; naming any takes the place of the default."""
        chosen = self._values.get(pattern)
        return default if chosen is None else tuple(name for name, on in chosen.items() if on)

    def limit(self, key: str, default: Limit) -> Limit:
        """A limit; when it is given both ways, the number of bytes counts."""
        relative = self.one(f"{key}.relative", default)
        limit: Limit = self.one(f"{key}.absolute", relative)
        return limit


def _numbers_first(name: str) -> tuple[bool, int, str]:
    number = int(name) if name.isdecimal() else 0
    return (not name.isdecimal(), number, name)


def _assemble(chosen: Mapping[str, Mapping[str, Any]]) -> Config:
    defaults = Config()
    values = _Values(chosen)
    one = values.one
    loopback_default = () if one("loopback_users") else tuple(defaults.loopback_users)
    configure, write, read = defaults.default_permissions
    level = one("log.console.level", one("log.default.level", defaults.log_level))
    return Config(
        data_dir=one("data_dir", defaults.data_dir),
        node_name=one("node_name", defaults.node_name),
        amqp_listeners=values.listeners("listeners.tcp", defaults.amqp_listeners),
        tls_listeners=values.listeners("listeners.ssl", defaults.tls_listeners),
        ssl=SslOptions(
            cacertfile=one("ssl_options.cacertfile"),
            certfile=one("ssl_options.certfile"),
            keyfile=one("ssl_options.keyfile"),
            verify_peer=one("ssl_options.verify") == "verify_peer",
            fail_if_no_peer_cert=one("ssl_options.fail_if_no_peer_cert", False),
        ),
        ssl_cert_login_from=cast(
            CertificateName, one("ssl_cert_login_from", defaults.ssl_cert_login_from)
        ),
        proxy_protocol=one("proxy_protocol", defaults.proxy_protocol),
        channel_max=one("channel_max", defaults.channel_max),
        frame_max=one("frame_max", defaults.frame_max),
        heartbeat_s=one("heartbeat", defaults.heartbeat_s),
        handshake_timeout_ms=one("handshake_timeout", defaults.handshake_timeout_ms),
        max_message_size=one("max_message_size", defaults.max_message_size),
        connection_max=one("connection_max", defaults.connection_max),
        consumer_timeout_ms=one("consumer_timeout", defaults.consumer_timeout_ms),
        default_consumer_prefetch=one(
            "default_consumer_prefetch", defaults.default_consumer_prefetch
        ),
        auth_mechanisms=values.several("auth_mechanisms.$name", defaults.auth_mechanisms),
        default_user=one("default_user", defaults.default_user),
        default_pass=one("default_pass", defaults.default_pass),
        default_vhost=one("default_vhost", defaults.default_vhost),
        default_permissions=(
            one("default_permissions.configure", configure),
            one("default_permissions.write", write),
            one("default_permissions.read", read),
        ),
        default_user_tags=values.names("default_user_tags.$tag", defaults.default_user_tags),
        loopback_users=frozenset(values.names("loopback_users.$user", loopback_default)),
        memory_watermark=values.limit("vm_memory_high_watermark", defaults.memory_watermark),
        memory_paging_ratio=one(
            "vm_memory_high_watermark_paging_ratio", defaults.memory_paging_ratio
        ),
        store_file_bytes_max=one("msg_store_file_size_limit", defaults.store_file_bytes_max),
        embed_below=one("queue_index_embed_msgs_below", defaults.embed_below),
        disk_free_limit=values.limit("disk_free_limit", defaults.disk_free_limit),
        log_level=cast(LogLevel, level),
    )

"""The keys of `rabbitmq.conf` that set something, and how the value of each is read.

`$name` in a key stands for a part that the user chooses. `conf_values.py` makes the configuration
from the values; `unused_keys.py` has the keys that set nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from warren.amqp.frames import FRAME_MIN_SIZE
from warren.config import (
    CERTIFICATE_NAME_TYPES,
    CERTIFICATE_NAMES,
    CONSOLES,
    LOCATORS,
    LOG_CATEGORIES,
    LOG_LEVELS,
    NODE_NAME_WANTED,
    PARTITION_HANDLING,
    PROCESSES_WANTED,
    RATES_MODES,
    TLS_VERSIONS,
    Listener,
    checked_node_name,
    parse_processes,
)
from warren.core.access.password import ALGORITHMS
from warren.core.messages.message import MESSAGE_SIZE_CAP
from warren.core.patterns.pattern import compile_permission
from warren.core.resources.information_unit import parse_bytes
from warren.core.resources.memory_monitor import Absolute, Fraction

FIFTY_DAYS_MS = 50 * 24 * 3600 * 1000
UNIT_BITS = {"k": 10, "m": 20, "g": 30}
SECRET_BYTES_MIN = 16
"""The least length of the cluster's secret, which the links demand."""
MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL", "RABBIT-CR-DEMO")

Parse: TypeAlias = Callable[[str], Any]


class ValueKind(NamedTuple):
    """How a value is read, and the description of a valid value for error texts."""

    parse: Parse
    wanted: str


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
    """A fraction below 1."""
    share = _fraction(text).of_total
    if share >= 1:
        raise ValueError(text)
    return share


def _absolute(text: str) -> Absolute:
    return Absolute(parse_bytes(text))


def _octets_a_second(text: str) -> int:
    """A rate of 1 MiB per second or more: with less, readers that wait for their turn would time
    out."""
    octets = parse_bytes(text)
    if octets < 1 << 20:
        raise ValueError(text)
    return octets


def _trace_octets(text: str) -> int:
    octets = parse_bytes(text)
    if octets < 64 << 10:
        raise ValueError(text)
    return octets


def _otlp_endpoint(text: str) -> str:
    """The URL, with the path that OTLP has for traces if it has none."""
    found = re.fullmatch(r"(https?://[^/?#\s@]+)(/[^\s?#]*)?", text)
    if found is None:
        raise ValueError(text)
    path = (found[2] or "").rstrip("/")
    return found[1] + (path or "/v1/traces")


def _one_of(*choices: str) -> ValueKind:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    wanted = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    return ValueKind(parse, wanted)


def _or_named(kind: ValueKind, names: Mapping[str, str]) -> ValueKind:
    """A kind that also takes RabbitMQ's names of values; `names` gives the value that each has
    here."""
    return ValueKind(lambda text: kind.parse(names.get(text, text)), kind.wanted)


def _byte_size(parse: Parse) -> Parse:
    """A number that RabbitMQ takes with a unit, too, which is a power of 1024."""

    def with_unit(text: str) -> Any:
        match = re.fullmatch(r"([0-9]+)(kb|KB|mb|MB|gb|GB)", text)
        if match is None:
            return parse(text)
        return parse(str(int(match[1]) << UNIT_BITS[match[2][0].lower()]))

    return with_unit


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _frame_max(text: str) -> int:
    number: int = _number(0)(text)
    if 0 < number < FRAME_MIN_SIZE:
        raise ValueError(text)
    return number


def _unless(word: str, parse: Parse) -> Parse:
    """None for this word; otherwise the result of `parse`."""
    return lambda text: None if text == word else parse(text)


def _path_prefix(text: str) -> str:
    """The path with a slash at its beginning and none at its end; empty for the root."""
    prefix = text.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9._~/-]*", prefix) or "//" in prefix:
        raise ValueError(text)
    return f"/{prefix}" if prefix else ""


def _log_file(text: str) -> Path | None:
    if text == "true":
        raise ValueError(text)
    return None if text == "false" else Path(text)


def _endpoint(text: str) -> str:
    """A host, host:port or URL; returned without a path, with a scheme only if it has one."""
    scheme, slashes, rest = text.rpartition("://")
    if scheme not in ("", "http", "https") or not re.fullmatch(r"[^/\s]+", rest.rstrip("/")):
        raise ValueError(text)
    return f"{scheme}{slashes}{rest.rstrip('/')}"


def _host_of_node(text: str) -> str:
    match = re.fullmatch(r"[^@/\s]+@([^@/:\s]+)", text)
    if match is None:
        raise ValueError(text)
    return match[1]


def _host(text: str) -> str:
    if not re.fullmatch(r"[^@/:\s]+", text):
        raise ValueError(text)
    return text


def _secret(text: str) -> bytes:
    secret = text.encode()
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError("too short")
    return secret


def _permission(text: str) -> str:
    compile_permission(text)
    return text


TEXT = ValueKind(str, "some text")
FILE = ValueKind(Path, "the path of a file")
BOOLEAN = ValueKind(_boolean, "true or false")
NONE = _one_of("none")
LISTENER = ValueKind(Listener.parse, "a port, or an address and a port such as 127.0.0.1:5672")
LEVEL = _or_named(
    _one_of(*LOG_LEVELS),
    # No line of Warren has these levels; each counts as the nearest level that lines have.
    {"notice": "warning", "alert": "critical", "emergency": "critical"},
)
FILE_LEVEL = _or_named(
    LEVEL,
    # With these levels RabbitMQ 3.6 left severe lines out; here the file has those lines too.
    {"=debug": "debug", "!=info": "debug", "<=notice": "debug", "<warning": "debug"},
)
DIRECTORY = ValueKind(Path, "the path of a directory")
MILLISECONDS = ValueKind(_number(1), "a number of milliseconds above 0")
PATTERN = ValueKind(_permission, "a regular expression")
SHARE = ValueKind(_fraction, "a fraction such as 0.4")
ETCD_ENDPOINT = ValueKind(
    _endpoint, "a host, a host and a port, or an address such as http://h:2379"
)
PORT = ValueKind(_number(0, 65535), "a port from 0 to 65535")
BYTES = ValueKind(_absolute, "an amount of bytes such as 512MB, 1GiB or 4096")

# Smaller files would hold one batch each; offsets in larger ones would not fit a place.
STORE_FILE_BYTES_MIN = 64 << 10
STORE_FILE_BYTES_MAX = 1 << 30
# An embedded message is copied into each of its queues, which is of no use for larger ones.
EMBED_BELOW_MAX = 1 << 20

BALANCED = "balanced"
"""The name of min-masters in `queue_leader_locator`."""

LEADER_LOCATORS = ("client-local", BALANCED, "random")


VALIDATORS = ("accept_everything", "min_password_length", "password_regexp")


def _validator(text: str) -> str:
    name = text.removeprefix("rabbit_credential_validator_")
    if name not in VALIDATORS:
        raise ValueError(text)
    return name


def _tls_options(prefix: str) -> dict[str, ValueKind]:
    """The keys for the certificates and requirements of a TLS listener."""
    return {
        f"{prefix}.cacertfile": FILE,
        f"{prefix}.certfile": FILE,
        f"{prefix}.keyfile": FILE,
        f"{prefix}.password": TEXT,
        f"{prefix}.verify": _one_of("verify_peer", "verify_none"),
        f"{prefix}.fail_if_no_peer_cert": BOOLEAN,
        f"{prefix}.versions.$version": _one_of(*TLS_VERSIONS),
        f"{prefix}.ciphers.$cipher": TEXT,
        f"{prefix}.honor_cipher_order": BOOLEAN,
        f"{prefix}.dhfile": FILE,
    }


KEYS: Mapping[str, ValueKind] = {
    # These three are Warren's own; RabbitMQ takes the last two from its environment.
    "processes": ValueKind(parse_processes, PROCESSES_WANTED),
    "data_dir": DIRECTORY,
    "node_name": ValueKind(checked_node_name, NODE_NAME_WANTED),
    "listeners.tcp": NONE,
    "listeners.tcp.$name": LISTENER,
    "listeners.ssl": NONE,
    "listeners.ssl.$name": LISTENER,
    "ssl_options": NONE,
    **_tls_options("ssl_options"),
    "ssl_handshake_timeout": MILLISECONDS,
    "tcp_listen_options": NONE,
    "tcp_listen_options.backlog": ValueKind(_number(1), "a number of connections above 0"),
    "tcp_listen_options.nodelay": BOOLEAN,
    "tcp_listen_options.keepalive": BOOLEAN,
    "tcp_listen_options.sndbuf": ValueKind(
        parse_bytes, "an amount of bytes such as 196608 or 128KiB"
    ),
    "tcp_listen_options.recbuf": ValueKind(
        parse_bytes, "an amount of bytes such as 196608 or 128KiB"
    ),
    "tcp_listen_options.linger.on": BOOLEAN,
    "tcp_listen_options.linger.timeout": ValueKind(_number(0), "a number of seconds"),
    "ssl_cert_login_san_type": _one_of(*CERTIFICATE_NAME_TYPES),
    "ssl_cert_login_san_index": ValueKind(_number(0), "a number from 0 on"),
    "ssl_cert_login_from": _or_named(
        _one_of(*CERTIFICATE_NAMES), {"subject_alt_name": "subject_alternative_name"}
    ),
    "proxy_protocol": BOOLEAN,
    "channel_max": ValueKind(_number(0, 65535), "a number from 0 to 65535"),
    "frame_max": ValueKind(
        _byte_size(_frame_max), f"0 or a number of bytes from {FRAME_MIN_SIZE} on"
    ),
    "heartbeat": ValueKind(_number(0, 65535), "a number of seconds from 0 to 65535"),
    "handshake_timeout": _or_named(MILLISECONDS, {"infinity": str(FIFTY_DAYS_MS)}),
    "max_message_size": ValueKind(
        _number(1, MESSAGE_SIZE_CAP), f"a number of bytes from 1 to {MESSAGE_SIZE_CAP}"
    ),
    "connection_max": ValueKind(
        _unless("infinity", _number(0)), "a number of connections, or infinity"
    ),
    "consumer_timeout": ValueKind(
        _unless("infinity", _number(1)), "a number of milliseconds above 0, or infinity"
    ),
    "default_consumer_prefetch": ValueKind(_number(0, 65535), "a number from 0 to 65535"),
    "auth_mechanisms.$name": _one_of(*MECHANISMS),
    "credential_validator.validation_backend": ValueKind(
        _validator,
        "rabbit_credential_validator_ and accept_everything, min_password_length or"
        " password_regexp",
    ),
    "credential_validator.min_length": ValueKind(_number(0), "a number of characters"),
    "credential_validator.regexp": PATTERN,
    "password_hashing_module": _one_of(*ALGORITHMS),
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
    "vm_memory_high_watermark_paging_ratio": ValueKind(_part, "a fraction below 1 such as 0.5"),
    "msg_store_file_size_limit": ValueKind(
        _number(STORE_FILE_BYTES_MIN, STORE_FILE_BYTES_MAX),
        f"a number of bytes from {STORE_FILE_BYTES_MIN} to {STORE_FILE_BYTES_MAX}",
    ),
    "queue_index_embed_msgs_below": ValueKind(
        _byte_size(_number(0, EMBED_BELOW_MAX)), f"a number of bytes from 0 to {EMBED_BELOW_MAX}"
    ),
    "total_memory_available_override_value": ValueKind(
        parse_bytes, "an amount of bytes such as 512MB, 1GiB or 4096"
    ),
    "disk_free_limit.relative": SHARE,
    "disk_free_limit.absolute": BYTES,
    # The keys up to `alarms.block_all_publishers` are Warren's own.
    "snapshot_limit.relative": SHARE,
    "snapshot_limit.absolute": BYTES,
    "snapshot_rate": ValueKind(
        _octets_a_second, "bytes a second such as 16MB, 64MiB or 67108864, from 1MiB on"
    ),
    "trace.size_limit": ValueKind(
        _trace_octets, "bytes such as 64MB, 64MiB or 67108864, from 64KiB on"
    ),
    "opentelemetry.endpoint": ValueKind(
        _otlp_endpoint, "an address such as http://localhost:4318 or https://host/v1/traces"
    ),
    "opentelemetry.service_name": TEXT,
    "alarms.block_all_publishers": BOOLEAN,
    "collect_statistics_interval": MILLISECONDS,
    "load_definitions": FILE,
    "definitions.local.path": FILE,
    "definitions.skip_if_unchanged": BOOLEAN,
    # `management.tcp` is Warren's own: in RabbitMQ the plug-in is switched off instead.
    "management.tcp": NONE,
    "management.tcp.port": PORT,
    "management.tcp.ip": TEXT,
    "management.ssl.port": PORT,
    "management.ssl.ip": TEXT,
    **_tls_options("management.ssl"),
    # The names of these keys before RabbitMQ 3.7.
    "management.listener.port": PORT,
    "management.listener.ip": TEXT,
    "management.listener.ssl": BOOLEAN,
    "management.listener.ssl_opts": NONE,
    **_tls_options("management.listener.ssl_opts"),
    "management.csp.policy": TEXT,
    "management.hsts.policy": TEXT,
    "management.headers.content_type_options": TEXT,
    "management.headers.frame_options": TEXT,
    "management.headers.xss_protection": TEXT,
    "management.path_prefix": ValueKind(_path_prefix, "a path such as /broker"),
    "management.cors.allow_origins": NONE,
    "management.cors.allow_origins.$name": TEXT,
    "management.cors.max_age": ValueKind(
        _unless("undefined", _number(0)), "a number of seconds, or undefined"
    ),
    "management.load_definitions": FILE,
    "management.rates_mode": _one_of(*RATES_MODES),
    "management.login_session_timeout": ValueKind(_number(1), "a number of minutes above 0"),
    "management.disable_stats": BOOLEAN,
    "prometheus.tcp.port": PORT,
    "prometheus.tcp.ip": TEXT,
    "prometheus.ssl.port": PORT,
    "prometheus.ssl.ip": TEXT,
    **_tls_options("prometheus.ssl"),
    "prometheus.path": ValueKind(_path_prefix, "a path such as /metrics"),
    "prometheus.return_per_object_metrics": BOOLEAN,
    # Other nodes. Keys that begin with `cluster.` are Warren's own.
    "cluster_formation.peer_discovery_backend": TEXT,
    "cluster_formation.classic_config.nodes.$name": ValueKind(
        _host_of_node, "a node and its host, such as rabbit@one.example,"
    ),
    "cluster_formation.dns.hostname": ValueKind(_host, "the name of a host"),
    "cluster_formation.etcd.endpoints.$name": ETCD_ENDPOINT,
    "cluster_formation.etcd.host": TEXT,
    "cluster_formation.etcd.port": PORT,
    "cluster_formation.etcd.key_prefix": TEXT,
    "cluster_formation.etcd.cluster_name": TEXT,
    "cluster_formation.etcd.username": TEXT,
    "cluster_formation.etcd.password": TEXT,
    "cluster_formation.etcd.ssl_options.cacertfile": FILE,
    "cluster_formation.etcd.ssl_options.certfile": FILE,
    "cluster_formation.etcd.ssl_options.keyfile": FILE,
    "cluster_formation.etcd.ssl_options.verify": _one_of("verify_peer", "verify_none"),
    "cluster_formation.discovery_retry_limit": ValueKind(_number(1), "a number above 0"),
    "cluster_formation.discovery_retry_interval": MILLISECONDS,
    "cluster.secret": ValueKind(_secret, f"a secret of {SECRET_BYTES_MIN} octets or more"),
    "cluster.secret_file": FILE,
    "cluster.advertised_host": TEXT,
    "cluster.links.ssl.cacertfile": FILE,
    "cluster.links.ssl.certfile": FILE,
    "cluster.links.ssl.keyfile": FILE,
    "cluster.lease_ttl": ValueKind(_number(2), "a number of seconds from 2 on"),
    "distribution.listener.interface": TEXT,
    "distribution.listener.port_range.min": PORT,
    "cluster_partition_handling": _one_of(*PARTITION_HANDLING),
    "cluster_partition_handling.pause_if_all_down.nodes.$name": TEXT,
    "net_ticktime": ValueKind(_number(1), "a number of seconds above 0"),
    "queue_master_locator": _one_of(*LOCATORS),
    "queue_leader_locator": _or_named(
        _one_of(*LEADER_LOCATORS), {"least-leaders": BALANCED, "min-masters": BALANCED}
    ),
    "cluster_name": TEXT,
    "mirroring_sync_batch_size": ValueKind(_byte_size(_number(1)), "a number of messages above 0"),
    "mirroring_sync_max_throughput": ValueKind(parse_bytes, "octets a second such as 10MB, or 0"),
    "log.default.level": LEVEL,
    "log.console": BOOLEAN,
    "log.console.level": LEVEL,
    "log.console.stdio": _one_of(*CONSOLES),
    "log.dir": DIRECTORY,
    "log.file": ValueKind(_log_file, "the path of a file, or false"),
    "log.file.level": FILE_LEVEL,
    **{f"log.{category}.level": LEVEL for category in LOG_CATEGORIES},
}

"""The keys of `rabbitmq.conf`: how the value of each is read, and which have no effect here.

`$name` in a key stands for one part of anybody's choice. What is made of the values is
`conf_values.py`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from warren.config import (
    CERTIFICATE_NAMES,
    LOCATORS,
    LOG_CATEGORIES,
    LOG_LEVELS,
    NODE_NAME_WANTED,
    PARTITION_HANDLING,
    RATES_MODES,
    Listener,
    checked_node_name,
)
from warren.core.information_unit import parse_bytes
from warren.core.memory_monitor import Absolute, Fraction
from warren.core.pattern import compile_permission

FRAME_MIN = 4096
# RabbitMQ's cap for messages, whatever is configured.
MESSAGE_SIZE_CAP = 536_870_912
SECRET_BYTES_MIN = 16
"""Of the cluster's secret; what the links demand."""
MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL", "RABBIT-CR-DEMO")

Parse: TypeAlias = Callable[[str], Any]


class Kind(NamedTuple):
    """How a value is read, and what is wanted when it cannot be."""

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
    """A share that is less than the whole."""
    share = _fraction(text).of_total
    if share >= 1:
        raise ValueError(text)
    return share


def _absolute(text: str) -> Absolute:
    return Absolute(parse_bytes(text))


def _one_of(*choices: str) -> Kind:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    wanted = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    return Kind(parse, wanted)


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


def _path_prefix(text: str) -> str:
    """With a slash at its beginning and none at its end; empty for the root."""
    prefix = text.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9._~/-]*", prefix) or "//" in prefix:
        raise ValueError(text)
    return f"/{prefix}" if prefix else ""


def _log_file(text: str) -> Path | None:
    if text == "true":
        raise ValueError(text)
    return None if text == "false" else Path(text)


def _endpoint(text: str) -> str:
    """host, host:port or a URL; as a URL without a path, or without a scheme."""
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


TEXT = Kind(str, "some text")
FILE = Kind(Path, "the path of a file")
BOOLEAN = Kind(_boolean, "true or false")
NONE = _one_of("none")
LISTENER = Kind(Listener.parse, "a port, or an address and a port such as 127.0.0.1:5672")
LEVEL = _one_of(*LOG_LEVELS)
DIRECTORY = Kind(Path, "the path of a directory")
MILLISECONDS = Kind(_number(1), "a number of milliseconds above 0")
PATTERN = Kind(_permission, "a regular expression")
SHARE = Kind(_fraction, "a fraction such as 0.4")
ETCD_ENDPOINT = Kind(_endpoint, "a host, a host and a port, or an address such as http://h:2379")
PORT = Kind(_number(0, 65535), "a port from 0 to 65535")
BYTES = Kind(_absolute, "an amount of bytes such as 512MB, 1GiB or 4096")

# Smaller files would be files of one batch; offsets in larger ones would not fit a place.
STORE_FILE_BYTES_MIN = 64 << 10
STORE_FILE_BYTES_MAX = 1 << 30
# Copies of larger messages for each queue serve nobody.
EMBED_BELOW_MAX = 1 << 20

KEYS: Mapping[str, Kind] = {
    # The first two are Warren's own; RabbitMQ takes them from its environment.
    "data_dir": DIRECTORY,
    "node_name": Kind(checked_node_name, NODE_NAME_WANTED),
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
    "channel_max": Kind(_number(0, 65535), "a number from 0 to 65535"),
    "frame_max": Kind(_frame_max, f"0 or a number of bytes from {FRAME_MIN} on"),
    "heartbeat": Kind(_number(0, 65535), "a number of seconds from 0 to 65535"),
    "handshake_timeout": MILLISECONDS,
    "max_message_size": Kind(
        _number(1, MESSAGE_SIZE_CAP), f"a number of bytes from 1 to {MESSAGE_SIZE_CAP}"
    ),
    "connection_max": Kind(_unless("infinity", _number(0)), "a number of connections, or infinity"),
    "consumer_timeout": Kind(
        _unless("infinity", _number(1)), "a number of milliseconds above 0, or infinity"
    ),
    "default_consumer_prefetch": Kind(_number(0, 65535), "a number from 0 to 65535"),
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
    "vm_memory_high_watermark_paging_ratio": Kind(_part, "a fraction below 1 such as 0.5"),
    "msg_store_file_size_limit": Kind(
        _number(STORE_FILE_BYTES_MIN, STORE_FILE_BYTES_MAX),
        f"a number of bytes from {STORE_FILE_BYTES_MIN} to {STORE_FILE_BYTES_MAX}",
    ),
    "queue_index_embed_msgs_below": Kind(
        _number(0, EMBED_BELOW_MAX), f"a number of bytes from 0 to {EMBED_BELOW_MAX}"
    ),
    "disk_free_limit.relative": SHARE,
    "disk_free_limit.absolute": BYTES,
    # Warren's own.
    "snapshot_limit.relative": SHARE,
    "snapshot_limit.absolute": BYTES,
    "collect_statistics_interval": MILLISECONDS,
    "load_definitions": FILE,
    "definitions.skip_if_unchanged": BOOLEAN,
    # `management.tcp` is Warren's own: in RabbitMQ the plug-in is switched off instead.
    "management.tcp": NONE,
    "management.tcp.port": PORT,
    "management.tcp.ip": TEXT,
    "management.ssl.port": PORT,
    "management.ssl.ip": TEXT,
    "management.ssl.cacertfile": FILE,
    "management.ssl.certfile": FILE,
    "management.ssl.keyfile": FILE,
    "management.ssl.verify": _one_of("verify_peer", "verify_none"),
    "management.ssl.fail_if_no_peer_cert": BOOLEAN,
    "management.path_prefix": Kind(_path_prefix, "a path such as /broker"),
    "management.cors.allow_origins": NONE,
    "management.cors.allow_origins.$name": TEXT,
    "management.cors.max_age": Kind(
        _unless("undefined", _number(0)), "a number of seconds, or undefined"
    ),
    "management.load_definitions": FILE,
    "management.rates_mode": _one_of(*RATES_MODES),
    "management.login_session_timeout": Kind(_number(1), "a number of minutes above 0"),
    "management.disable_stats": BOOLEAN,
    "prometheus.tcp.port": PORT,
    "prometheus.tcp.ip": TEXT,
    "prometheus.path": Kind(_path_prefix, "a path such as /metrics"),
    "prometheus.return_per_object_metrics": BOOLEAN,
    # Other nodes. What begins with `cluster.` is Warren's own.
    "cluster_formation.peer_discovery_backend": TEXT,
    "cluster_formation.classic_config.nodes.$name": Kind(
        _host_of_node, "a node and its host, such as rabbit@one.example,"
    ),
    "cluster_formation.dns.hostname": Kind(_host, "the name of a host"),
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
    "cluster_formation.discovery_retry_limit": Kind(_number(1), "a number above 0"),
    "cluster_formation.discovery_retry_interval": MILLISECONDS,
    "cluster.secret": Kind(_secret, f"a secret of {SECRET_BYTES_MIN} octets or more"),
    "cluster.secret_file": FILE,
    "cluster.advertised_host": TEXT,
    "cluster.links.ssl.cacertfile": FILE,
    "cluster.links.ssl.certfile": FILE,
    "cluster.links.ssl.keyfile": FILE,
    "cluster.lease_ttl": Kind(_number(2), "a number of seconds from 2 on"),
    "distribution.listener.interface": TEXT,
    "distribution.listener.port_range.min": PORT,
    "cluster_partition_handling": _one_of(*PARTITION_HANDLING),
    "cluster_partition_handling.pause_if_all_down.nodes.$name": TEXT,
    "net_ticktime": Kind(_number(1), "a number of seconds above 0"),
    "queue_master_locator": _one_of(*LOCATORS),
    "mirroring_sync_batch_size": Kind(_number(1), "a number of messages above 0"),
    "log.default.level": LEVEL,
    "log.console": BOOLEAN,
    "log.console.level": LEVEL,
    "log.dir": DIRECTORY,
    "log.file": Kind(_log_file, "the path of a file, or false"),
    "log.file.level": LEVEL,
    **{f"log.{category}.level": LEVEL for category in LOG_CATEGORIES},
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
    "cluster_partition_handling.pause_if_all_down.recover",
    "collect_statistics",
    "credential_validator.min_length",
    "credential_validator.regexp",
    "credential_validator.validation_backend",
    "definitions.import_backend",
    "definitions.local.path",
    "hipe_compile",
    "lazy_queue_explicit_gc_run_operation_threshold",
    "log.channel.file",
    "log.connection.file",
    "log.exchange",
    "log.exchange.level",
    "log.federation.file",
    "log.federation.level",
    "log.file.rotation.compress",
    "log.file.rotation.count",
    "log.file.rotation.date",
    "log.file.rotation.size",
    "log.journald",
    "log.journald.level",
    "log.mirroring.file",
    "log.mirroring.level",
    "log.queue.file",
    "log.ra.file",
    "log.ra.level",
    "log.upgrade.file",
    "log.upgrade.level",
    "management.csp.policy",
    "management.disable_basic_auth",
    "management.enable_queue_totals",
    "management.hsts.max_age",
    "management.hsts.policy",
    "management.http_log_dir",
    "management.ssl.backlog",
    "management.ssl.ciphers.$name",
    "management.ssl.client_renegotiation",
    "management.ssl.compress",
    "management.ssl.depth",
    "management.ssl.dh",
    "management.ssl.honor_cipher_order",
    "management.ssl.honor_ecc_order",
    "management.ssl.idle_timeout",
    "management.ssl.inactivity_timeout",
    "management.ssl.max_keepalive",
    "management.ssl.nodelay",
    "management.ssl.password",
    "management.ssl.request_timeout",
    "management.ssl.secure_renegotiate",
    "management.ssl.shutdown_function",
    "management.ssl.versions.$name",
    "management.tcp.backlog",
    "management.tcp.compress",
    "management.tcp.idle_timeout",
    "management.tcp.inactivity_timeout",
    "management.tcp.max_keepalive",
    "management.tcp.nodelay",
    "management.tcp.request_timeout",
    "management.tcp.shutdown_function",
    "management_agent.disable_metrics_collector",
    "memory_monitor_interval",
    "mirroring_flow_control",
    "mirroring_sync_max_throughput",
    "mnesia_table_loading_retry_limit",
    "mnesia_table_loading_retry_timeout",
    "motd_file",
    "num_acceptors.ssl",
    "num_acceptors.tcp",
    "password_hashing_module",
    "product.name",
    "product.version",
    "prometheus.tcp.backlog",
    "prometheus.tcp.compress",
    "prometheus.tcp.idle_timeout",
    "prometheus.tcp.inactivity_timeout",
    "prometheus.tcp.max_keepalive",
    "prometheus.tcp.nodelay",
    "prometheus.tcp.request_timeout",
    "prometheus.tcp.shutdown_function",
    "queue_explicit_gc_run_operation_threshold",
    "queue_index_max_journal_entries",
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
    "management.listener",
    "management.restrictions",
    "management.sample_retention_policies",
    "mqtt",
    "prometheus.ssl",
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

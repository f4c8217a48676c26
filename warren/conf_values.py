"""Makes a `Config` from the values that a `rabbitmq.conf` sets.

Answerable for what keys mean together: which of two keys counts, and the values of keys that are
not set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from warren.conf_keys import BALANCED
from warren.config import (
    ANY_HOST,
    ETCD_PORT,
    HTTP_PORT,
    HTTPS_PORT,
    LINK_HOST,
    LINK_PORT,
    LOCATORS,
    LOG_CATEGORIES,
    METRICS_PORT,
    METRICS_TLS_PORT,
    CertificateName,
    ClusterConfig,
    Config,
    Listener,
    LogLevel,
    PartitionHandling,
    PasswordRule,
    RatesMode,
    SslOptions,
    TcpOptions,
)
from warren.core.resources.memory_monitor import Limit


def assemble(chosen: Mapping[str, Mapping[str, Any]]) -> Config:
    """The configuration; `chosen` has the values by key and by the part the user chose."""
    defaults = Config()
    values = Values(chosen)
    one = values.one
    loopback_default = () if one("loopback_users") else tuple(defaults.loopback_users)
    return Config(
        data_dir=one("data_dir", defaults.data_dir),
        node_name=one("node_name", defaults.node_name),
        amqp_listeners=values.listeners("listeners.tcp", defaults.amqp_listeners),
        tls_listeners=values.listeners("listeners.ssl", defaults.tls_listeners),
        ssl=values.ssl("ssl_options"),
        ssl_cert_login_from=cast(
            CertificateName, one("ssl_cert_login_from", defaults.ssl_cert_login_from)
        ),
        ssl_cert_login_san_type=one("ssl_cert_login_san_type"),
        ssl_cert_login_san_index=one("ssl_cert_login_san_index", 0),
        ssl_handshake_timeout_ms=one("ssl_handshake_timeout", defaults.ssl_handshake_timeout_ms),
        tcp=_tcp(values),
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
        default_permissions=_default_permissions(values, defaults),
        default_user_tags=values.names("default_user_tags.$tag", defaults.default_user_tags),
        loopback_users=frozenset(values.names("loopback_users.$user", loopback_default)),
        password_rule=_password_rule(values),
        password_hashing=one("password_hashing_module", defaults.password_hashing),
        total_memory_bytes=one("total_memory_available_override_value"),
        memory_watermark=values.limit("vm_memory_high_watermark", defaults.memory_watermark),
        memory_paging_ratio=one(
            "vm_memory_high_watermark_paging_ratio", defaults.memory_paging_ratio
        ),
        store_file_bytes_max=one("msg_store_file_size_limit", defaults.store_file_bytes_max),
        embed_below=one("queue_index_embed_msgs_below", defaults.embed_below),
        disk_free_limit=values.limit("disk_free_limit", defaults.disk_free_limit),
        alarms_block_all=one("alarms.block_all_publishers", defaults.alarms_block_all),
        snapshot_limit=values.limit("snapshot_limit", defaults.snapshot_limit),
        snapshot_rate=one("snapshot_rate", defaults.snapshot_rate),
        trace_size_limit=one("trace.size_limit", defaults.trace_size_limit),
        otel_endpoint=one("opentelemetry.endpoint"),
        otel_service_name=one("opentelemetry.service_name", defaults.otel_service_name),
        http_listeners=_http_listeners(values, defaults.http_listeners),
        http_tls_listeners=_https_listeners(values),
        http_ssl=_http_ssl(values),
        http_headers=_http_headers(values),
        path_prefix=one("management.path_prefix", defaults.path_prefix),
        cors_origins=values.several("management.cors.allow_origins.$name", defaults.cors_origins),
        cors_max_age_s=one("management.cors.max_age", defaults.cors_max_age_s),
        **_several_nodes(values, defaults),
        cluster_name=one("cluster_name"),
        load_definitions=one(
            "load_definitions",
            one("definitions.local.path", one("management.load_definitions")),
        ),
        definitions_skip_if_unchanged=one("definitions.skip_if_unchanged", False),
        rates_mode=cast(RatesMode, one("management.rates_mode", defaults.rates_mode)),
        login_session_timeout_min=one(
            "management.login_session_timeout", defaults.login_session_timeout_min
        ),
        disable_stats=one("management.disable_stats", defaults.disable_stats),
        stats_interval_ms=one("collect_statistics_interval", defaults.stats_interval_ms),
        metrics_listeners=values.address("prometheus.tcp", METRICS_PORT),
        metrics_tls_listeners=_tls_listeners(values, "prometheus.ssl", METRICS_TLS_PORT),
        metrics_ssl=values.ssl("prometheus.ssl"),
        metrics_path=one("prometheus.path", defaults.metrics_path) or "/",
        metrics_per_object=one("prometheus.return_per_object_metrics", False),
        log_level=cast(LogLevel, one("log.default.level", defaults.log_level)),
        log_levels=tuple(
            (category, cast(LogLevel, level))
            for category in LOG_CATEGORIES
            if (level := one(f"log.{category}.level")) is not None
        ),
        log_console=one("log.console", defaults.log_console),
        log_console_level=cast(LogLevel | None, one("log.console.level")),
        log_console_stream=one("log.console.stdio", defaults.log_console_stream),
        log_file=_log_file(one("log.dir"), one("log.file")),
        log_file_level=cast(LogLevel | None, one("log.file.level")),
    )


DISCOVERY = "cluster_formation.peer_discovery_backend"
ETCD = "cluster_formation.etcd"


def _several_nodes(values: Values, defaults: Config) -> dict[str, Any]:
    """The settings for other nodes: for a cluster if a key says where etcd is, and for the
    processes of this broker."""
    hosts = _etcd_hosts(values)
    config = _cluster(values, hosts)
    return {
        "processes": values.one("processes", defaults.processes),
        "cluster": config if hosts else None,
        "process_cluster": config,
    }


def _cluster(values: Values, hosts: tuple[str, ...]) -> ClusterConfig:
    """The settings of a cluster. The secret may still come from the environment, and is empty until
    then."""
    one = values.one
    ssl = values.ssl(f"{ETCD}.ssl_options")
    links = values.ssl("cluster.links.ssl")
    encrypted = ssl.cacertfile is not None or ssl.certfile is not None
    scheme = "https" if encrypted else "http"
    defaults = ClusterConfig((), b"")
    prefix = one(f"{ETCD}.key_prefix", "warren").strip("/")
    name = one(f"{ETCD}.cluster_name", "default").strip("/")
    return ClusterConfig(
        etcd_endpoints=tuple(_etcd_url(host, scheme) for host in hosts),
        secret=one("cluster.secret", b""),
        secret_file=one("cluster.secret_file"),
        etcd_prefix=f"/{prefix}/{name}",
        etcd_user=one(f"{ETCD}.username"),
        etcd_password=one(f"{ETCD}.password", ""),
        etcd_ssl=ssl if encrypted else None,
        listener=Listener(
            one("distribution.listener.interface", LINK_HOST),
            one("distribution.listener.port_range.min", LINK_PORT),
        ),
        advertised_host=one("cluster.advertised_host"),
        link_ssl=links if links != SslOptions() else None,
        link_timeout_s=one("net_ticktime", defaults.link_timeout_s),
        lease_ttl_s=one("cluster.lease_ttl", defaults.lease_ttl_s),
        partition_handling=cast(
            PartitionHandling, one("cluster_partition_handling", defaults.partition_handling)
        ),
        pause_unless_reached=values.several(
            "cluster_partition_handling.pause_if_all_down.nodes.$name", ()
        ),
        queue_master_locator=_locator(values),
        sync_batch=one("mirroring_sync_batch_size", defaults.sync_batch),
        sync_rate=one("mirroring_sync_max_throughput", defaults.sync_rate),
        start_attempts=one("cluster_formation.discovery_retry_limit", defaults.start_attempts),
        start_pause_s=one("cluster_formation.discovery_retry_interval", 500) / 1000,
    )


def _etcd_hosts(values: Values) -> tuple[str, ...]:
    """The endpoints of etcd: those that are set, otherwise the hosts of the nodes."""
    endpoints: tuple[str, ...] = values.several(f"{ETCD}.endpoints.$name", ())
    if endpoints:
        return endpoints
    backend = values.one(DISCOVERY, "classic_config").removeprefix("rabbit_peer_discovery_")
    nodes = values.several("cluster_formation.classic_config.nodes.$name", ())
    name = values.one("cluster_formation.dns.hostname")
    hosts: tuple[str, ...] = ()
    if values.one(f"{ETCD}.host") is not None:
        hosts = (values.one(f"{ETCD}.host"),)
    elif backend == "etcd":
        hosts = ("localhost",)
    elif backend == "dns" and name is not None:
        # All addresses of the name are tried.
        hosts = (name,)
    elif backend == "classic_config" and len(nodes) > 1:
        hosts = tuple(dict.fromkeys(nodes))
    return tuple(f"{host}:{values.one(f'{ETCD}.port', ETCD_PORT)}" for host in hosts)


def _etcd_url(host: str, scheme: str) -> str:
    if "://" in host:
        return host
    return (
        f"{scheme}://{host}" if re.search(r":[0-9]+\Z", host) else f"{scheme}://{host}:{ETCD_PORT}"
    )


def _locator(values: Values) -> str:
    """The locator of queues. Of the two keys the older one counts: it has more values."""
    chosen: str = values.one("queue_leader_locator", LOCATORS[0])
    if chosen == BALANCED:
        chosen = "min-masters"
    locator: str = values.one("queue_master_locator", chosen)
    return locator


def _tcp(values: Values) -> TcpOptions:
    defaults = TcpOptions()

    def one(name: str, default: Any) -> Any:
        return values.one(f"tcp_listen_options.{name}", default)

    return TcpOptions(
        backlog=one("backlog", defaults.backlog),
        nodelay=one("nodelay", defaults.nodelay),
        keepalive=one("keepalive", defaults.keepalive),
        send_buffer_bytes=one("sndbuf", None),
        receive_buffer_bytes=one("recbuf", None),
        linger_s=one("linger.timeout", 0) if one("linger.on", False) else None,
    )


def _default_permissions(values: Values, defaults: Config) -> tuple[str, str, str]:
    kinds = ("configure", "write", "read")
    configure, write, read = (
        values.one(f"default_permissions.{kind}", default)
        for kind, default in zip(kinds, defaults.default_permissions, strict=True)
    )
    return configure, write, read


VALIDATOR = "credential_validator"


def _password_rule(values: Values) -> PasswordRule:
    """The rule for passwords. The validator decides which of the two other keys counts."""
    validator = values.one(f"{VALIDATOR}.validation_backend")
    if validator == "min_password_length":
        return PasswordRule(length_min=values.one(f"{VALIDATOR}.min_length", 0))
    if validator == "password_regexp":
        return PasswordRule(pattern=values.one(f"{VALIDATOR}.regexp"))
    return PasswordRule()


HEADERS = {
    "management.csp.policy": "Content-Security-Policy",
    "management.hsts.policy": "Strict-Transport-Security",
    "management.headers.content_type_options": "X-Content-Type-Options",
    "management.headers.frame_options": "X-Frame-Options",
    "management.headers.xss_protection": "X-XSS-Protection",
}


def _http_headers(values: Values) -> tuple[tuple[str, str], ...]:
    chosen = ((header, values.one(key)) for key, header in HEADERS.items())
    return tuple((header, value) for header, value in chosen if value is not None)


FORMER_HTTP = "management.listener"


def _http_listeners(values: Values, default: tuple[Listener, ...]) -> tuple[Listener, ...]:
    """The HTTP listeners. As in RabbitMQ, a TLS listener replaces the default one."""
    plain = values.address("management.tcp", HTTP_PORT)
    if not plain and not values.one(f"{FORMER_HTTP}.ssl"):
        plain = values.address(FORMER_HTTP, HTTP_PORT)
    if plain:
        return plain
    if values.one("management.tcp") == "none" or _https_listeners(values):
        return ()
    return default


def _https_listeners(values: Values) -> tuple[Listener, ...]:
    if values.one(f"{FORMER_HTTP}.ssl") and not _tls_listeners(values, "management.ssl", 0):
        return values.address(FORMER_HTTP, HTTP_PORT) or (Listener(ANY_HOST, HTTP_PORT),)
    return _tls_listeners(values, "management.ssl", HTTPS_PORT)


def _http_ssl(values: Values) -> SslOptions:
    former = values.one(f"{FORMER_HTTP}.ssl") and not _tls_listeners(values, "management.ssl", 0)
    return values.ssl(f"{FORMER_HTTP}.ssl_opts" if former else "management.ssl")


def _tls_listeners(values: Values, prefix: str, port: int) -> tuple[Listener, ...]:
    """The TLS listeners of this prefix. A certificate alone asks for one too: it would not be set
    for plain HTTP."""
    chosen = values.address(prefix, port)
    if not chosen and values.one(f"{prefix}.certfile") is not None:
        return (Listener(ANY_HOST, port),)
    return chosen


def _log_file(directory: Path | None, file: Path | None) -> Path | None:
    return file if file is None or directory is None else directory / file


class Values:
    """The values set, by the pattern of the key and the part that the user chose."""

    def __init__(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        self._values = values

    def one(self, pattern: str, default: Any = None) -> Any:
        return self._values.get(pattern, {}).get("", default)

    def several(self, pattern: str, default: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values, in the order of the names that the user chose."""
        chosen = self._values.get(pattern)
        if chosen is None:
            return default
        return tuple(chosen[name] for name in sorted(chosen, key=_numbers_first))

    def listeners(self, pattern: str, default: tuple[Listener, ...]) -> tuple[Listener, ...]:
        """The listeners of a key that takes `none` or addresses; with both, the addresses count."""
        if self.one(pattern) == "none":
            default = ()
        return self.several(f"{pattern}.$name", default)

    def names(self, pattern: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """The chosen parts set to true; if any part is named, the default does not count."""
        chosen = self._values.get(pattern)
        return default if chosen is None else tuple(name for name, on in chosen.items() if on)

    def address(self, prefix: str, port: int) -> tuple[Listener, ...]:
        """The listener whose `ip` and `port` are keys; empty if neither is set."""
        host = self.one(f"{prefix}.ip")
        chosen = self.one(f"{prefix}.port")
        if host is None and chosen is None:
            return ()
        return (Listener(host or ANY_HOST, port if chosen is None else chosen),)

    def ssl(self, prefix: str) -> SslOptions:
        one = self.one
        return SslOptions(
            cacertfile=one(f"{prefix}.cacertfile"),
            certfile=one(f"{prefix}.certfile"),
            keyfile=one(f"{prefix}.keyfile"),
            verify_peer=one(f"{prefix}.verify") == "verify_peer",
            fail_if_no_peer_cert=one(f"{prefix}.fail_if_no_peer_cert", False),
            password=one(f"{prefix}.password", ""),
            versions=self.several(f"{prefix}.versions.$version", ()),
            ciphers=self.several(f"{prefix}.ciphers.$cipher", ()),
            honor_cipher_order=one(f"{prefix}.honor_cipher_order", False),
            dhfile=one(f"{prefix}.dhfile"),
        )

    def limit(self, key: str, default: Limit) -> Limit:
        """A limit; if it is set both as a share and in bytes, the bytes count."""
        relative = self.one(f"{key}.relative", default)
        limit: Limit = self.one(f"{key}.absolute", relative)
        return limit


def _numbers_first(name: str) -> tuple[bool, int, str]:
    number = int(name) if name.isdecimal() else 0
    return (not name.isdecimal(), number, name)

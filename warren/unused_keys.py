"""Keys of RabbitMQ 3.10 that set nothing in Warren, each with what Warren does instead.

A file that RabbitMQ accepts is accepted here too, so that it can be used without editing. A setting
without effect causes a warning, made of the sentences below. `conf_keys.py` has the keys that set
something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

NO_ERLANG = "Warren has no Erlang schedulers, memory allocators or distribution"
NO_CLASSIC_VERSIONS = "classic queues have one format on disk (docs/storage-format.md)"
NO_FORMATTERS = "log lines have one form, which docs/configuration.md describes"
NO_ROTATION = "logrotate moves the log file away, and SIGHUP opens a new one"
ONE_FILE = "all categories are written to log.file"
TO_STANDARD_ERROR = "log lines go to log.file and to the standard error output, which systemd keeps"
OTHER_CATEGORIES = "log.cluster.level, log.queue.level and log.storage.level are the nearest levels"
NO_COLOURS = "log lines have no colours"
NO_DOWNLOAD = "definitions are imported from files only: fetch them before the start, and name the"
NO_DOWNLOAD += " file with load_definitions"
SAFE_TLS = "TLS 1.2 and 1.3 are offered, without compression and without renegotiation by clients"
FILES_ONLY = "certificates and keys are read from the files that certfile, keyfile and cacertfile"
FILES_ONLY += " name"
NO_REVOCATION = "revocation lists are not checked: issue certificates for short times"
CHAIN_LENGTH = "chains of certificates may have any length that OpenSSL allows"
NO_OPTION = "OpenSSL decides this itself"
OWN_USERS = "users and permissions are those of the broker's own definitions"
HTTP_TIMES = "HTTP connections that are idle are closed after 75 seconds"
HTTP_ANSWERS = "answers are compressed for clients that ask for it"
NO_TOKENS = "people log in with name and password; OAuth 2 is not offered"
ETCD_DECIDES = "etcd decides who joins and leads (docs/clustering.md)"
ONE_LOG = "quorum queues are stored like all other queues (docs/quorum_queues.md)"
SOCKET_DEFAULTS = "sockets have what the system gives them"

_TLS: Mapping[str, str] = {
    "bypass_pem_cache": NO_ERLANG,
    "cacerts.$name": FILES_ONLY,
    "cert": FILES_ONLY,
    "client_renegotiation": SAFE_TLS,
    "crl_check": NO_REVOCATION,
    "depth": CHAIN_LENGTH,
    "dh": "dhfile names a file with the parameters",
    "honor_ecc_order": NO_OPTION,
    "key.DSAPrivateKey": FILES_ONLY,
    "key.PrivateKeyInfo": FILES_ONLY,
    "key.RSAPrivateKey": FILES_ONLY,
    "log_alert": "alerts are logged at the level debug",
    "log_level": "alerts are logged at the level debug",
    "psk_identity": "pre-shared keys are not offered",
    "reuse_session": NO_OPTION,
    "reuse_sessions": NO_OPTION,
    "secure_renegotiate": SAFE_TLS,
}
"""Options in a group of TLS options that set nothing."""

_FORMATTER = (
    "formatter",
    "formatter.json.field_map",
    "formatter.json.verbosity_map",
    "formatter.level_format",
    "formatter.plaintext.format",
    "formatter.single_line",
    "formatter.time_format",
)
_ROTATION = ("rotation.compress", "rotation.count", "rotation.date", "rotation.size")


def _tls(prefix: str, names: str) -> Iterator[tuple[str, str]]:
    for name in names.split():
        yield f"{prefix}.{name}", _TLS[name]


def _all(instead: str, names: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name in names.split():
        yield prefix + name, instead


def _logging() -> Iterator[tuple[str, str]]:
    for output in ("console", "exchange", "file"):
        yield from _all(NO_FORMATTERS, " ".join(_FORMATTER), f"log.{output}.")
    for category in (
        "channel", "connection", "default", "federation", "file", "mirroring", "queue", "ra",
        "upgrade",
    ):  # fmt: skip
        yield from _all(NO_ROTATION, " ".join(_ROTATION), f"log.{category}.")
        if category not in ("default", "file"):
            yield f"log.{category}.file", ONE_FILE
    for category in ("mirroring", "ra", "upgrade"):
        yield f"log.{category}.level", OTHER_CATEGORIES
    levels = "alert critical debug emergency error info notice warning"
    yield from _all(NO_COLOURS, levels, "log.console.color_esc_seqs.")
    yield "log.console.use_colors", NO_COLOURS
    for name in ("log.exchange", "log.exchange.level"):
        yield name, "log lines are not published to an exchange"
    yield from _all(TO_STANDARD_ERROR, "log.journald log.journald.level log.journald.fields")
    syslog = "facility host identity ip level multiline_mode port protocol transport"
    yield "log.syslog", TO_STANDARD_ERROR
    yield from _all(TO_STANDARD_ERROR, f"{syslog} {' '.join(_FORMATTER)}", "log.syslog.")
    yield from _all(
        TO_STANDARD_ERROR,
        "cacertfile cacerts.$name cert certfile client_renegotiation crl_check depth dh dhfile"
        " fail_if_no_peer_cert honor_cipher_order honor_ecc_order key.DSAPrivateKey"
        " key.PrivateKeyInfo key.RSAPrivateKey keyfile log_alert password psk_identity"
        " reuse_sessions secure_renegotiate verify versions.$version",
        "log.syslog.ssl_options.",
    )


def _http() -> Iterator[tuple[str, str]]:
    times = "idle_timeout inactivity_timeout max_keepalive request_timeout shutdown_timeout"
    for prefix in (
        "management.tcp.", "management.ssl.", "management.listener.server.", "prometheus.tcp.",
        "prometheus.ssl.",
    ):  # fmt: skip
        yield from _all(HTTP_TIMES, times, prefix)
        yield f"{prefix}compress", HTTP_ANSWERS
    for prefix in ("management.ssl.", "prometheus.ssl."):
        yield f"{prefix}backlog", "up to 100 connections wait to be accepted"
    yield from _tls(
        "management.ssl",
        "client_renegotiation depth honor_ecc_order reuse_sessions secure_renegotiate",
    )
    yield from _tls(
        "prometheus.ssl",
        "client_renegotiation depth honor_ecc_order reuse_sessions secure_renegotiate",
    )
    yield from _tls(
        "management.listener.ssl_opts",
        "cacerts.$name cert client_renegotiation crl_check depth dh honor_ecc_order"
        " key.DSAPrivateKey key.PrivateKeyInfo key.RSAPrivateKey log_alert psk_identity"
        " reuse_sessions secure_renegotiate",
    )
    yield from _all(
        NO_TOKENS,
        "management.disable_basic_auth management.enable_uaa management.uaa_client_id"
        " management.uaa_location",
    )
    yield "management.db_cache_multiplier", "lists are made anew for each request, in slices"
    yield "management.enable_queue_totals", "totals of queues are always shown"
    yield "management.http_log_dir", "requests are not logged one by one"
    yield (
        "management.http.max_body_size",
        "a request may have 64 MiB where definitions are sent, 8 MB where messages are, else less",
    )
    yield (
        "management.sample_retention_policies.$section.$interval",
        "charts have the last ten minutes, hour, eight hours and day",
    )
    yield (
        "management_agent.disable_metrics_collector",
        "management.disable_stats switches statistics off",
    )
    pattern = "the metrics of a queue are shown for all queues or for none"
    yield "management_agent.filter_aggregated_queue_metrics_pattern", pattern
    yield "prometheus.filter_aggregated_queue_metrics_pattern", pattern


def _clusters() -> Iterator[tuple[str, str]]:
    yield from _all(
        ETCD_DECIDES,
        "internal_lock_retries lock_retry_limit lock_retry_timeout"
        " randomized_startup_delay_range.max randomized_startup_delay_range.min"
        " target_cluster_size_hint",
        "cluster_formation.",
    )
    yield "cluster_formation.node_type", "every node keeps the definitions on its disk"
    yield "cluster_keepalive_interval", "net_ticktime says when a silent node counts as down"
    yield (
        "cluster_partition_handling.pause_if_all_down.recover",
        "a node that has paused joins again by itself, and takes what the others have",
    )
    yield (
        "distribution.listener.port_range.max",
        "a node listens for other nodes at one port, distribution.listener.port_range.min",
    )
    yield from _all(
        "cluster_formation.discovery_retry_limit and discovery_retry_interval say how long a start"
        " tries to reach its cluster",
        "mnesia_table_loading_retry_limit mnesia_table_loading_retry_timeout",
    )
    yield from _all(
        ONE_LOG,
        "data_dir segment_max_entries snapshot_chunk_size wal_hibernate_after wal_max_batch_size"
        " wal_max_entries wal_max_size_bytes",
        "raft.",
    )
    yield "quorum_queue.compute_checksums", "everything on disk has a checksum"


def _rest() -> Iterator[tuple[str, str]]:
    yield from _tls(
        "ssl_options",
        "bypass_pem_cache cacerts.$name cert client_renegotiation crl_check depth dh"
        " honor_ecc_order key.DSAPrivateKey key.PrivateKeyInfo key.RSAPrivateKey log_alert"
        " log_level psk_identity reuse_sessions secure_renegotiate",
    )
    yield "ssl_allow_poodle_attack", SAFE_TLS
    yield from _all(
        NO_DOWNLOAD,
        "https.url import_backend"
        " tls.cacertfile tls.cacerts.$name tls.cert tls.certfile tls.ciphers.$cipher tls.crl_check"
        " tls.depth tls.dh tls.fail_if_no_peer_cert tls.keyfile tls.log_alert"
        " tls.log_level tls.password tls.reuse_session tls.reuse_sessions tls.secure_renegotiate"
        " tls.verify tls.versions.$version",
        "definitions.",
    )
    yield "definitions.hashing.algorithm", "definitions are compared by their SHA-256"
    yield from _all(OWN_USERS, "auth_backends.$num auth_backends.$num.authn")
    yield "auth_backends.$num.authz", OWN_USERS
    yield "classic_queue.default_version", NO_CLASSIC_VERSIONS
    yield from _all(
        NO_ERLANG,
        "background_gc_enabled background_gc_target_interval default_worker_pool_size"
        " delegate_count erlang.K hipe_compile num_acceptors.ssl num_acceptors.tcp"
        " socket_writer.gc_threshold vm_memory_calculation_strategy"
        " sysmon_handler.thresholds.busy_ports sysmon_handler.thresholds.busy_processes"
        " sysmon_handler.triggers.distribution_port sysmon_handler.triggers.port"
        " sysmon_handler.triggers.process.garbage_collection"
        " sysmon_handler.triggers.process.heap_size"
        " sysmon_handler.triggers.process.long_scheduled_execution",
    )
    yield "message_store_shutdown_timeout", "a stop waits until what was published is on disk"
    yield "vhost_restart_strategy", "no virtual host stops by itself, so none is restarted"
    yield "collect_statistics", "management.rates_mode says how much is counted"
    yield "initial_frame_max", "a frame may have 4096 octets until its client has logged in"
    yield "memory_monitor_interval", "memory is looked at every second, and more often near the end"
    yield "motd_file", "there is no message of the day"
    yield from _all(
        "clients are told that this is RabbitMQ 3.10.8, by which they choose features",
        "product.name product.version",
    )
    yield "reverse_dns_lookups", "clients are shown by their addresses"
    yield from _all(
        SOCKET_DEFAULTS,
        "buffer delay_send dontroute exit_on_close fd high_msgq_watermark high_watermark"
        " low_msgq_watermark low_watermark port priority send_timeout send_timeout_close tos",
        "tcp_listen_options.",
    )


UNUSED: Mapping[str, str] = dict(
    pair for group in (_logging, _http, _clusters, _rest) for pair in group()
)
"""What Warren does instead, by key. `$name` stands for a part that the user chooses."""

FAMILIES: Mapping[str, str] = {
    "amqp1_0": "AMQP 1.0 is not offered",
    "auth_cache": OWN_USERS,
    "auth_http": OWN_USERS,
    "auth_ldap": OWN_USERS,
    "auth_oauth2": OWN_USERS,
    "aws": "nodes find each other by etcd, by a list or by DNS",
    "cluster_formation.aws": "nodes find each other by etcd, by a list or by DNS",
    "cluster_formation.consul": "nodes find each other by etcd, by a list or by DNS",
    "cluster_formation.etcd": ETCD_DECIDES,
    "cluster_formation.k8s": "nodes find each other by etcd, by a list or by DNS",
    "cluster_formation.node_cleanup": "warren ctl forget_cluster_node removes a node",
    "cluster_formation.proxy": "etcd is reached without a proxy",
    "event_exchange": "events are not published; the log has them",
    "mqtt": "MQTT is not offered",
    "stomp": "STOMP is not offered",
    "stream": "the protocol of streams is not offered",
    "trust_store": "the authorities of cacertfile are the ones that count",
    "web_mqtt": "MQTT is not offered",
    "web_stomp": "STOMP is not offered",
}
"""What Warren does instead of plug-ins, by the beginning of their keys."""

OFF = ("false", "off")
AS_IT_IS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "background_gc_enabled", "hipe_compile", "log.console.use_colors", "log.exchange",
            "log.journald", "log.syslog", "management.disable_basic_auth", "management.enable_uaa",
            "management_agent.disable_metrics_collector", "management.ssl.client_renegotiation",
            "reverse_dns_lookups", "ssl_allow_poodle_attack", "ssl_options.client_renegotiation",
        ),
        OFF,
    ),
    "auth_backends.$num": ("internal", "rabbit_auth_backend_internal"),
    "cluster_formation.node_type": ("disc",),
    "definitions.import_backend": (
        "local_filesystem", "rabbit_definitions_import_local_filesystem",
    ),
    "log.console.formatter": ("plaintext",),
    "log.file.formatter": ("plaintext",),
    "management.enable_queue_totals": ("true",),
    "quorum_queue.compute_checksums": ("true",),
    "ssl_options.secure_renegotiate": ("true",),
}  # fmt: skip
"""Values that ask for what Warren does anyway: they cause no warning."""

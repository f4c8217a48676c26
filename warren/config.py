"""The configuration of a node. The defaults are RabbitMQ's where RabbitMQ has them.

A `Config` is frozen and passed down at construction; no part looks settings up later. It comes from
`rabbitmq.conf` (`warren/rabbitmq_conf.py`), the environment (`warren/environment.py`), the command
line (`override`), or from Python.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeAlias, get_args

from warren.core.access.password import DEFAULT_ALGORITHM
from warren.core.backing.paging import DEFAULT_PAGING_RATIO
from warren.core.resources.disk_monitor import DEFAULT_LIMIT, DEFAULT_SNAPSHOT_LIMIT
from warren.core.resources.memory_monitor import DEFAULT_WATERMARK, Limit

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error", "critical", "none"]
RatesMode: TypeAlias = Literal["basic", "detailed", "none"]
CertificateName: TypeAlias = Literal[
    "distinguished_name", "common_name", "subject_alternative_name"
]

LOG_CATEGORIES = (
    "alarm", "audit", "channel", "cluster", "connection", "definitions", "federation", "http",
    "node", "policy", "queue", "shovel", "storage", "vhost",
)  # fmt: skip
"""The names of loggers without `warren.`; channel, connection, federation and queue are
RabbitMQ's."""

NODE_NAME_WANTED = "a node name without slashes, whitespace and control characters"
PROCESSES_WANTED = "a number of processes from 1 to 64, or auto"

PartitionHandling: TypeAlias = Literal["pause_minority", "pause_if_all_down", "autoheal", "ignore"]
"""The behaviour of a node that has lost the rest of its cluster."""

Processes: TypeAlias = int | Literal["auto"]
"""The number of processes of a broker; `auto` is one for each core it may use."""

LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)
CERTIFICATE_NAMES: tuple[str, ...] = get_args(CertificateName)
PARTITION_HANDLING: tuple[str, ...] = get_args(PartitionHandling)
RATES_MODES: tuple[str, ...] = get_args(RatesMode)
TLS_VERSIONS = ("tlsv1", "tlsv1.1", "tlsv1.2", "tlsv1.3")
CERTIFICATE_NAME_TYPES = ("dns", "ip", "email", "uri", "other_name")
"""The kinds of alternative names in certificates."""
CONSOLES = ("stdout", "stderr")

ANY_HOST = "::"
"""Every address of the machine, of IPv6 and of IPv4."""
LINK_HOST = "0.0.0.0"
AMQP_PORT = 5672
HTTP_PORT = 15672
HTTPS_PORT = 15671
METRICS_PORT = 15692
METRICS_TLS_PORT = 15691
LINK_PORT = 25672
ETCD_PORT = 2379

PROCESSES_MAX = 64
"""The most processes of a broker. Each has a link with each of the others, and one machine should
have at most 2,000 links."""

LOCATORS = ("client-local", "min-masters", "random")
"""The ways to choose the node of a new queue."""


class Listener(NamedTuple):
    """An address to accept connections at; port 0 lets the system choose."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`5672`, `127.0.0.1:5672`, `[::1]:5672`, `:::5672` or `name:5672`; raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise ValueError(f"a port from 0 to 65535 was wanted, not {port!r}")
        if not colon:
            return cls(ANY_HOST, int(port))
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host or ":" in host:
            try:
                host = str(ipaddress.IPv6Address(host))
            except ValueError:
                raise ValueError(f"a host and a port were wanted, not {text!r}") from None
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class SslOptions:
    """The certificates and requirements of TLS listeners."""

    cacertfile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None
    verify_peer: bool = False
    fail_if_no_peer_cert: bool = False
    # The password of the key.
    password: str = dataclasses.field(default="", repr=False)
    # Empty versions or ciphers: those that OpenSSL offers.
    versions: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()
    # Whether the order of `ciphers` counts, instead of the client's order.
    honor_cipher_order: bool = False
    dhfile: Path | None = None


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """The options of clients' sockets; None leaves a size to the system."""

    backlog: int = 4096
    nodelay: bool = True
    keepalive: bool = False
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    # How long closing a socket waits for unsent output.
    linger_s: int | None = None


@dataclass(frozen=True, slots=True)
class PasswordRule:
    """The requirements on a new password."""

    length_min: int = 0
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """How the nodes of a cluster reach etcd and each other.

    `etcd_prefix` begins all keys of this cluster. The links between nodes are made to
    `advertised_host`, which is the host in the node's name unless it is given. A node that was
    silent for `link_timeout_s` is down for the others. A node that has lost etcd for `lease_ttl_s`
    stops serving until it is back, unless `partition_handling` says otherwise; with
    `pause_if_all_down` it goes on while it reaches a node of `pause_unless_reached`.
    """

    etcd_endpoints: tuple[str, ...]
    secret: bytes = dataclasses.field(repr=False)
    secret_file: Path | None = None
    etcd_prefix: str = "/warren/default"
    etcd_user: str | None = None
    etcd_password: str = dataclasses.field(default="", repr=False)
    etcd_ssl: SslOptions | None = None
    listener: Listener = Listener(LINK_HOST, LINK_PORT)  # noqa: RUF009
    advertised_host: str | None = None
    # If set, the links are encrypted, and both sides present certificates; all three files are
    # needed.
    link_ssl: SslOptions | None = None
    link_timeout_s: float = 2.0
    lease_ttl_s: int = 10
    partition_handling: PartitionHandling = "pause_minority"
    pause_unless_reached: tuple[str, ...] = ()
    queue_master_locator: str = "client-local"
    # The most messages sent to a mirror at a time while it is synchronised.
    sync_batch: int = 4096
    # The most octets sent to it per second meanwhile; 0: no limit.
    sync_rate: int = 0
    start_attempts: int = 10
    start_pause_s: float = 0.5
    # A name that only the nodes of one machine share; empty for a node by itself.
    machine: str = ""
    # The socket through which the endpoints are reached, if not over the network.
    etcd_socket: Path | None = None


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """The place of a node that is one of a broker's processes: its number, how many there are, and
    the supervisor's socket."""

    number: int
    count: int
    supervisor: Path


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a node.

    Without a `data_dir` nothing is kept on disk; without a `node_name` the node is named after its
    host.
    """

    # The file from which the configuration was read, if there is one.
    config_file: Path | None = None

    data_dir: Path | None = Path("warren-data")
    node_name: str | None = None
    processes: Processes = 1
    # The place of this process among these processes; None for a broker of one process.
    process: ProcessConfig | None = None

    amqp_listeners: tuple[Listener, ...] = (Listener(ANY_HOST, AMQP_PORT),)
    tls_listeners: tuple[Listener, ...] = ()
    ssl: SslOptions = SslOptions()
    ssl_cert_login_from: CertificateName = "distinguished_name"
    # The index of the user's name among the alternative names of that type, or among all of them.
    ssl_cert_login_san_type: str | None = None
    ssl_cert_login_san_index: int = 0
    ssl_handshake_timeout_ms: int = 5000
    tcp: TcpOptions = TcpOptions()
    proxy_protocol: bool = False

    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat_s: int = 60
    handshake_timeout_ms: int = 10_000
    max_message_size: int = 134_217_728
    connection_max: int | None = None
    consumer_timeout_ms: int | None = 1_800_000
    default_consumer_prefetch: int = 0
    auth_mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")

    default_user: str = "guest"
    default_pass: str = dataclasses.field(default="guest", repr=False)
    default_vhost: str = "/"
    default_permissions: tuple[str, str, str] = (".*", ".*", ".*")
    default_user_tags: tuple[str, ...] = ("administrator",)
    loopback_users: frozenset[str] = frozenset({"guest"})

    password_rule: PasswordRule = PasswordRule()
    password_hashing: str = DEFAULT_ALGORITHM

    memory_watermark: Limit = DEFAULT_WATERMARK
    # None: the memory of the machine, or of the process's control group.
    total_memory_bytes: int | None = None
    memory_paging_ratio: float = DEFAULT_PAGING_RATIO
    disk_free_limit: Limit = DEFAULT_LIMIT
    # The most octets on disk for the recorded lives of messages.
    trace_size_limit: int = 64 << 20
    # The destination of spans, and the service name in them; None: no spans are exported.
    otel_endpoint: str | None = None
    otel_service_name: str = "warren"
    snapshot_limit: Limit = DEFAULT_SNAPSHOT_LIMIT
    # Octets per second for all readers of snapshots over HTTP together.
    snapshot_rate: int = 64 << 20
    # True: an alarm blocks every publisher, as in RabbitMQ. False: while the shortage is small,
    # publishers whose queues do not grow go on.
    alarms_block_all: bool = False
    # Whether this node runs shovels and the links of federation.
    runs_links: bool = True
    store_file_bytes_max: int = 16 << 20
    embed_below: int = 4096

    # HTTP: listeners for the API and the pages, and others for the metrics only.
    http_listeners: tuple[Listener, ...] = (Listener(ANY_HOST, HTTP_PORT),)
    http_tls_listeners: tuple[Listener, ...] = ()
    http_ssl: SslOptions = SslOptions()
    # Headers of all answers, which replace those of the same names.
    http_headers: tuple[tuple[str, str], ...] = ()
    control_socket: bool = True
    path_prefix: str = ""
    cors_origins: tuple[str, ...] = ()
    cors_max_age_s: int | None = 1800
    login_session_timeout_min: int = 480
    rates_mode: RatesMode = "basic"
    disable_stats: bool = False
    stats_interval_ms: int = 5000
    metrics_listeners: tuple[Listener, ...] = ()
    metrics_tls_listeners: tuple[Listener, ...] = ()
    metrics_ssl: SslOptions = SslOptions()
    metrics_path: str = "/metrics"
    metrics_per_object: bool = False

    # The name of the cluster until an operator changes it; None: the node's name.
    cluster_name: str | None = None

    # The cluster of the node; None for a node without one.
    cluster: ClusterConfig | None = None
    # How the processes of a broker without a cluster reach each other.
    process_cluster: ClusterConfig = ClusterConfig((), b"")

    # A file of definitions, or a directory of such files, imported at each start.
    load_definitions: Path | None = None
    definitions_skip_if_unchanged: bool = False

    # Categories without a level of their own have `log_level`, or on an output (console, file) with
    # a level, the level of the output.
    log_level: LogLevel = "info"
    log_levels: tuple[tuple[str, LogLevel], ...] = ()
    log_console: bool = True
    log_console_level: LogLevel | None = None
    log_console_stream: str = "stderr"
    log_file: Path | None = None
    log_file_level: LogLevel | None = None


def checked_node_name(name: str) -> str:
    """The name, if it can be the name of a directory and a word in logs. Raises ValueError."""
    plain = name.isprintable() and not any(letter == "/" or letter.isspace() for letter in name)
    if not plain or name in ("", ".", ".."):
        raise ValueError(f"{NODE_NAME_WANTED} was wanted, not {name!r}")
    return name


def parse_processes(text: str) -> Processes:
    """A number of processes as `Config` has it. Raises ValueError."""
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= PROCESSES_MAX:
        raise ValueError(f"{PROCESSES_WANTED} was wanted, not {text!r}")
    return int(text)


def directory(text: str) -> Path:
    """The path of a directory. Raises ValueError if it is empty: a shell variable that is not set
    would otherwise mean the directory in which the node happens to be started."""
    if not text:
        raise ValueError("the path of a directory is empty")
    return Path(text)


def override(
    config: Config,
    *,
    data_dir: str | None = None,
    node_name: str | None = None,
    amqp: str | None = None,
    http: str | None = None,
    processes: str | None = None,
) -> Config:
    """The configuration with other values, from flags or from the environment.

    `http` "none": nothing listens for HTTP. Raises ValueError for invalid addresses, names and
    directories.
    """
    changes: dict[str, object] = {}
    if data_dir is not None:
        changes["data_dir"] = directory(data_dir)
    if node_name is not None:
        changes["node_name"] = checked_node_name(node_name)
    if amqp is not None:
        changes["amqp_listeners"] = (Listener.parse(amqp),)
    if processes is not None:
        changes["processes"] = parse_processes(processes)
    if http == "none":
        changes["http_listeners"] = changes["http_tls_listeners"] = ()
    elif http is not None:
        changes["http_listeners"] = (Listener.parse(http),)
    # The type checker knows the types of the fields, but not those of a dict's values.
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]

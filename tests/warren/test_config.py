"""The configuration: its defaults, `rabbitmq.conf`, and the flags that come last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from config_texts import config, problems

from warren import Broker
from warren.conf_keys import KEYS
from warren.config import Config, Listener, PasswordRule, SslOptions, TcpOptions, override
from warren.core.resources.memory_monitor import Absolute, Fraction
from warren.rabbitmq_conf import examine_config, parse_config
from warren.unused_keys import AS_IT_IS, NO_ERLANG, NO_FORMATTERS, TO_STANDARD_ERROR, UNUSED

VALIDATOR = "credential_validator.validation_backend"


def test_the_defaults_are_those_of_rabbitmq() -> None:
    defaults = Config()
    assert defaults.amqp_listeners == (("::", 5672),)
    assert (defaults.channel_max, defaults.frame_max, defaults.heartbeat_s) == (2047, 131072, 60)
    assert (defaults.handshake_timeout_ms, defaults.consumer_timeout_ms) == (10_000, 1_800_000)
    assert defaults.max_message_size == 134_217_728 and defaults.connection_max is None
    assert defaults.memory_watermark == Fraction(0.4)
    assert defaults.disk_free_limit == Absolute(50_000_000)
    assert (defaults.default_user, defaults.default_pass) == ("guest", "guest")
    assert defaults.default_user_tags == ("administrator",)
    assert defaults.loopback_users == {"guest"}
    assert defaults.ssl == SslOptions() and not defaults.ssl.verify_peer
    assert config("") == defaults


def test_a_configuration_does_not_show_the_password() -> None:
    assert "s3cret" not in repr(Config(default_pass="s3cret"))


@pytest.mark.parametrize(
    ("text", "attribute", "value"),
    [
        ("listeners.tcp.default = 5673", "amqp_listeners", (("::", 5673),)),
        (
            "listeners.tcp.10 = [::1]:5674\nlisteners.tcp.9 = 127.0.0.1:5673",
            "amqp_listeners",
            (("127.0.0.1", 5673), ("::1", 5674)),
        ),
        ("listeners.tcp.1 = :::5672", "amqp_listeners", (("::", 5672),)),
        ("listeners.tcp = none", "amqp_listeners", ()),
        (
            "listeners.tcp = none\nlisteners.tcp.1 = localhost:1",
            "amqp_listeners",
            (("localhost", 1),),
        ),
        ("data_dir = /var/lib/warren", "data_dir", Path("/var/lib/warren")),
        ("node_name = warren@one", "node_name", "warren@one"),
        ("processes = 4", "processes", 4),
        ("processes = auto", "processes", "auto"),
        ("ssl_cert_login_from = common_name", "ssl_cert_login_from", "common_name"),
        ("proxy_protocol = true", "proxy_protocol", True),
        ("channel_max = 0", "channel_max", 0),
        ("frame_max = 4096", "frame_max", 4096),
        ("heartbeat = 0", "heartbeat_s", 0),
        ("handshake_timeout = 20000", "handshake_timeout_ms", 20_000),
        ("max_message_size = 536870912", "max_message_size", 536_870_912),
        ("connection_max = 100", "connection_max", 100),
        ("connection_max = 100\nconnection_max = infinity", "connection_max", None),
        ("consumer_timeout = 3600000", "consumer_timeout_ms", 3_600_000),
        ("consumer_timeout = infinity", "consumer_timeout_ms", None),
        ("default_consumer_prefetch = 250", "default_consumer_prefetch", 250),
        (
            "auth_mechanisms.2 = PLAIN\nauth_mechanisms.1 = EXTERNAL",
            "auth_mechanisms",
            ("EXTERNAL", "PLAIN"),
        ),
        (
            f"{VALIDATOR} = rabbit_credential_validator_min_password_length\n"
            "credential_validator.min_length = 12\ncredential_validator.regexp = x",
            "password_rule",
            PasswordRule(length_min=12),
        ),
        (
            f"{VALIDATOR} = rabbit_credential_validator_password_regexp\n"
            "credential_validator.min_length = 12\ncredential_validator.regexp = [0-9]",
            "password_rule",
            PasswordRule(pattern="[0-9]"),
        ),
        ("credential_validator.min_length = 12", "password_rule", PasswordRule()),
        (
            "password_hashing_module = rabbit_password_hashing_sha512",
            "password_hashing",
            "rabbit_password_hashing_sha512",
        ),
        ("total_memory_available_override_value = 2GB", "total_memory_bytes", 2 * 10**9),
        ("cluster_name = orders", "cluster_name", "orders"),
        ("ssl_handshake_timeout = 700", "ssl_handshake_timeout_ms", 700),
        ("ssl_cert_login_san_type = email", "ssl_cert_login_san_type", "email"),
        ("ssl_cert_login_san_index = 1", "ssl_cert_login_san_index", 1),
        (
            "tcp_listen_options.backlog = 128\ntcp_listen_options.nodelay = false\n"
            "tcp_listen_options.keepalive = true\ntcp_listen_options.sndbuf = 196608\n"
            "tcp_listen_options.recbuf = 128KiB\ntcp_listen_options.linger.on = true\n"
            "tcp_listen_options.linger.timeout = 3",
            "tcp",
            TcpOptions(128, False, True, 196608, 131072, 3),
        ),
        ("tcp_listen_options.linger.timeout = 3", "tcp", TcpOptions()),
        ("log.console.stdio = stdout", "log_console_stream", "stdout"),
        (
            "definitions.import_backend = local_filesystem\ndefinitions.local.path = /d.json",
            "load_definitions",
            Path("/d.json"),
        ),
        (
            "management.hsts.policy = max-age=31536000\nmanagement.csp.policy = default-src *",
            "http_headers",
            (
                ("Content-Security-Policy", "default-src *"),
                ("Strict-Transport-Security", "max-age=31536000"),
            ),
        ),
        ("management.listener.port = 5", "http_listeners", (("::", 5),)),
        ("management.listener.port = 5\nmanagement.tcp.port = 6", "http_listeners", (("::", 6),)),
        ("default_user = admin", "default_user", "admin"),
        ("default_pass = 'a # b'", "default_pass", "a # b"),
        ("default_pass = a=b", "default_pass", "a=b"),
        ("default_vhost = prod", "default_vhost", "prod"),
        ("default_permissions.write = ^a", "default_permissions", (".*", "^a", ".*")),
        (
            "default_user_tags.monitoring = true\ndefault_user_tags.administrator = false",
            "default_user_tags",
            ("monitoring",),
        ),
        ("loopback_users = none", "loopback_users", frozenset()),
        ("loopback_users.guest = false", "loopback_users", frozenset()),
        (r"loopback_users.a\.b = true", "loopback_users", frozenset({"a.b"})),
        ("vm_memory_high_watermark.relative = 0.6", "memory_watermark", Fraction(0.6)),
        ("vm_memory_high_watermark.absolute = 2GiB", "memory_watermark", Absolute(2 << 30)),
        ("vm_memory_high_watermark_paging_ratio = 0.75", "memory_paging_ratio", 0.75),
        ("disk_free_limit.relative = 1.5", "disk_free_limit", Fraction(1.5)),
        ("disk_free_limit.absolute = 5GB", "disk_free_limit", Absolute(5 * 10**9)),
        ("snapshot_rate = 16MB", "snapshot_rate", 16_000_000),
        ("trace.size_limit = 1MB", "trace_size_limit", 1_000_000),
        ("opentelemetry.endpoint = http://h:4318", "otel_endpoint", "http://h:4318/v1/traces"),
        ("opentelemetry.endpoint = https://h/x/", "otel_endpoint", "https://h/x"),
        ("opentelemetry.service_name = shop", "otel_service_name", "shop"),
        ("log.default.level = error", "log_level", "error"),
        ("log.console = false", "log_console", False),
        ("log.console.level = debug", "log_console_level", "debug"),
        ("log.file = /var/log/warren.log", "log_file", Path("/var/log/warren.log")),
        ("log.dir = /var/log\nlog.file = warren.log", "log_file", Path("/var/log/warren.log")),
        ("log.dir = /var/log", "log_file", None),
        ("log.file = a\nlog.file = false", "log_file", None),
        ("log.file.level = none", "log_file_level", "none"),
        (
            "log.queue.level = debug\nlog.connection.level = warning\nlog.audit.level = none",
            "log_levels",
            (("audit", "none"), ("connection", "warning"), ("queue", "debug")),
        ),
        ("management.tcp.port = 15673", "http_listeners", (("::", 15673),)),
        ("management.tcp.ip = 127.0.0.1", "http_listeners", (("127.0.0.1", 15672),)),
        (
            "management.tcp.ip = ::1\nmanagement.tcp.port = 0",
            "http_listeners",
            (("::1", 0),),
        ),
        ("management.tcp = none", "http_listeners", ()),
        (
            "management.tcp = none\nmanagement.tcp.port = 1",
            "http_listeners",
            (("::", 1),),
        ),
        ("management.path_prefix = broker/", "path_prefix", "/broker"),
        ("management.path_prefix = /", "path_prefix", ""),
        (
            "management.cors.allow_origins.2 = https://b\n"
            "management.cors.allow_origins.1 = https://a",
            "cors_origins",
            ("https://a", "https://b"),
        ),
        ("management.cors.allow_origins = none", "cors_origins", ()),
        ("management.cors.max_age = 60", "cors_max_age_s", 60),
        ("management.cors.max_age = undefined", "cors_max_age_s", None),
        ("management.login_session_timeout = 60", "login_session_timeout_min", 60),
        ("management.rates_mode = detailed", "rates_mode", "detailed"),
        ("management.disable_stats = true", "disable_stats", True),
        ("collect_statistics_interval = 10000", "stats_interval_ms", 10_000),
        ("management.load_definitions = /a.json", "load_definitions", Path("/a.json")),
        (
            "load_definitions = /b.json\nmanagement.load_definitions = /a.json",
            "load_definitions",
            Path("/b.json"),
        ),
        ("definitions.skip_if_unchanged = true", "definitions_skip_if_unchanged", True),
        ("prometheus.tcp.port = 9", "metrics_listeners", (("::", 9),)),
        ("prometheus.tcp.ip = ::1", "metrics_listeners", (("::1", 15692),)),
        ("prometheus.path = /all", "metrics_path", "/all"),
        ("prometheus.return_per_object_metrics = true", "metrics_per_object", True),
    ],
)
def test_every_key_has_its_effect(text: str, attribute: str, value: Any) -> None:
    loaded = config(text)
    assert getattr(loaded, attribute) == value
    assert override(loaded) == loaded
    changed = {
        name for name in loaded.__slots__ if getattr(loaded, name) != getattr(Config(), name)
    }
    assert changed <= {attribute}


def test_tls_has_its_options() -> None:
    loaded = config(
        """
        listeners.ssl.default = 5671
        ssl_options.cacertfile = /etc/ca.pem
        ssl_options.certfile   = /etc/cert.pem
        ssl_options.keyfile    = /etc/key.pem
        ssl_options.verify     = verify_peer
        ssl_options.fail_if_no_peer_cert = true
        """
    )
    assert loaded.tls_listeners == (("::", 5671),)
    assert loaded.ssl == SslOptions(
        Path("/etc/ca.pem"), Path("/etc/cert.pem"), Path("/etc/key.pem"), True, True
    )


def test_tls_listeners_need_a_certificate() -> None:
    assert problems("listeners.ssl.default = 5671") == [
        "rabbitmq.conf: listeners.ssl needs ssl_options.certfile and ssl_options.keyfile"
    ]


def test_http_over_tls_takes_the_place_of_the_plain_listener() -> None:
    certificate = "management.ssl.certfile = /c.pem\nmanagement.ssl.keyfile = /k.pem\n"
    loaded = config(
        certificate + "management.ssl.cacertfile = /ca.pem\nmanagement.ssl.verify = verify_peer\n"
        "management.ssl.fail_if_no_peer_cert = true\nmanagement.ssl.ip = ::1"
    )
    assert loaded.http_tls_listeners == (("::1", 15671),)
    assert loaded.http_listeners == ()
    assert loaded.http_ssl == SslOptions(
        Path("/ca.pem"), Path("/c.pem"), Path("/k.pem"), True, True
    )
    assert loaded.ssl == SslOptions()
    alone = config(certificate)
    assert (alone.http_listeners, alone.http_tls_listeners) == ((), (("::", 15671),))
    both = config(certificate + "management.tcp.port = 1\nmanagement.ssl.port = 2")
    assert (both.http_listeners, both.http_tls_listeners) == ((("::", 1),), (("::", 2),))


def test_tls_is_narrowed_by_versions_and_ciphers() -> None:
    names = (
        "cacertfile = /ca\ncertfile = /c\nkeyfile = /k\npassword = s3cret\nversions.1 = tlsv1.2\n"
        "ciphers.1 = A\nciphers.2 = B\nhonor_cipher_order = true\ndhfile = /dh"
    ).split("\n")
    wanted = SslOptions(
        Path("/ca"), Path("/c"), Path("/k"), password="s3cret", versions=("tlsv1.2",),
        ciphers=("A", "B"), honor_cipher_order=True, dhfile=Path("/dh"),
    )  # fmt: skip
    assert "s3cret" not in repr(wanted)
    for prefix, before, attribute in (
        ("ssl_options", "listeners.ssl.1 = 5671", "ssl"),
        ("management.ssl", "", "http_ssl"),
        ("management.listener.ssl_opts", "management.listener.ssl = true", "http_ssl"),
        ("prometheus.ssl", "", "metrics_ssl"),
    ):
        loaded = config("\n".join([before, *(f"{prefix}.{name}" for name in names)]))
        assert getattr(loaded, attribute) == wanted
    assert problems("ssl_options.versions.1 = tlsv1.1") == [
        "rabbitmq.conf: ssl_options.versions needs tlsv1.2 or tlsv1.3: older versions are not"
        " offered"
    ]


def test_the_former_keys_of_http_can_ask_for_tls() -> None:
    loaded = config(
        "management.listener.port = 7\nmanagement.listener.ssl = true\n"
        "management.listener.ssl_opts.certfile = /c\nmanagement.listener.ssl_opts.keyfile = /k"
    )
    assert (loaded.http_listeners, loaded.http_tls_listeners) == ((), (("::", 7),))


def test_metrics_over_tls_have_a_port_of_their_own() -> None:
    loaded = config("prometheus.ssl.certfile = /c\nprometheus.ssl.keyfile = /k")
    assert loaded.metrics_tls_listeners == (("::", 15691),)
    assert problems("prometheus.ssl.port = 1") == [
        "rabbitmq.conf: prometheus.ssl needs prometheus.ssl.certfile and prometheus.ssl.keyfile"
    ]


@pytest.mark.parametrize(
    ("text", "locator"),
    [
        ("queue_leader_locator = balanced", "min-masters"),
        ("queue_leader_locator = client-local", "client-local"),
        ("queue_leader_locator = least-leaders", "min-masters"),
        ("queue_leader_locator = random", "random"),
        ("queue_leader_locator = balanced\nqueue_master_locator = random", "random"),
    ],
)
def test_queue_leader_locator_chooses_too(text: str, locator: str) -> None:
    cluster = config(f"cluster_formation.etcd.host = e\n{text}").cluster
    assert cluster is not None and cluster.queue_master_locator == locator


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("log.default.level = notice", "log_level", "warning"),
        ("log.default.level = emergency", "log_level", "critical"),
        ("log.console.level = alert", "log_console_level", "critical"),
        ("log.file.level = =debug", "log_file_level", "debug"),
        ("log.file.level = !=info", "log_file_level", "debug"),
        ("log.file.level = <=notice", "log_file_level", "debug"),
        ("log.file.level = <warning", "log_file_level", "debug"),
        (
            "ssl_cert_login_from = subject_alt_name",
            "ssl_cert_login_from",
            "subject_alternative_name",
        ),
        ("handshake_timeout = infinity", "handshake_timeout_ms", 50 * 24 * 3600 * 1000),
        ("frame_max = 128kb", "frame_max", 131072),
        ("queue_index_embed_msgs_below = 4KB", "embed_below", 4096),
    ],
)
def test_values_that_rabbitmq_takes_are_read_as_the_nearest(
    text: str, name: str, value: object
) -> None:
    assert getattr(config(text), name) == value


def test_a_batch_of_a_synchronisation_may_have_a_unit() -> None:
    cluster = config("cluster_formation.etcd.host = e\nmirroring_sync_batch_size = 10kb").cluster
    assert cluster is not None and cluster.sync_batch == 10240


def test_a_file_of_erlang_terms_is_named_as_such() -> None:
    (problem,) = problems("%% old\n[{rabbit, [{tcp_listeners, [5672]}]}].\n")
    assert problem.startswith("rabbitmq.conf has Erlang terms")


def test_http_over_tls_needs_a_certificate() -> None:
    assert problems("management.ssl.port = 15671") == [
        "rabbitmq.conf: management.ssl needs management.ssl.certfile and management.ssl.keyfile"
    ]


def test_comments_blanks_and_order_do_not_matter() -> None:
    loaded = config(
        "\ufeff## a comment = 1\r\n\r\n  heartbeat=30   # seconds\r\n\theartbeat = 20#x\r\n"
        "default_pass = 'x'  # quoted\r\n"
    )
    assert loaded.heartbeat_s == 20
    assert loaded.default_pass == "x"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("hearbeat", "heartbeat"),
        ("listeners.tpc.default", "listeners.tcp.default"),
        ("loopback_user.guest", "loopback_users.guest"),
        ("vm_memory_high_watermark", "vm_memory_high_watermark.relative"),
        ("log.console.lvl", "log.console.level"),
        ("management.tcp.prot", "management.tcp.port"),
        ("cluster_partition_handlin", "cluster_partition_handling"),
        ("management.ssl.certfil", "management.ssl.certfile"),
        ("prometheus.tcp.prt", "prometheus.tcp.port"),
    ],
)
def test_an_unknown_key_is_an_error_that_knows_a_better_one(key: str, nearest: str) -> None:
    assert problems(f"\n{key} = 1") == [
        f"rabbitmq.conf, line 2: unknown key {key}; the nearest known key is {nearest}"
    ]


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("heartbeat", "soon", "a number of seconds from 0 to 65535"),
        ("heartbeat", "65536", "a number of seconds from 0 to 65535"),
        ("heartbeat", "-1", "a number of seconds from 0 to 65535"),
        ("frame_max", "4095", "0 or a number of bytes from 4096 on"),
        ("max_message_size", "536870913", "a number of bytes from 1 to 536870912"),
        ("connection_max", "many", "a number of connections, or infinity"),
        ("consumer_timeout", "0", "a number of milliseconds above 0, or infinity"),
        ("proxy_protocol", "yes", "true or false"),
        ("listeners.tcp", "all", "none"),
        ("management.tcp", "all", "none"),
        ("management.tcp.port", "65536", "a port from 0 to 65535"),
        ("management.path_prefix", "/a b", "a path such as /broker"),
        ("management.cors.max_age", "-1", "a number of seconds, or undefined"),
        ("management.rates_mode", "fast", "basic, detailed or none"),
        ("management.login_session_timeout", "0", "a number of minutes above 0"),
        ("log.file", "true", "the path of a file, or false"),
        ("listeners.tcp.1", "host", "a port, or an address and a port such as 127.0.0.1:5672"),
        ("listeners.tcp.1", "a:70000", "a port, or an address and a port such as 127.0.0.1:5672"),
        ("listeners.tcp.1", "1:2:x:5", "a port, or an address and a port such as 127.0.0.1:5672"),
        ("ssl_options.verify", "maybe", "verify_peer or verify_none"),
        ("auth_mechanisms.1", "MAGIC", "PLAIN, AMQPLAIN, EXTERNAL or RABBIT-CR-DEMO"),
        ("default_permissions.read", "(", "a regular expression"),
        ("vm_memory_high_watermark.relative", "40%", "a fraction such as 0.4"),
        ("vm_memory_high_watermark_paging_ratio", "1.0", "a fraction below 1 such as 0.5"),
        (
            "vm_memory_high_watermark.absolute",
            "2 gallons",
            "an amount of bytes such as 512MB, 1GiB or 4096",
        ),
        (
            "log.console.level",
            "loud",
            "debug, info, warning, error, critical or none",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_line_and_what_was_wanted(
    key: str, value: str, wanted: str
) -> None:
    assert problems(f"# first\n{key} = {value}\n") == [
        f"rabbitmq.conf, line 2: {key} = {value}: {wanted} was wanted"
    ]


def test_all_problems_are_reported_together() -> None:
    found = problems("nonsense\nheartbeat =\n= 5\nhearbeat = 1\nheartbeat = x")
    assert [problem.split(": ")[0] for problem in found] == [
        f"rabbitmq.conf, line {line}" for line in (1, 2, 3, 4, 5)
    ]
    assert found[0] == "rabbitmq.conf, line 1: 'nonsense' is not key = value"


def test_keys_without_effect_are_warnings() -> None:
    loaded = parse_config(
        "hipe_compile = true\nheartbeat = 5\n"
        "cluster_formation.node_type = ram\nlog.journald.level = debug\n"
        "log.console.formatter.json.field_map = a\nmqtt.allow_anonymous = true",
        source="etc/rabbitmq.conf",
    )
    assert loaded.config == Config(heartbeat_s=5)
    assert loaded.warnings == [
        f"etc/rabbitmq.conf, line {line}: {key} has no effect in Warren: {instead}"
        for line, key, instead in (
            (1, "hipe_compile", NO_ERLANG),
            (3, "cluster_formation.node_type", "every node keeps the definitions on its disk"),
            (4, "log.journald.level", TO_STANDARD_ERROR),
            (5, "log.console.formatter.json.field_map", NO_FORMATTERS),
            (6, "mqtt.allow_anonymous", "MQTT is not offered"),
        )
    ]


def test_a_value_that_asks_for_what_is_so_is_no_warning() -> None:
    assert set(AS_IT_IS) <= set(UNUSED)
    text = "auth_backends.1 = internal\nhipe_compile = false\nlog.console.use_colors = off"
    assert parse_config(text).warnings == []
    (warning,) = parse_config("auth_backends.1 = internal\nauth_backends.2 = ldap").warnings
    assert "line 2: auth_backends.2 has no effect in Warren" in warning


def test_definitions_from_elsewhere_are_a_warning_and_from_files_are_not() -> None:
    (warning,) = parse_config("definitions.import_backend = https").warnings
    assert "definitions.import_backend has no effect in Warren: definitions are imported" in warning
    assert parse_config("definitions.import_backend = local_filesystem").warnings == []


def test_no_key_is_both_with_and_without_effect() -> None:
    assert not set(KEYS) & set(UNUSED)


KEYS_OF_RABBITMQ = (Path(__file__).parent / "rabbitmq_keys.txt").read_text().split()
"""The keys in the schemas of RabbitMQ 3.10.8: of the broker, management and Prometheus."""


def chosen(key: str) -> str:
    return re.sub(r"\$\w+", "1", key)


def test_every_key_of_rabbitmq_is_known() -> None:
    assert len(KEYS_OF_RABBITMQ) == 431
    text = "".join(f"{chosen(key)} = ?\n" for key in KEYS_OF_RABBITMQ)
    _, warnings, problems = examine_config(text)
    assert [problem for problem in problems if "unknown key" in problem] == []
    without_effect = [warning for warning in warnings if "has no effect in Warren" in warning]
    assert all(re.search("in Warren: .{10}", warning) for warning in without_effect)
    assert len(without_effect) < 300


def test_keys_without_effect_are_rabbitmqs() -> None:
    assert set(map(chosen, UNUSED)) <= set(map(chosen, KEYS_OF_RABBITMQ))


def test_hints_name_keys_that_exist() -> None:
    for key in KEYS_OF_RABBITMQ:
        wrong = chosen(key)[:-1] + "qx"
        for problem in examine_config(f"{wrong} = 1").problems:
            hint = problem.partition("nearest known key is ")[2]
            assert "unknown key" not in str(examine_config(f"{hint} = 1").problems), problem
    assert problems("zzzzzzzz = 1") == [
        "rabbitmq.conf, line 1: unknown key zzzzzzzz; no key looks like it"
    ]


class TestFlags:
    def test_flags_come_last(self) -> None:
        loaded = config("data_dir = /a\nnode_name = a\nlisteners.tcp.1 = 1\nheartbeat = 5")
        overridden = override(loaded, data_dir="/b", node_name="b", amqp="127.0.0.1:2")
        assert overridden.data_dir == Path("/b")
        assert overridden.node_name == "b"
        assert overridden.amqp_listeners == (("127.0.0.1", 2),)
        assert overridden.heartbeat_s == 5

    def test_a_data_directory_without_a_name_is_refused(self) -> None:
        """`--data-dir "$UNSET"` would be the directory in which the node is started."""
        with pytest.raises(ValueError, match="the path of a directory is empty"):
            override(Config(), data_dir="")

    @pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "[::1:5", "::5x"])
    def test_an_address_that_is_none_is_refused(self, address: str) -> None:
        with pytest.raises(ValueError):
            override(Config(), amqp=address)

    def test_http_can_be_moved_and_switched_off(self) -> None:
        certificate = "management.ssl.certfile = /c\nmanagement.ssl.keyfile = /k\n"
        loaded = config(certificate + "management.tcp.port = 1")
        moved = override(loaded, http="127.0.0.1:2")
        assert moved.http_listeners == (("127.0.0.1", 2),)
        assert moved.http_tls_listeners == (("::", 15671),)
        off = override(loaded, http="none")
        assert (off.http_listeners, off.http_tls_listeners) == ((), ())
        with pytest.raises(ValueError):
            override(loaded, http="nowhere")


def test_an_embedded_broker_answers_http_only_when_asked_to() -> None:
    assert Broker()._config.http_listeners == ()
    assert Broker(http_port=0)._config.http_listeners == (("127.0.0.1", 0),)
    assert Config().http_listeners == (("::", 15672),)
    assert (Config().http_tls_listeners, Config().metrics_listeners) == ((), ())


def test_a_port_alone_means_every_interface() -> None:
    assert Listener.parse("5672") == Listener("::", 5672)
    assert Listener.parse("example.org:5672") == Listener("example.org", 5672)


@pytest.mark.parametrize("number", ["0", "65", "-1", "many", "2.5"])
def test_a_number_of_processes_is_one_that_makes_sense(number: str) -> None:
    (problem,) = problems(f"processes = {number}")
    assert "a number of processes from 1 to 64, or auto was wanted" in problem


def test_what_holds_between_processes_needs_no_etcd() -> None:
    told = config("cluster.lease_ttl = 4\nqueue_master_locator = random")
    assert told.cluster is None
    assert told.process_cluster.lease_ttl_s == 4
    assert told.process_cluster.queue_master_locator == "random"


def test_a_node_name_in_the_file_is_checked() -> None:
    (problem,) = problems("node_name = a/b")
    assert problem.endswith(
        "a node name without slashes, whitespace and control characters was wanted"
    )
    assert config("node_name = rabbit@host-1.example").node_name == "rabbit@host-1.example"

"""Checks of a configuration beyond its text: its files, its ports and the secret of a cluster."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from warren.cluster_secret import cluster_secret
from warren.config import ANY_HOST, ClusterConfig, Config, Listener, SslOptions
from warren.node_refused import ClusterRefused
from warren.tls import server_context


def problems_beyond_text(config: Config) -> list[str]:
    """The problems because of which a node would not start, as far as they are known before it."""
    return [
        *_problems_of_listeners(config),
        *_ports_taken_twice(config),
        *_problems_of_cluster(config),
        *_others(config),
    ]


def _ports_taken_twice(config: Config) -> Iterator[str]:
    listeners = {
        "listeners.tcp": config.amqp_listeners,
        "listeners.ssl": config.tls_listeners,
        "management.tcp": config.http_listeners,
        "management.ssl": config.http_tls_listeners,
        "prometheus.tcp": config.metrics_listeners,
        "prometheus.ssl": config.metrics_tls_listeners,
    }
    if config.cluster is not None:
        listeners["distribution.listener"] = (config.cluster.listener,)
    named = [(key, one) for key, several in listeners.items() for one in several]
    for (key, one), (other_key, other) in combinations(named, 2):
        if _clash(one, other):
            yield f"{key} and {other_key} would both listen at port {one.port}"


def _clash(one: Listener, other: Listener) -> bool:
    if one.port != other.port or one.port == 0:
        return False
    hosts = {one.host, other.host}
    is_ipv4 = not any(":" in host for host in hosts)
    return len(hosts) == 1 or ANY_HOST in hosts or (is_ipv4 and "0.0.0.0" in hosts)


def _problems_of_listeners(config: Config) -> Iterator[str]:
    for key, listeners, options in (
        ("ssl_options", config.tls_listeners, config.ssl),
        ("management.ssl", config.http_tls_listeners, config.http_ssl),
        ("prometheus.ssl", config.metrics_tls_listeners, config.metrics_ssl),
    ):
        missing = list(_missing(key, options))
        yield from missing
        if listeners and not missing and options.certfile and options.keyfile:
            try:
                server_context(options)
            except (OSError, ValueError) as error:
                yield (
                    f"{key}: {options.certfile} with the key {options.keyfile} cannot be used:"
                    f" {error}"
                )


def _problems_of_cluster(config: Config) -> Iterator[str]:
    cluster = config.cluster
    if cluster is None:
        return
    yield from _problems_of_secret(cluster)
    for key, options in (
        ("cluster.links.ssl", cluster.link_ssl),
        ("cluster_formation.etcd.ssl_options", cluster.etcd_ssl),
    ):
        if options is None:
            continue
        missing = list(_missing(key, options))
        yield from missing
        if not missing:
            yield from _unusable_by_clients(key, options)


def _problems_of_secret(cluster: ClusterConfig) -> Iterator[str]:
    missing = []
    if cluster.secret_file is not None:
        missing = list(_unreadable("cluster.secret_file", cluster.secret_file))
    if missing:
        yield from missing
        return
    try:
        cluster_secret(cluster)
    except (ClusterRefused, OSError) as refused:
        yield str(refused)


def _unusable_by_clients(key: str, options: SslOptions) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if options.certfile is not None:
            context.load_cert_chain(options.certfile, options.keyfile, password=options.password)
        if options.cacertfile is not None:
            context.load_verify_locations(options.cacertfile)
    except (OSError, ValueError) as error:
        yield f"{key}: its files cannot be used: {error}"


def _others(config: Config) -> Iterator[str]:
    if config.load_definitions is not None:
        yield from _unreadable("load_definitions", config.load_definitions)
    if config.log_file is not None and not config.log_file.parent.is_dir():
        yield f"log.file: the directory {config.log_file.parent} does not exist"


def _missing(key: str, options: SslOptions) -> Iterator[str]:
    for name in ("cacertfile", "certfile", "keyfile", "dhfile"):
        path = getattr(options, name)
        if path is not None:
            yield from _unreadable(f"{key}.{name}", path)


def _unreadable(key: str, path: Path) -> Iterator[str]:
    if not path.exists():
        yield f"{key}: {path} does not exist"
    elif not os.access(path, os.R_OK):
        yield f"{key}: {path} cannot be read"

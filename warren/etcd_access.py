"""How a node reaches the etcd of its cluster, or the supervisor that stands in for etcd."""

from __future__ import annotations

import ssl

from warren.config import ClusterConfig, SslOptions
from warren.mirror.definitions.etcd import EtcdClient


def etcd_client(config: ClusterConfig) -> EtcdClient:
    return EtcdClient(
        config.etcd_endpoints,
        user=config.etcd_user,
        password=config.etcd_password,
        tls=_etcd_tls(config.etcd_ssl),
        socket=config.etcd_socket,
    )


def _etcd_tls(options: SslOptions | None) -> ssl.SSLContext | None:
    if options is None:
        return None
    context = ssl.create_default_context(cafile=options.cacertfile)
    if options.certfile is not None:
        context.load_cert_chain(options.certfile, options.keyfile)
    return context

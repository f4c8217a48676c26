"""The secret that the nodes of a cluster share."""

from __future__ import annotations

import secrets

from warren.config import ClusterConfig
from warren.mirror.definitions.etcd import EtcdClient
from warren.mirror.definitions.secret_proof import is_secret_of
from warren.node_refused import ClusterRefused


def secret_of(config: ClusterConfig) -> bytes:
    """The secret of the cluster. Raises `ClusterRefused` if there is none, or OSError."""
    secret = config.secret
    if not secret and config.secret_file is not None:
        secret = config.secret_file.read_bytes().strip()
    if not secret:
        raise ClusterRefused(
            "a cluster needs a secret that its nodes share: set cluster.secret_file,"
            " cluster.secret or WARREN_CLUSTER_SECRET"
        )
    return secret


async def expect_secret(
    config: ClusterConfig, etcd: EtcdClient, secret: bytes, node_name: str
) -> None:
    """Raise `ClusterRefused` if the nodes of the cluster that are up have another secret; EtcdError
    if that is not known."""
    if not await is_secret_of(etcd, config.etcd_prefix, secret, secrets.token_hex(16)):
        raise ClusterRefused(
            f"node {node_name} has another secret than the nodes of the cluster that are up;"
            " give it theirs"
        )

"""The secret that the nodes of a cluster share."""

from __future__ import annotations

from warren.conf_keys import SECRET_BYTES_MIN
from warren.config import ClusterConfig
from warren.node_refused import ClusterRefused


def cluster_secret(config: ClusterConfig) -> bytes:
    """The secret in the configuration, the environment or the file that is named.

    Raises `ClusterRefused` if there is none or it is too short, OSError if the file cannot be read.
    """
    secret = config.secret
    if not secret and config.secret_file is not None:
        secret = config.secret_file.read_bytes().strip()
    if not secret:
        raise ClusterRefused(
            "a cluster needs a secret that its nodes share: set cluster.secret_file,"
            " cluster.secret or WARREN_CLUSTER_SECRET"
        )
    if len(secret) < SECRET_BYTES_MIN:
        raise ClusterRefused(
            f"the secret of the cluster has {len(secret)} octets, and needs {SECRET_BYTES_MIN} or"
            " more"
        )
    return secret

"""The secret of a cluster, from the configuration or from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_texts import config

from warren.cluster_secret import cluster_secret
from warren.node_refused import ClusterRefused

ETCD = "cluster_formation.etcd.host = 127.0.0.1\n"


def secret_of(text: str) -> bytes:
    cluster = config(ETCD + text).cluster
    assert cluster is not None
    return cluster_secret(cluster)


def test_a_file_has_it_with_or_without_an_end_of_line(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"sixteen octets at least\n")
    assert secret_of(f"cluster.secret_file = {file}") == b"sixteen octets at least"


def test_without_one_there_is_no_cluster() -> None:
    with pytest.raises(ClusterRefused, match="needs a secret that its nodes share"):
        secret_of("")


def test_one_that_is_too_short_is_refused(tmp_path: Path) -> None:
    """Links between nodes demand so many, and would fail after the node has joined."""
    file = tmp_path / "secret"
    file.write_bytes(b"fifteen octets!\n\n")
    with pytest.raises(ClusterRefused, match="has 15 octets, and needs 16 or more"):
        secret_of(f"cluster.secret_file = {file}")

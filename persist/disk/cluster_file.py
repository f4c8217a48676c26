"""Which cluster a data directory is of, and under which name its node is in it: `cluster.json`.

Until a node without a cluster has brought all its definitions into the one that it begins,
`cluster.begun` has the same instead. The directory's own definitions hold until then.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from warren.persist.disk.data_directory import (
    DataDirectory,
    DataDirectoryRefused,
    sync_directory,
    write_durably,
)

FILE = "cluster.json"
BEGUN_FILE = "cluster.begun"


class KnownCluster(NamedTuple):
    """`node` is empty in a file of a version that did not write it."""

    cluster_id: str
    node: str


def read_known_cluster(data_directory: Path) -> KnownCluster | None:
    """Return the cluster of a node; None if it is in no cluster.

    Raises `DataDirectoryRefused` if the file is damaged; OSError.
    """
    return _read(data_directory / FILE)


def read_beginning(data_directory: Path) -> KnownCluster | None:
    """Return the cluster that the node was about to begin when it ended; None if it was not.

    Raises `DataDirectoryRefused` if the file is damaged; OSError.
    """
    return _read(data_directory / BEGUN_FILE)


def _read(path: Path) -> KnownCluster | None:
    try:
        known = json.loads(path.read_bytes())
        cluster_id, node = known["cluster_id"], known.get("node", "")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataDirectoryRefused(f"{path} cannot be read: {error!r}") from None
    if type(cluster_id) is not str or type(node) is not str:
        raise DataDirectoryRefused(f"{path} does not name a cluster and a node")
    return KnownCluster(cluster_id, node)


def known_cluster(directory: DataDirectory | None, node: str = "") -> str | None:
    """The id of the cluster to which this data directory belongs, or None. Raises OSError.

    Raises `DataDirectoryRefused` if it is to be of this `node` and is of another one: no definition
    says that this one has its queues, so that their messages would be taken for leftovers.
    """
    known = None if directory is None else read_known_cluster(directory.path)
    if directory is None or known is None:
        return None
    if node and known.node not in ("", node):
        raise DataDirectoryRefused(
            f"data directory {directory.path} is of node {known.node} of cluster"
            f" {known.cluster_id}, and has its queues; it cannot be of node {node}: start it with"
            f" --node-name {known.node}, or node {node} with a directory of its own"
        )
    return known.cluster_id


def expect_no_cluster(data_directory: Path) -> None:
    """Raise `DataDirectoryRefused` if the directory is of a member of a cluster: without the
    definitions of the cluster its messages belong to no queue. Raises OSError."""
    known = read_known_cluster(data_directory)
    if known is not None:
        raise DataDirectoryRefused(
            f"data directory {data_directory} is of a node of cluster {known.cluster_id}, and the"
            " configuration does not say where its etcd is; set"
            " cluster_formation.etcd.endpoints.1 as at the other nodes"
        )


def note_beginning(data_directory: Path, known: KnownCluster) -> None:
    """Note the cluster that the node is about to begin; durable on return. Raises OSError."""
    _write(data_directory / BEGUN_FILE, known)


def forget_beginning(data_directory: Path) -> None:
    """Remove the note of a beginning; durable on return. Raises OSError."""
    path = data_directory / BEGUN_FILE
    if path.exists():
        path.unlink()
        sync_directory(data_directory)


def write_known_cluster(data_directory: Path, known: KnownCluster) -> None:
    """Write the cluster in place of the former, or not at all; a beginning ends. Raises OSError."""
    _write(data_directory / FILE, known)
    forget_beginning(data_directory)


def _write(path: Path, known: KnownCluster) -> None:
    write_durably(path, (json.dumps(known._asdict()) + "\n").encode())

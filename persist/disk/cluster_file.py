"""Which cluster a data directory is of, and under which name its node is in it: `cluster.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from warren.persist.disk.data_directory import write_durably

FILE = "cluster.json"


class KnownCluster(NamedTuple):
    """`node` is empty in a file of a version that did not write it."""

    cluster_id: str
    node: str


def read_known_cluster(data_directory: Path) -> KnownCluster | None:
    """None of a node that is in no cluster. Raises OSError."""
    try:
        text = (data_directory / FILE).read_text("utf-8")
    except FileNotFoundError:
        return None
    known = json.loads(text)
    return KnownCluster(known["cluster_id"], known.get("node", ""))


def write_known_cluster(data_directory: Path, known: KnownCluster) -> None:
    """In place of what is there, or not at all. Raises OSError."""
    write_durably(data_directory / FILE, (json.dumps(known._asdict()) + "\n").encode())

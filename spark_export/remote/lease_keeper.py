"""Releases the snapshots that nodes made for a Spark application, when the application has ended.

    python -m warren.spark_export.remote.lease_keeper DIRECTORY

A node does not see the processes of another machine. So the driver's machine has one process like
this for each application that reads from nodes: it waits for the end of the application's process
and then releases the application's snapshots. If it is killed too, the leases of the snapshots end
them.

`DIRECTORY` has `owner.json`, which names the process to wait for, and a file for each snapshot with
the address and token of each of its parts; only its user may enter. This process holds the lock of
the directory.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from warren.persist.snapshots.pin_owner import Owner, decode_owner, has_ended
from warren.persist.snapshots.pins import locked
from warren.spark_export.errors import NodeSilent, SparkExportError, StoreRefused
from warren.spark_export.node_urls import NodeAddress
from warren.spark_export.remote.remote_node import NodeClient

LOOK_EVERY_S: Final = 2.0

OWNER_FILE: Final = "owner.json"


def release_with(owner: Owner, parts: Iterable[tuple[NodeAddress, str, str]]) -> None:
    """Have snapshots released when the owner's process ends; parts are address, id and token.

    Raises `StoreRefused`, OSError.
    """
    directory = _directory(owner)
    fields = [[asdict(address), snapshot, token] for address, snapshot, token in parts]
    _write(directory / OWNER_FILE, list(owner))
    _write(directory / f"{fields[0][1]}.json", fields)
    with locked(directory) as ours:
        if not ours:
            return
    # A second process for the same directory ends at once.
    module = "warren.spark_export.remote.lease_keeper"
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", module, str(directory)],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ],
        setsid=True,
    )


def _directory(owner: Owner) -> Path:
    base = Path(tempfile.gettempdir()) / f"warren-leases-{os.geteuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.stat().st_uid != os.geteuid():
        raise StoreRefused(f"{base} belongs to another user")
    directory = base / f"{owner.pid}-{owner.started}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _write(path: Path, fields: Any) -> None:
    """Write the file by rename, so that a reader finds all of it, or nothing."""
    unfinished = path.with_suffix(".new")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(fields, file)
    os.rename(unfinished, path)


def keep(directory: Path) -> None:
    """Wait for the end of the owner's process, and release its snapshots. Returns at once if
    another process does so."""
    with locked(directory) as ours:
        if not ours:
            return
        owner = decode_owner(json.loads((directory / OWNER_FILE).read_text("utf-8")))
        while owner is not None and not has_ended(owner):
            time.sleep(LOOK_EVERY_S)
        silent: set[NodeAddress] = set()
        for path in directory.glob("*.json"):
            if path.name != OWNER_FILE:
                _release(json.loads(path.read_text("utf-8")), silent)
        shutil.rmtree(directory)


def _release(parts: Any, silent: set[NodeAddress]) -> None:
    """Release a snapshot, as far as its nodes can be reached; the leases of the other parts release
    them. Nodes that do not answer are added to `silent`, and not asked again."""
    for fields, snapshot, token in parts:
        address = NodeAddress(**fields)
        if address in silent:
            continue
        try:
            NodeClient(address, f"Bearer {token}").ask("DELETE", snapshot)
        except NodeSilent:
            silent.add(address)
        except SparkExportError:
            pass


if __name__ == "__main__":
    keep(Path(sys.argv[1]))

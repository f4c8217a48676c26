"""Asks the node whose store is read whether it runs, and what it knows of deliveries."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from warren.persist.disk.control_socket import ControlConnection
from warren.persist.disk.data_directory import CONTROL_SOCKET, LOCK_FILE
from warren.spark_export.errors import StoreRefused

Span: TypeAlias = tuple[int, int]
"""A range of positions, its end excluded."""

DELIVERIES = "/api/control/deliveries"
TIMEOUT_S = 30.0


class NodeAnswer(NamedTuple):
    """What a node says about deliveries: by level, the unacknowledged positions and the position
    below which a consumer may have had messages. A level that is missing has neither; of queues
    that are `elsewhere` the node knows nothing."""

    levels: Mapping[int, tuple[list[Span], int]]
    elsewhere: frozenset[int]


def is_running(data_directory: Path) -> bool | None:
    """Whether a process uses the data directory; None if this user may not know.

    The lock is looked up in the kernel's list, so that a node that starts is not kept from taking
    it. A node in another container is not in that list: then this process takes the lock for a
    moment.
    """
    try:
        fd = os.open(data_directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        return None
    try:
        if _is_listed(os.fstat(fd)):
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
    finally:
        os.close(fd)


def _is_listed(file: os.stat_result) -> bool:
    where = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        return False
    return any(words[1:2] == ["FLOCK"] and where in words for words in map(str.split, lines))


def ask(data_directory: Path, queue_ids: Collection[int]) -> NodeAnswer:
    """Ask the node that runs about the deliveries of these queues. Raises `StoreRefused`."""
    asked = json.dumps({"queue_ids": [f"{queue_id:016x}" for queue_id in queue_ids]})
    connection = ControlConnection(data_directory, TIMEOUT_S)
    try:
        connection.request("POST", DELIVERIES, asked.encode(), {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise _refused(data_directory, f"it answers {response.status} {response.reason}")
        return _parsed(json.loads(data))
    except (OSError, http.client.HTTPException) as error:
        raise _refused(data_directory, str(error) or type(error).__name__) from error
    except (ValueError, KeyError, TypeError) as error:
        raise _refused(data_directory, f"its answer cannot be read: {error!r}") from error
    finally:
        connection.close()


def _parsed(answer: Any) -> NodeAnswer:
    levels: dict[int, tuple[list[Span], int]] = {}
    for row in answer["levels"]:
        spans, _ = levels.setdefault(int(row["queue_id"], 16), ([], int(row["redelivered_below"])))
        spans += [(int(start), int(end)) for start, end in row["unacked"]]
    return NodeAnswer(levels, frozenset(int(one, 16) for one in answer["elsewhere"]))


def _refused(data_directory: Path, reason: str) -> StoreRefused:
    return StoreRefused(
        f"the node of {data_directory} runs, but does not say which messages were delivered:"
        f" {reason}."
        f" Its control socket {data_directory / CONTROL_SOCKET} is open to the user who runs the"
        " node; be that user, stop the node, or do without the columns state and redelivered"
    )

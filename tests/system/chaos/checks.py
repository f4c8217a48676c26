"""What must hold when nothing fails any more: all is there, once, and the cluster rests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from running_cluster import ClusterProcess, RunningCluster

from warren.mgmt.ctl.errors import CtlError

from .load import GRAVES, LOST_AND_FOUND, MIRRORED, ORDERED, QUORUM, SAFE, Book, Load, Publisher

PATIENCE_S = 60.0
SHOWN_MAX = 5

EXPECTED = (
    # Etcd is out of reach, or the node stands still.
    "cluster_lease_lost",
    "cluster_transactions_undecided",
    "definitions_unreachable",
)
"""Events of the log at level ERROR that say what the faults did."""


class Logs:
    """The logs of all nodes, each line once."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster
        self._read: dict[str, int] = {}

    def complaints(self) -> list[str]:
        said = []
        for node in self._cluster.nodes.values():
            lines = node.log.splitlines()
            for line in lines[self._read.get(node.name, 0) :]:
                if is_bad(line):
                    said.append(f"{node.name} logs: {line[:400]}")
            self._read[node.name] = len(lines)
        return said


def is_bad(line: str) -> bool:
    if line.startswith("Traceback"):
        return True
    return " ERROR " in line and not any(event in line for event in EXPECTED)


def rest(cluster: RunningCluster, load: Load) -> tuple[list[str], int]:
    """Wait until everything is as it should be; what is not, and how many messages were found."""
    found = 0
    nodes = list(cluster.nodes.values())
    confirms: dict[Publisher, int] = {}

    def unserved() -> list[str]:
        return [f"{one.name} gets no confirms" for one in confirms if one.confirms == confirms[one]]

    def unanswered() -> list[str]:
        return [f"{one.name} is not answered" for one in load.publishers if not one.is_idle]

    if said := _waits(lambda: [text for node in nodes for text in _unlinked(node, cluster)]):
        return said, found
    confirms.update({one: one.confirms for one in load.publishers})
    if said := _waits(unserved):
        return said, found
    load.flows.clear()
    if said := _waits(unanswered):
        return said, found

    def restless() -> list[str]:
        nonlocal found
        found += _take_lost_and_found(cluster, load)
        said = [text for node in nodes for text in _restless(node, load, len(nodes))]
        if missing := load.book.open():
            said.append(f"{len(missing)} confirmed messages do not come")
        return said

    return _waits(restless), found


def _waits(problems: Callable[[], list[str]]) -> list[str]:
    """What is still wrong when patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while said := problems():
        if time.monotonic() > deadline:
            return [f"after {PATIENCE_S:g} s: {text}" for text in said]
        time.sleep(0.1)
    return []


def _unlinked(node: ClusterProcess, cluster: RunningCluster) -> list[str]:
    if node.exit_code is not None:
        return [f"{node.name} has ended by itself, with {node.exit_code}"]
    missing = {other.name for other in cluster.nodes.values()} - node.linked()
    return [f"{node.name} is not linked with {', '.join(sorted(missing))}"] if missing else []


def _rows(node: ClusterProcess) -> dict[str, dict[str, Any]]:
    try:
        return {row["name"]: row for row in node.asks("queues", "/")}
    except (CtlError, OSError):
        return {}


def _restless(node: ClusterProcess, load: Load, nodes: int) -> list[str]:
    rows = _rows(node)
    said = []
    for queue in load.consumed_from:
        row = rows.get(queue, {})
        wrong = {
            key: row.get(key)
            for key, value in (
                ("state", "running"),
                ("messages", 0),
                ("messages_unacknowledged", 0),
                ("consumers", 1 if queue in ORDERED else nodes),
            )
            if row.get(key) != value
        }
        mirrors = (1 if queue == SAFE else nodes - 1) if queue in MIRRORED else 0
        in_sync = row.get("synchronised_slave_nodes", ())
        if queue == QUORUM:
            mirrors, in_sync = 3, row.get("online", ())
        if len(in_sync) != mirrors:
            wrong["in sync"] = list(in_sync)
        if wrong:
            said.append(f"{node.name} shows {queue} with {wrong}")
    return said


def _take_lost_and_found(cluster: RunningCluster, load: Load) -> int:
    node = next(iter(cluster.nodes.values()))
    row = _rows(node).get(LOST_AND_FOUND, {})
    return load.take_lost_and_found(node) if row.get("messages") else 0


def complaints_of(book: Book) -> list[str]:
    """What clients saw that must not be; each with the history of the message."""
    said = list(book.complaints)
    book.complaints.clear()
    wrong: dict[str, list[str]] = {}
    for name, message in book.messages.items():
        if message.verdict == "confirmed" and not message.settled:
            wrong.setdefault("was confirmed and is lost", []).append(name)
        if message.verdict == "returned":
            wrong.setdefault("was returned, though its queue is there", []).append(name)
        for queue, times in message.unmarked.items():
            # A dead letter that was not confirmed is sent again, as new.
            if times > 1 and queue != GRAVES:
                text = f"was delivered by {queue} {times} times as if for the first time"
                wrong.setdefault(text, []).append(name)
        if message.queue == SAFE and "found" in "".join(message.history):
            wrong.setdefault(f"of {SAFE} was found in {LOST_AND_FOUND}", []).append(name)
    for text, names in wrong.items():
        said.append(f"{len(names)} messages: {text}")
        for name in names[:SHOWN_MAX]:
            said.append(f"  {name}: {'; '.join(book.messages[name].history)}")
    return said

"""Snapshots made by nodes: a `Store` over HTTP.

In a cluster each node makes a snapshot of the queues that it leads; together they are one
`RemoteSnapshot`, in which a mirrored queue is read once. They are taken one after the other: each
queue is read as of one moment, but two queues led by different nodes are not read as of the same
moment.

Streams identify queues by the ids that the cluster has for them: when another node becomes the
leader of a queue, the queue has another id in that node's files.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from warren.persist.snapshots.pin_owner import Owner
from warren.spark_export.errors import (
    CursorInUse,
    OptionRefused,
    SnapshotGone,
    SparkExportError,
    StoreRefused,
)
from warren.spark_export.node_urls import NodeAddress, NodeLogin
from warren.spark_export.remote.cursor_keeper import CursorKeeper, leave
from warren.spark_export.remote.lease_keeper import release_with
from warren.spark_export.remote.remote_files import RemoteFiles
from warren.spark_export.remote.remote_node import WAITS_S, NodeClient, ask_one, close_connections
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.snapshot_file import PinnedQueue, decode_queue
from warren.spark_export.snapshot.unit import SnapshotFiles

LOOKS_MAX: Final = 4
"""Tries to find the leaders of all queues; a leader may change while the others are asked."""

RENEW_S: Final = 8.0
"""The time between two reports that a cursor is in use: a node ends it after 30 silent seconds."""

CURSOR_WAIT_S: Final = 35.0
"""The time to wait for a cursor: the stream that holds it may just have been killed."""

CURSOR_LOOK_S: Final = 0.5

NOT_TOLD: Final = "a node of an earlier version does not say which messages were delivered"

Key = tuple[str, str]


class Part(NamedTuple):
    """The part of a snapshot that one node made. Can be pickled; needs no login."""

    node: str
    files: RemoteFiles

    @property
    def key(self) -> tuple[NodeAddress, str, str]:
        """The address, id and token by which it can be released."""
        return self.files.address, self.files.snapshot, self.files.token


@dataclass(frozen=True)
class RemotePlace:
    parts: tuple[Part, ...]

    def open(self) -> RemoteSnapshot:
        """Open the snapshot. Raises `SnapshotGone`, `StoreRefused`."""
        return RemoteSnapshot([_Opened(part, _described(part)) for part in self.parts])


class _Opened:
    """A part, and its node's description of it."""

    def __init__(self, part: Part, told: Any) -> None:
        self.part = part
        fields = told["snapshot"]
        self.unreadable = int(fields["unreadable"])
        self.unasked: str | None = fields.get("unasked", NOT_TOLD)
        self.queues = tuple(decode_queue(queue) for queue in fields["queues"])


class RemoteSnapshot:
    """A `PinnedStore` whose parts are at one or several nodes."""

    def __init__(self, opened: Iterable[_Opened]) -> None:
        opened = list(opened)
        self.parts = tuple(one.part for one in opened)
        self.queues: tuple[PinnedQueue, ...] = tuple(
            queue for one in opened for queue in one.queues
        )
        self._unasked = [one.unasked for one in opened]
        self._unreadable = sum(one.unreadable for one in opened)
        self._files = {queue.queue_id: one.part.files for one in opened for queue in one.queues}

    @property
    def name(self) -> str:
        return ",".join(f"{part.node}!{part.files.snapshot}" for part in self.parts)

    @property
    def unasked(self) -> str | None:
        return next((one for one in self._unasked if one is not None), None)

    @property
    def has_each_once(self) -> bool:
        """Whether each queue is in one part only; False if a queue changed its leader while the
        nodes were asked."""
        return len({queue.stream_id for queue in self.queues}) == len(self.queues)

    @property
    def place(self) -> RemotePlace:
        return RemotePlace(self.parts)

    def files_of(self, queue: PinnedQueue) -> SnapshotFiles:
        return self._files[queue.queue_id]

    def unreadable_in(self, queues: Iterable[PinnedQueue]) -> int:
        return self._unreadable + sum(queue.unreadable for queue in queues)

    def extend(self, lease_s: float) -> None:
        for part in self.parts:
            part.files.client.ask("PUT", part.files.snapshot, body={"lease_s": lease_s})

    def release(self) -> None:
        for part in self.parts:
            with suppress(SnapshotGone):
                part.files.client.ask("DELETE", part.files.snapshot)


class RemoteStore:
    """The nodes of a cluster, or one node; `entries` are the addresses that are asked first."""

    snapshot_every_s = 1.0
    """A node serves its clients while it makes a snapshot, so streams ask less often."""

    def __init__(self, entries: list[NodeAddress], login: NodeLogin) -> None:
        self._entries = entries
        self._login = login
        self._cursors: dict[str, RemoteCursor] = {}

    def create(
        self,
        selector: QueueSelector,
        *,
        lease_s: float,
        needs_state: bool,
        cursor: str | None = None,
        owner: Owner | None = None,
    ) -> RemoteSnapshot:
        """Make a snapshot; it is released when its `owner` ends (`lease_keeper.py`)."""
        body = {
            "vhost": selector.vhost,
            "queues": None if selector.names is None else list(selector.names),
            "pattern": selector.pattern,
            "lease_s": lease_s,
            "state": needs_state,
            "retained": selector.retained,
            "missing_ok": selector.missing_ok,
        }
        if cursor is not None:
            body |= {"cursor": cursor, "holder": self._cursors[cursor].taken()}
        missing: set[Key] = set()
        for _ in range(LOOKS_MAX):
            snapshot, missing = self._try_create(body)
            if not missing and snapshot.has_each_once:
                if owner is not None:
                    release_with(owner, [part.key for part in snapshot.parts])
                return snapshot
            snapshot.release()
        if missing:
            queue = min(missing)
            raise StoreRefused(
                f"no node that answers leads queue {queue[1]!r} in virtual host {queue[0]!r}; try"
                " again when its leader is back"
            )
        raise StoreRefused("queues change their leaders faster than they are read; try again")

    def _try_create(self, body: dict[str, Any]) -> tuple[RemoteSnapshot, set[Key]]:
        """The snapshots of all nodes together, and the queues that no node says it leads."""
        opened: list[_Opened] = []
        here: set[Key] = set()
        elsewhere: set[Key] = set()
        try:
            for address in self._nodes().values():
                told = self._client(address).ask("POST", body=body)
                opened.append(_Opened(_part(address, told), told))
                here |= _keys(told["here"])
                elsewhere |= _keys(told["elsewhere"])
        except BaseException:
            RemoteSnapshot(opened).release()
            raise
        return RemoteSnapshot(opened), elsewhere - here

    def place_of(self, snapshot: Any) -> RemotePlace:
        place: RemotePlace = snapshot.place
        return place

    def named(self, snapshot: str) -> RemoteSnapshot:
        """The snapshot with this name, or with this id at the node that is asked first."""
        return self.open(snapshot)

    def open(self, name: str) -> RemoteSnapshot:
        parts = [text.rpartition("!") for text in name.split(",")]
        nodes = self._nodes_with({node for node, _, _ in parts if node})
        opened = []
        for node, _, snapshot in parts:
            address = nodes[node] if node else next(iter(nodes.values()))
            told = self._client(address).ask("POST", snapshot, "token")
            opened.append(_Opened(_part(address, told), told))
        return RemoteSnapshot(opened)

    def release(self, name: str) -> None:
        nodes = self._nodes()
        for text in name.split(","):
            node, _, snapshot = text.rpartition("!")
            # A part at a node that does not run ends with its lease or its cursor.
            if node in nodes:
                with suppress(SnapshotGone, OptionRefused):
                    told = self._client(nodes[node]).ask("POST", snapshot, "token")
                    RemoteSnapshot([_Opened(_part(nodes[node], told), told)]).release()

    def take_cursor(self, name: str, octets_max: int | None) -> RemoteCursor:
        cursor = self._cursors[name] = RemoteCursor(self, name, octets_max)
        return cursor

    # Nodes

    def nodes(self) -> dict[str, NodeClient]:
        """A client for each node, with the login of this store. Raises `StoreRefused`."""
        return {node: self._client(address) for node, address in self._nodes().items()}

    def _nodes(self) -> dict[str, NodeAddress]:
        """The addresses of the nodes by name, beginning with the node that answered."""
        entry, rows = self._ask_entries()
        protocol = "https" if entry.tls else "http"
        found: dict[str, NodeAddress] = {rows[0]["node"]: _process(entry, rows[0])}
        for row in rows[1:]:
            if row["node"] not in found and row["protocol"] == protocol:
                there = entry
                if row.get("machine", row["node"]) != rows[0].get("machine"):
                    there = replace(entry, host=row["host"], port=row["port"])
                found[row["node"]] = _process(there, row)
        unreachable = {row["node"] for row in rows} - found.keys()
        if unreachable:
            raise StoreRefused(f"node {min(unreachable)} has no listener for {protocol}")
        return found

    def _nodes_with(self, needed: set[str]) -> dict[str, NodeAddress]:
        """The addresses of the nodes, with those that are needed: the snapshot of a node that is
        started again is still there. Raises `SnapshotGone` if one does not come back."""
        for wait_s in (*WAITS_S, None):
            nodes = self._nodes()
            missing = needed - nodes.keys()
            if not missing:
                return nodes
            if wait_s is not None:
                time.sleep(wait_s)
        raise SnapshotGone(f"node {min(missing)}, which has part of the snapshot, does not run")

    def _ask_entries(self) -> tuple[NodeAddress, list[Any]]:
        """The node that answers, which is asked first from now on, and its answer."""
        client, rows = ask_one([self._client(address) for address in self._entries], "nodes")
        others = [address for address in self._entries if address != client.address]
        self._entries = [client.address, *others]
        return client.address, rows

    def _client(self, address: NodeAddress) -> NodeClient:
        return NodeClient(address, self._login.authorization)


def _process(address: NodeAddress, row: dict[str, Any]) -> NodeAddress:
    """The address of a node that may be one of a broker's processes, which share their ports."""
    if "process" not in row:
        return address
    return replace(address, prefix=f"{address.prefix}/process/{row['process']}")


class RemoteCursor:
    """A cursor that nodes hold for this stream, as long as it reports every few seconds."""

    def __init__(self, store: RemoteStore, name: str, octets_max: int | None) -> None:
        """Take the cursor at all nodes. Raises `CursorInUse`, `StoreRefused`."""
        self._store = store
        self._name = name
        self._octets_max = octets_max
        self._holder = secrets.token_hex(16)
        self._left = threading.Event()
        self._take_from_another()
        self._keeper = CursorKeeper(name, self._holder, store.nodes().values())
        threading.Thread(target=self._stay, name=f"cursor {name}", daemon=True).start()

    def release_others(self, needed: Collection[str]) -> None:
        for node, client in self._store.nodes().items():
            ids = [
                snapshot
                for name in needed
                for text in name.split(",")
                for at, _, snapshot in [text.rpartition("!")]
                if at == node
            ]
            self._ask(client, "release_others", needed=ids)

    def why_gone(self, name: str) -> str | None:
        nodes = self._store.nodes()
        for text in name.split(","):
            node, _, snapshot = text.rpartition("!")
            if node in nodes:
                why: str | None = self._ask(nodes[node], "why_gone", snapshot=snapshot)
                if why is not None:
                    return why
        return None

    def close(self) -> None:
        self._left.set()
        for client in self._store.nodes().values():
            leave(client, self._name, self._holder)
        self._keeper.dismiss()

    def taken(self) -> str:
        """Take the cursor at all running nodes; returns the holder. Raises `CursorInUse`,
        `StoreRefused`."""
        self._take()
        return self._holder

    def _take_from_another(self) -> None:
        until = time.monotonic() + CURSOR_WAIT_S
        while True:
            try:
                return self._take()
            except CursorInUse:
                if time.monotonic() >= until:
                    raise
                time.sleep(CURSOR_LOOK_S)

    def _take(self) -> None:
        for client in self._store.nodes().values():
            self._ask(client, "take_cursor", octets_max=self._octets_max)

    def _stay(self) -> None:
        while not self._left.wait(RENEW_S):
            # The stream gets the error itself, with its next request.
            with suppress(SparkExportError):
                self._take()
        close_connections()

    def _ask(self, client: NodeClient, action: str, **more: Any) -> Any:
        body = {"action": action, "holder": self._holder, **more}
        return client.ask("POST", "cursors", self._name, body=body)["answer"]


def _described(part: Part) -> Any:
    return part.files.client.ask("GET", part.files.snapshot)


def _part(address: NodeAddress, told: Any) -> Part:
    return Part(told["node"], RemoteFiles(address, told["snapshot"]["id"], told["token"]))


def _keys(pairs: Any) -> set[Key]:
    return {(str(vhost), str(name)) for vhost, name in pairs}

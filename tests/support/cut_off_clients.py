"""Clients of a node that is cut off: whatever it leads, it must confirm nothing.

They are connected before, publish with confirms and consume all the time, and stay while the node
lets them. What they publish while the node is cut off cannot be at any mirror.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from warren.compat_tests.broker import parse_url
from warren.compat_tests.methods import Method
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import SocketClosed

if TYPE_CHECKING:
    from failover import Ledger
    from running_cluster import ClusterProcess

UNCONFIRMED_MAX = 200
LISTEN_S = 0.005
PATIENCE_S = 20.0


class CutOffClients(threading.Thread):
    """A publisher and a consumer on one channel."""

    def __init__(self, node: ClusterProcess, queue: str, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self.published = 0
        self._node = node
        self._queue = queue
        self._ledger = ledger
        self._ready = threading.Event()
        self._over = threading.Event()
        self._cut_at: float | None = None
        self._restored_at: float | None = None
        self._tag = 0
        self._unconfirmed: dict[int, tuple[int, float]] = {}
        self._returned: set[int] = set()

    def begin(self) -> None:
        """Return when they are connected."""
        self.start()
        assert self._ready.wait(PATIENCE_S), "no clients at the node that is to be cut off"

    def is_cut(self) -> None:
        self._cut_at = time.monotonic()

    def is_restored(self) -> None:
        """Just before it is."""
        self._restored_at = time.monotonic()

    def finish(self) -> None:
        self._over.set()
        self.join(PATIENCE_S)

    def run(self) -> None:
        client = RawClient(parse_url(self._node.url))
        # A node that pauses, or ends, closes; what was not confirmed may be lost.
        with suppress(SocketClosed, OSError):
            client.open()
            self._work(client.channel())
        client.abandon()

    def _work(self, channel: RawChannel) -> None:
        channel.call("confirm.select")
        channel.call("basic.qos", prefetch_count=20)
        channel.consume(self._queue)
        self._ready.set()
        while not self._over.is_set():
            if len(self._unconfirmed) < UNCONFIRMED_MAX:
                self._publish(channel)
            if not self._listen(channel, LISTEN_S):
                return
        deadline = time.monotonic() + PATIENCE_S / 4
        while self._unconfirmed and time.monotonic() < deadline:
            if not self._listen(channel, 4 * LISTEN_S):
                return

    def _publish(self, channel: RawChannel) -> None:
        number = self._ledger.next_number()
        self._tag += 1
        self._unconfirmed[self._tag] = (number, time.monotonic())
        self._ledger.note(number, f"published at {self._node.name} by who stays")
        if self._cut_at is not None and self._restored_at is None:
            self.published += 1
        channel.publish(b"%d" % number, self._queue, mandatory=True, delivery_mode=2)

    def _listen(self, channel: RawChannel, patience_s: float) -> bool:
        """Take all that has come; False at the end."""
        client = channel.client
        while client.has_more(patience_s):
            method = client.next_either(channel.number)
            patience_s = 0.0
            if method.name in ("connection.close", "channel.close"):
                return False
            self._take(channel, method)
        return True

    def _take(self, channel: RawChannel, method: Method) -> None:
        if method.name == "basic.deliver":
            self._ledger.saw(int(method.body), method["redelivered"], self._node.name)
            channel.ack(method["delivery_tag"])
        elif method.name == "basic.return":
            self._returned.add(int(method.body))
        elif method.name in ("basic.ack", "basic.nack"):
            last = method["delivery_tag"]
            tags = [last]
            if method["multiple"]:
                # Some of them may have been answered one by one before.
                tags = [tag for tag in self._unconfirmed if tag <= last]
            for tag in tags:
                self._settled(tag, method.name == "basic.ack")

    def _settled(self, tag: int, confirmed: bool) -> None:
        number, sent_at = self._unconfirmed.pop(tag)
        confirmed = confirmed and number not in self._returned
        self._ledger.note(number, "confirmed" if confirmed else "refused")
        if not confirmed:
            return
        self._ledger.confirmed.add(number)
        if self._cut_at is not None and self._restored_at is None and sent_at > self._cut_at:
            self._ledger.confirmed_cut_off.append(number)

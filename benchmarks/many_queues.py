"""Persistent messages with confirms to one durable queue and to many: what a sync shared is worth.

    python benchmarks/many_queues.py --port 5672 [--queues 1000] [-n 200000]

One connection, 1 KB bodies, at most 500 publishes unconfirmed; the messages are left and the
queues deleted. Prints a JSON line. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import time

from amqp_socket import AmqpSocket, method, persistent_publish

CHUNK = 250
OUTSTANDING_MAX = 500


class Confirms:
    """Counts basic.ack frames: how many publishes are confirmed."""

    def __init__(self) -> None:
        self.count = 0
        self._highest = 0
        self._alone: set[int] = set()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while at + 7 <= len(data):
            end = at + 8 + struct.unpack_from(">I", data, at + 3)[0]
            if end > len(data):
                break
            tag, multiple = struct.unpack_from(">QB", data, at + 11)
            self._settle(tag, bool(multiple & 1))
            at = end
        self._rest = data[at:]

    def _settle(self, tag: int, multiple: bool) -> None:
        if multiple:
            self._highest = max(self._highest, tag)
            self._alone = {seq for seq in self._alone if seq > tag}
        else:
            self._alone.add(tag)
        while self._highest + 1 in self._alone:
            self._highest += 1
            self._alone.discard(self._highest)
        self.count = self._highest + len(self._alone)


def rate(port: int, queues: list[str], count: int) -> float:
    """Confirmed messages a second, published to the queues in turn."""
    peer = AmqpSocket("127.0.0.1", port)
    for queue in queues:
        peer.declare(queue, {})
    body = os.urandom(1000)
    units = [persistent_publish(queue, body) for queue in queues]
    peer.call(method(85, 10, b"\0"), 85, 11)
    confirms = Confirms()
    started = time.monotonic()
    sent = 0
    while confirms.count < count:
        if sent < count and sent - confirms.count <= OUTSTANDING_MAX - CHUNK:
            chosen = [units[at % len(units)] for at in range(sent, sent + CHUNK)]
            peer.socket.sendall(b"".join(chosen))
            sent += CHUNK
        else:
            confirms.feed(peer.socket.recv(1 << 16))
    per_s = count / (time.monotonic() - started)
    for queue in queues:
        peer.delete(queue)
    peer.socket.close()
    return per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("-n", type=int, default=200_000)
    options = parser.parse_args()
    one = rate(options.port, ["bench-one"], options.n)
    names = [f"bench-{number}" for number in range(options.queues)]
    many = rate(options.port, names, options.n)
    print(json.dumps({"one_per_s": round(one), "many_per_s": round(many), "share": many / one}))


if __name__ == "__main__":
    main()

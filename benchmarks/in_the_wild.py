"""What clients do besides streaming: many consumers, many connections, gets, calls, transactions.

    python benchmarks/in_the_wild.py --warren 5672:PID --rabbitmq 5673:PID [--rounds 3] [--rows rpc]

Each row on Warren and on RabbitMQ in turns; the medians of several rounds. PID is the broker's
process, whose CPU time is counted. Both brokers must run already, with nothing else on the machine.
Messages have an id of their own. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import selectors
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from amqp_requests import TX_COMMIT, TX_SELECT, ack, consume, get, queue_declare, queue_delete
from amqp_socket import AmqpSocket, frame, method, short_string

QUEUE = "in-the-wild"
REPLY_TO = "amq.rabbitmq.reply-to"
BODY = bytes(100)

DELIVER = (60, 60)
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def message(number: int, key: str, *, reply_to: bytes = b"", correlated: bool = False) -> bytes:
    """A publish to a queue, with an id of its own."""
    identity = short_string(f"{number:08x}-0000-4000-8000-000000000001")
    flags, properties = 0x1080, b"\1"
    if correlated:
        flags |= 0x0400
        properties += identity
    if reply_to:
        flags |= 0x0200
        properties += bytes([len(reply_to)]) + reply_to
    properties += identity
    header = struct.pack(">HHQH", 60, 0, len(BODY), flags) + properties
    publish = method(60, 40, b"\0\0" + short_string("") + short_string(key) + b"\0")
    return publish + frame(2, 1, header) + frame(3, 1, BODY)


class Delivery(NamedTuple):
    tag: int
    header: bytes


class Peer(AmqpSocket):
    """A connection that is read from when there is something to read."""

    def __init__(self, port: int) -> None:
        super().__init__("127.0.0.1", port)
        self._pending = b""

    def deliveries(self) -> Iterator[Delivery]:
        """Read once; the deliveries that are whole now."""
        data = self._pending + self._buffer + self._receive()
        self._buffer = b""
        at, tag, whole = 0, 0, 0
        header = b""
        while len(data) - at >= 8:
            kind, _, size = struct.unpack_from(">BHI", data, at)
            if len(data) - at < size + 8:
                break
            payload = data[at + 7 : at + 7 + size]
            at += size + 8
            if kind == 1 and struct.unpack_from(">HH", payload) == DELIVER:
                tag = struct.unpack_from(">Q", payload, 5 + payload[4])[0]
                continue
            if kind == 2:
                header = payload
                continue
            if kind == 3:
                yield Delivery(tag, header)
            whole = at
        self._pending = data[whole:]


def reply_address(header: bytes) -> bytes:
    """The reply_to of a message with delivery mode and correlation id before it."""
    at = 15
    at += 1 + header[at]
    return header[at + 1 : at + 1 + header[at]]


def serve(peers: list[Peer], count: int, on_delivery: Callable[[Peer, Delivery], None]) -> None:
    """Read from all of these until so many messages have come."""
    selector = selectors.DefaultSelector()
    for peer in peers:
        selector.register(peer.socket, selectors.EVENT_READ, peer)
    left = count
    while left > 0:
        for key, _ in selector.select(60):
            for delivery in key.data.deliveries():
                left -= 1
                on_delivery(key.data, delivery)
    selector.close()


def acknowledge(peer: Peer, delivery: Delivery) -> None:
    peer.socket.sendall(ack(delivery.tag))


Work = Callable[[], int]
"""Does what is measured; returns how many messages that were."""


def fifty_consumers(port: int, peers: list[Peer]) -> Work:
    count = 40_000
    producer = Peer(port)
    peers += [producer, *(Peer(port) for _ in range(50))]
    producer.carry_out(queue_declare(QUEUE))
    for peer in peers[1:]:
        peer.prefetch(10)
        peer.socket.sendall(consume(QUEUE))
    data = [b"".join(message(i, QUEUE) for i in range(k, k + 50)) for k in range(0, count, 50)]

    def work() -> int:
        sending = threading.Thread(target=lambda: [producer.socket.sendall(one) for one in data])
        sending.start()
        serve(peers[1:], count, acknowledge)
        sending.join()
        return count

    return work


def thousand_connections(port: int, peers: list[Peer]) -> Work:
    peers += [Peer(port) for _ in range(1000)]
    for number, peer in enumerate(peers):
        peer.carry_out(queue_declare(f"{QUEUE}-{number}"))
        peer.prefetch(10)
        peer.socket.sendall(consume(f"{QUEUE}-{number}"))

    def work() -> int:
        for turn in range(10):
            for number, peer in enumerate(peers):
                peer.socket.sendall(message(turn, f"{QUEUE}-{number}"))
            serve(peers, len(peers), acknowledge)
        return 10 * len(peers)

    return work


def ten_queues(port: int, peers: list[Peer]) -> Work:
    count, together = 100_000, 50
    producer, consumer = Peer(port), Peer(port)
    peers += [producer, consumer, *(Peer(port) for _ in range(8))]
    consumer.prefetch(1000)
    for number in range(10):
        producer.carry_out(queue_declare(f"{QUEUE}-{number}"))
        consumer.socket.sendall(consume(f"{QUEUE}-{number}", tag=f"{number}"))
    data = [
        b"".join(message(i, f"{QUEUE}-{i % 10}") for i in range(k, k + together))
        for k in range(0, count, together)
    ]

    def acknowledge_some(peer: Peer, delivery: Delivery) -> None:
        if delivery.tag % together == 0:
            peer.socket.sendall(ack(delivery.tag, multiple=True))

    def work() -> int:
        sending = threading.Thread(target=lambda: [producer.socket.sendall(one) for one in data])
        sending.start()
        serve([consumer], count, acknowledge_some)
        sending.join()
        return count

    return work


def gets(port: int, peers: list[Peer]) -> Work:
    count = 10_000
    peer = Peer(port)
    peers.append(peer)
    peer.carry_out(queue_declare(QUEUE))
    peer.carry_out(b"".join(message(i, QUEUE) for i in range(count)))

    def work() -> int:
        for _ in range(count):
            peer.socket.sendall(get(QUEUE))
            peer.pass_over_bodies(len(BODY))
        return count

    return work


def calls(port: int, peers: list[Peer]) -> Work:
    count = 5000
    client, server = Peer(port), Peer(port)
    peers += [client, server]
    server.carry_out(queue_declare(QUEUE))
    server.socket.sendall(consume(QUEUE, no_ack=True))
    client.socket.sendall(consume(REPLY_TO, no_ack=True))

    def answer(peer: Peer, delivery: Delivery) -> None:
        address = reply_address(delivery.header).decode()
        peer.socket.sendall(message(0, address, correlated=True))

    def work() -> int:
        for number in range(count):
            asked = message(number, QUEUE, reply_to=REPLY_TO.encode(), correlated=True)
            client.socket.sendall(asked)
            serve([server], 1, answer)
            serve([client], 1, lambda peer, delivery: None)
        return count

    return work


def transactions(port: int, peers: list[Peer]) -> Work:
    count = 20_000
    peer = Peer(port)
    peers.append(peer)
    peer.carry_out(queue_declare(QUEUE))
    peer.call(TX_SELECT, 90, 11)
    data = [b"".join(message(i, QUEUE) for i in range(k, k + 10)) for k in range(0, count, 10)]

    def work() -> int:
        for one in data:
            peer.call(one + TX_COMMIT, 90, 21)
        return count

    return work


ROWS: dict[str, Callable[[int, list[Peer]], Work]] = {
    "50 consumers of a queue, prefetch 10, an ack each": fifty_consumers,
    "1,000 connections, each with a queue and a message now and then": thousand_connections,
    "a publisher to ten queues in turn, acks of 50": ten_queues,
    "basic.get, one at a time": gets,
    "calls by direct reply-to (RPC), one at a time": calls,
    "transactions of 10 publishes": transactions,
}


class Run(NamedTuple):
    per_s: float
    cpu_us: float


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def run(prepare: Callable[[int, list[Peer]], Work], port: int, pid: int) -> Run:
    peers: list[Peer] = []
    try:
        work = prepare(port, peers)
        time.sleep(0.5)
        used, began = cpu_s(pid), time.perf_counter()
        count = work()
        took = time.perf_counter() - began
        time.sleep(0.2)
        return Run(count / took, (cpu_s(pid) - used) / count * 1e6)
    finally:
        for number, peer in enumerate(peers):
            peer.socket.sendall(queue_delete(f"{QUEUE}-{number}") + queue_delete(QUEUE))
        for peer in peers:
            peer.socket.close()
        time.sleep(0.5)


def median(runs: list[Run]) -> Run:
    return Run(
        statistics.median(one.per_s for one in runs), statistics.median(one.cpu_us for one in runs)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--warren", required=True)
    parser.add_argument("--rabbitmq", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default="", help="parts of names, separated by commas")
    options = parser.parse_args()
    targets = [
        tuple(int(part) for part in target.split(":"))
        for target in (options.warren, options.rabbitmq)
    ]
    print("| scenario | Warren msg/s · µs | RabbitMQ msg/s · µs | ratio | ratio of CPU |")
    print("|---|---|---|---|---|")
    for name, prepare in ROWS.items():
        if not any(part in name for part in options.rows.split(",")):
            continue
        results: list[list[Run]] = [[], []]
        for _ in range(options.rounds):
            for (port, pid), runs in zip(targets, results, strict=True):
                runs.append(run(prepare, port, pid))
        warren, rabbitmq = median(results[0]), median(results[1])
        print(
            f"| {name} | {warren.per_s:,.0f} · {warren.cpu_us:.1f} "
            f"| {rabbitmq.per_s:,.0f} · {rabbitmq.cpu_us:.1f} "
            f"| {warren.per_s / rabbitmq.per_s:.1f}x | {rabbitmq.cpu_us / warren.cpu_us:.1f}x |",
            flush=True,
        )


if __name__ == "__main__":
    main()

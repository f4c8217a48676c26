"""The message path without sockets: microseconds per message inside the broker's state machines.

    python -P benchmarks/path.py
    python -P benchmarks/path.py '{"one-in": 1000}'

The second records the lives of messages that this rule selects (docs/tracing.md).
One publisher and one consumer on a node in memory; the best of several rounds. What the kernel and
the event loop cost comes on top. Useful before and after a change of the hot path.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Mapping
from random import Random
from typing import Any

from warren.amqp.connection import Connection
from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.frames import BODY, HEADER, METHOD, frame
from warren.amqp.peer import ConnectionSettings, Peer
from warren.clock import LoopClock
from warren.core.access.access_control import AccessControl, create_defaults
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.node import Node, default_server_properties
from warren.core.resources.alarms import Alarms
from warren.mgmt.server_command import collect_rarely

MESSAGES = 6000
"""More than routes are kept: keys that all differ are met as new ones."""
ROUNDS = 15

EXCHANGES = {"keys": ("keys", "topic"), "headers": ("by headers", "headers")}
"""The exchange of a kind of publishes and its type; the others go to the default exchange."""


class NoSocket:
    """A shell that drops what is written."""

    def __init__(self) -> None:
        self.connection: Connection

    def request_flush(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def fault(self) -> None:
        raise

    def abort(self) -> None: ...


def node(loop: asyncio.AbstractEventLoop, rule: Mapping[str, Any] | None) -> Node:
    store = VolatileMetadataStore()
    create_defaults(store, random_bytes=os.urandom)
    made = Node(
        "warren@bench",
        clock=LoopClock(loop),
        codec=AmqpContentCodec(),
        metadata=store,
        access=AccessControl(store, random_bytes=os.urandom),
        alarms=Alarms("warren@bench"),
        random=Random(0),
        new_token=lambda: os.urandom(8).hex(),
        new_backing_queue=lambda spec: MemoryQueue(),
        server_properties=default_server_properties("0", "bench"),
    )
    if rule is not None:
        made.parameters.set("trace", "/", "rule", rule)
    return made


def short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def call(class_id: int, method_id: int, arguments: bytes, channel: int = 1) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def opened(on: Node) -> Connection:
    shell = NoSocket()
    peer = Peer("127.0.0.1", 1, "127.0.0.1", 2)
    connection = shell.connection = Connection(on, ConnectionSettings(), shell, peer)
    login = b"\0guest\0guest"
    start_ok = (
        struct.pack(">I", 0)
        + short("PLAIN")
        + struct.pack(">I", len(login))
        + login
        + short("en_US")
    )
    connection.receive_data(
        b"AMQP\0\0\x09\x01"
        + call(10, 11, start_ok, 0)
        + call(10, 31, struct.pack(">HIH", 2047, 131072, 0), 0)
        + call(10, 40, short("/") + b"\0\0", 0)
        + call(20, 10, b"\0")
    )
    connection.take_output()
    return connection


def table(values: Mapping[str, str | int | bool]) -> bytes:
    octets = b""
    for name, value in values.items():
        octets += short(name)
        if isinstance(value, bool):
            octets += b"t" + bytes((value,))
        elif isinstance(value, int):
            octets += b"l" + struct.pack(">q", value)
        else:
            octets += b"S" + struct.pack(">I", len(value)) + value.encode()
    return struct.pack(">I", len(octets)) + octets


def task_properties(number: int) -> bytes:
    """What Celery sends with a task."""
    identity = f"{number:08x}-0000-4000-8000-000000000001"
    headers = {
        "lang": "py",
        "task": "shop.tasks.send_receipt",
        "id": identity,
        "retries": 0,
        "root_id": identity,
        "argsrepr": f"('order-{number:08x}', 42)",
        "kwargsrepr": "{}",
        "origin": "gen1234@web-01",
        "ignore_result": False,
    }
    octets = struct.pack(">H", 0xFE00) + short("application/json") + short("utf-8")
    octets += table(headers) + b"\1\0"
    return octets + short(identity) + short("c0ffee00-0000-4000-8000-000000000000")


def publishes(kind: str) -> bytes:
    parts = []
    exchange = EXCHANGES.get(kind, ("", ""))[0]
    for i in range(MESSAGES):
        routing_key = f"orders.{i:08x}.created" if kind == "keys" else "q"
        method = call(60, 40, b"\0\0" + short(exchange) + short(routing_key) + b"\0")
        size = 200 if kind in ("tasks", "headers") else 50 + i % 400 if kind == "sizes" else 100
        properties = struct.pack(">H", 0x1000) + b"\1"
        if kind == "ids":
            properties = struct.pack(">H", 0x90C0) + short("text/plain") + b"\1"
            properties += short(f"{i:08x}-0000-4000-8000-000000000001")
            properties += struct.pack(">Q", 1_700_000_000 + i)
        elif kind == "expiring":
            properties = struct.pack(">H", 0x1180) + b"\1" + short("60000")
            properties += short(f"{i:08x}-0000-4000-8000-000000000001")
        elif kind in ("tasks", "headers"):
            properties = task_properties(i)
        header = struct.pack(">HHQ", 60, 0, size) + properties
        parts += [method, frame(HEADER, 1, header), frame(BODY, 1, bytes(size))]
    return b"".join(parts)


def let_go_on(loop: asyncio.AbstractEventLoop, on: Node, published: int) -> None:
    """What is served one by one takes more than one turn of the loop."""
    queue = on.vhosts["/"].queues["q"]
    while queue.published < published or on.turns.over:
        loop.call_soon(loop.stop)
        loop.run_forever()


def measure(kind: str, no_ack: bool, backlog: bool, rule: Mapping[str, Any] | None) -> float:
    """Best microseconds per message: published, delivered and, unless `no_ack`, acknowledged."""
    loop = asyncio.new_event_loop()
    on = node(loop, rule)
    publisher, consumer = opened(on), opened(on)
    publisher.receive_data(call(50, 10, b"\0\0" + short("q") + b"\0\0\0\0\0"))
    if kind in EXCHANGES:
        name, its_type = EXCHANGES[kind]
        declare = b"\0\0" + short(name) + short(its_type) + bytes(5)
        publisher.receive_data(call(40, 10, declare))
        bind = b"\0\0" + short("q") + short(name) + short("orders.#") + b"\0"
        publisher.receive_data(call(50, 20, bind + table({"lang": "py", "retries": 0})))
    if backlog:
        consumer.receive_data(call(60, 10, struct.pack(">IHB", 0, 200, 0)))
    consume = b"\0\0" + short("q") + short("c") + (b"\2" if no_ack else b"\0") + b"\0\0\0\0"
    consumer.receive_data(call(60, 20, consume))
    data = publishes(kind)
    best = 1e9
    delivered = 0
    for number in range(1, ROUNDS + 1):
        started = time.process_time()
        publisher.receive_data(data)
        let_go_on(loop, on, MESSAGES * number)
        b"".join(consumer.take_output())
        if not no_ack:
            for _ in range(50, MESSAGES + 1, 50):
                delivered += 50
                consumer.receive_data(call(60, 80, struct.pack(">QB", delivered, 1)))
                let_go_on(loop, on, 0)
                b"".join(consumer.take_output())
        best = min(best, time.process_time() - started)
    loop.close()
    return best / MESSAGES * 1e6


def main() -> None:
    collect_rarely()
    rule = json.loads(sys.argv[1]) if len(sys.argv) > 1 else None
    for kind in ("ids", "tasks", "keys", "headers", "expiring", "sizes", "alike"):
        row = [
            measure(kind, no_ack, backlog, rule)
            for no_ack, backlog in ((True, False), (False, False), (False, True))
        ]
        print(
            f"{kind:12} auto-ack {row[0]:5.2f}   acked {row[1]:5.2f}   from backlog {row[2]:5.2f}"
        )


if __name__ == "__main__":
    main()

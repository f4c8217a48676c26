"""A node with messages in durable queues, whose definitions a test damages while it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import lmdb
import pika
from ctl_node import CtlNode

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def publish(node: CtlNode, queue: str, bodies: list[bytes]) -> None:
    """Declare a durable queue and fill it; all is committed on return."""
    with node.connected() as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.tx_select()
        for body in bodies:
            channel.basic_publish("", queue, body, PERSISTENT)
        channel.tx_commit()


def drained(node: CtlNode, queue: str) -> list[bytes]:
    """The bodies in a queue, acknowledged."""
    bodies: list[bytes] = []
    with node.connected() as connection:
        channel = connection.channel()
        while True:
            _, _, body = channel.basic_get(queue, auto_ack=True)
            if body is None:
                return bodies
            bodies.append(body)


def stop(node: CtlNode) -> None:
    assert node.server.terminate() == 0


def change_definitions(
    data_directory: Path, change: Callable[[bytes, bytes], bytes | None]
) -> None:
    """Rewrite values as they are on disk; `change` returns None to delete one."""
    path = str(data_directory / "metadata")
    with closing(lmdb.open(path, map_size=64 << 20, max_dbs=0)) as environment:
        with environment.begin(write=True) as transaction:
            for key, value in list(transaction.cursor()):
                changed = change(key, value)
                if changed is None:
                    transaction.delete(key)
                elif changed != value:
                    transaction.put(key, changed)


def without_queue(name: bytes) -> Callable[[bytes, bytes], bytes | None]:
    """As if the definition of a queue had never been."""

    def change(key: bytes, value: bytes) -> bytes | None:
        return None if key.startswith(b"queue\0\1") and name in key else value

    return change


def flipped(prefix: bytes, name: bytes, at: bytes) -> Callable[[bytes, bytes], bytes | None]:
    """Flip a bit of a value: the one after these octets, which it must have."""

    def change(key: bytes, value: bytes) -> bytes | None:
        if not key.startswith(prefix + b"\0\1") or name not in key:
            return value
        place = value.index(at) + len(at)
        return value[:place] + bytes([value[place] ^ 0x10]) + value[place + 1 :]

    return change

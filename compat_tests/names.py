"""Unique names of queues and exchanges, which are deleted when the test is over."""

import time

from warren.compat_tests.broker import Broker
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import PATIENCE_S, Surprise


class Names:
    """Hands out names for one test. They are short, since a reply text has room for 255 bytes."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.given: list[str] = []

    def new(self) -> str:
        name = f"{self.prefix}.{len(self.given) + 1}"
        self.given.append(name)
        return name

    def remove_all(self, broker: Broker) -> None:
        """Deletes every queue and exchange of these names; missing ones are no error."""
        if not self.given:
            return
        client = RawClient(broker).open()
        try:
            channel = client.channel()
            for name in self.given:
                delete_queue(channel, name)
                channel.call("exchange.delete", exchange=name)
            client.close()
        finally:
            client.abandon()


def delete_queue(channel: RawChannel, name: str) -> None:
    """Deletes the queue. One that was exclusive to a connection that has just closed may be locked
    for a moment; then this waits."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        channel.send("queue.delete", queue=name)
        method = channel.next_method()
        if method.name == "queue.delete-ok":
            return
        if method.name != "channel.close" or time.monotonic() > deadline:
            raise Surprise(f"wanted queue {name} to be deleted, got {method}")
        channel.send("channel.close-ok")
        channel.call("channel.open")
        time.sleep(0.01)

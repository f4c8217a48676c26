"""Makes raw clients for a test and closes them all when it is over."""

from typing import Any

from warren.compat_tests.broker import Broker
from warren.compat_tests.raw_client import RawClient


class Raw:
    """Makes clients: `raw()` is open and ready, `raw.connected()` has only the TCP connection."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clients: list[RawClient] = []

    def connected(self) -> RawClient:
        client = RawClient(self.broker)
        self.clients.append(client)
        return client

    def __call__(self, **options: Any) -> RawClient:
        """A client after the handshake; the options are those of `RawClient.open`."""
        return self.connected().open(**options)

    def close_all(self) -> None:
        for client in self.clients:
            client.abandon()

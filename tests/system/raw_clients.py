"""Raw clients of one test, which closes their sockets in the end."""

from __future__ import annotations

from typing import Any

from warren.compat_tests.broker import parse_url
from warren.compat_tests.raw_client import RawClient


class RawClients:
    """Opens raw clients to anything that has a `url`, and closes their sockets in the end."""

    def __init__(self) -> None:
        self._clients: list[RawClient] = []

    def __call__(self, where: Any, *, handshake: bool = True, **options: Any) -> RawClient:
        client = RawClient(parse_url(where if isinstance(where, str) else where.url))
        self._clients.append(client)
        return client.open(**options) if handshake else client

    def abandon_all(self) -> None:
        for client in self._clients:
            client.abandon()

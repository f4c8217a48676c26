"""Raw clients of one test, which closes their sockets in the end."""

from __future__ import annotations

from typing import Any

from warren.compat_tests.broker import parse_url
from warren.compat_tests.methods import encode_header, encode_method
from warren.compat_tests.raw_client import RawClient
from warren.compat_tests.raw_connection import BODY, HEADER, METHOD, frame_bytes


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


def publish_bytes(channel: int, queue: str, body: bytes) -> bytes:
    """The frames of one publish to a queue."""
    method = encode_method("basic.publish", {"exchange": "", "routing_key": queue})
    return (
        frame_bytes(METHOD, channel, method)
        + frame_bytes(HEADER, channel, encode_header({}, len(body)))
        + frame_bytes(BODY, channel, body)
    )

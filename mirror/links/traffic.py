"""What has gone over links, counted by peer; what earlier links carried is not forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from warren.mirror.links.socket import LinkSocket


class LinkTraffic(NamedTuple):
    """Of one peer since this node has started. `lost`: how many links have gone down.

    `backlog_bytes` and `round_trip_s` are of the link that is up; the latter is None where the
    system does not tell.
    """

    up: bool = False
    sent_octets: int = 0
    received_octets: int = 0
    sent_frames: int = 0
    received_frames: int = 0
    lost: int = 0
    backlog_bytes: int = 0
    round_trip_s: float | None = None


class TrafficAccount:
    """The sums of links that are down."""

    def __init__(self) -> None:
        self._past: dict[str, LinkTraffic] = {}

    def down(self, node: str, socket: LinkSocket) -> None:
        """The link with a node has ended."""
        before = self._past.get(node, LinkTraffic())
        self._past[node] = _added(before, socket)._replace(lost=before.lost + 1)

    def of(self, node: str, up: Mapping[str, LinkSocket]) -> LinkTraffic:
        past = self._past.get(node, LinkTraffic())
        socket = up.get(node)
        if socket is None:
            return past
        return _added(past, socket)._replace(
            up=True, backlog_bytes=socket.backlog_bytes(), round_trip_s=socket.round_trip_s()
        )


def _added(past: LinkTraffic, socket: LinkSocket) -> LinkTraffic:
    link = socket.link
    return past._replace(
        sent_octets=past.sent_octets + link.sent_octets,
        received_octets=past.received_octets + link.received_octets,
        sent_frames=past.sent_frames + link.sent_frames,
        received_frames=past.received_frames + link.received_frames,
    )

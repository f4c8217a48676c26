"""The traffic of links, counted by peer; the counts include earlier links with the peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from warren.mirror.links.socket import LinkSocket


class LinkTraffic(NamedTuple):
    """The traffic with one peer since this node started. `lost`: how many links have gone down.

    `backlog_bytes` and `round_trip_s` are those of the link that is up; `round_trip_s` is None
    where the system does not tell it.
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
    """The sums of the links that have gone down, to which those of the present links are added."""

    def __init__(self) -> None:
        self._past: dict[str, LinkTraffic] = {}

    def down(self, node: str, socket: LinkSocket) -> None:
        """Add a link with the node that has ended."""
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

"""Payloads between nodes, sorted by kind and cut into pieces where they are long.

A link carries frames of a megabyte at most, but a message with a large body is longer. A long
payload is cut into pieces that follow each other; the last piece names the kind of the whole.

Handlers are registered once, when the node is built, and stay for the whole run of the process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from warren.mirror.links.ports import (
    FRAME_BYTES_MAX,
    EndReason,
    Frame,
    Identity,
    LinkUser,
    NodeLinks,
    Part,
)

WHOLE_BYTES_MAX = 600 << 20
"""Limit of a payload: a body may have 512 MiB, and its header some more."""

_KIND = struct.Struct("<H")

Handler: TypeAlias = Callable[[str, bytes], None]


class PostKind(IntEnum):
    """The kinds of frames."""

    PIECE = 1
    LAST_PIECE = 2
    REQUEST = 3
    ANSWER = 4
    ALARMS = 5
    MAINTENANCE = 6
    QUOTAS = 7
    # From a client's node to the leader of a queue.
    PUBLISH = 16
    SETTLE = 17
    CONSUMER_STATE = 18
    CANCEL = 19
    HEARD = 20
    # From the leader of a queue to a client's node.
    PUBLISHED = 24
    DELIVER = 25
    CANCELLED = 26
    # Between the copies of a mirrored queue.
    GROUP = 32
    MEMBER_GONE = 33
    MIRRORED = 34
    SLICE = 35
    LOG = 36


class Undeliverable(Exception):
    """A peer sent something that no node sends; its link is taken down."""


class Post:
    """The links of this node, with a handler for each kind of frame."""

    def __init__(self) -> None:
        self._links: NodeLinks | None = None
        self._handlers: dict[int, Handler] = {}
        self._pieces: dict[str, list[bytes]] = {}
        self._piled: dict[str, int] = {}
        self._on_up: list[Callable[[str], None]] = []
        self._on_down: list[Callable[[str], None]] = []
        self._on_congested: list[Callable[[str, bool], None]] = []

    def open(self, links: NodeLinks) -> None:
        """Use these links, which were made with `user`."""
        self._links = links

    def user(self) -> LinkUser:
        """The callbacks for the links."""
        return LinkUser(
            on_up=self._up,
            on_down=self._down,
            on_frames=self._frames,
            on_congested=self._congested,
        )

    # Listeners

    def handle(self, kind: PostKind, handler: Handler) -> None:
        """Call the handler with sender and payload of each frame of this kind.

        The handler raises `Undeliverable` for a payload that makes no sense.
        """
        assert kind not in self._handlers, kind
        self._handlers[kind] = handler

    def watch(
        self,
        on_up: Callable[[str], None],
        on_down: Callable[[str], None],
        on_congested: Callable[[str, bool], None] | None = None,
    ) -> None:
        """Report links that come up, go down, and become congested or free."""
        self._on_up.append(on_up)
        self._on_down.append(on_down)
        if on_congested is not None:
            self._on_congested.append(on_congested)

    # Sending

    def send(self, node: str, kind: PostKind, *parts: Part) -> bool:
        """Send the parts as one payload of any length; False when the link is down."""
        links = self._links
        if links is None:
            return False
        size = sum([len(part) for part in parts])
        if size <= FRAME_BYTES_MAX:
            return links.send(node, kind, *parts)
        whole = memoryview(b"".join(parts))
        for start in range(0, size - 1, FRAME_BYTES_MAX - _KIND.size):
            piece = whole[start : start + FRAME_BYTES_MAX - _KIND.size]
            last = start + len(piece) == size
            head = _KIND.pack(kind)
            if not links.send(node, PostKind.LAST_PIECE if last else PostKind.PIECE, head, piece):
                return False
        return True

    def is_up(self, node: str) -> bool:
        return self._links is not None and self._links.is_up(node)

    def peers(self) -> dict[str, Identity]:
        return self._links.peers() if self._links is not None else {}

    # Reports of the links

    def _up(self, node: str, _identity: Identity) -> None:
        for listener in self._on_up:
            listener(node)

    def _down(self, node: str, _reason: EndReason) -> None:
        self._pieces.pop(node, None)
        self._piled.pop(node, None)
        for listener in self._on_down:
            listener(node)

    def _congested(self, node: str, congested: bool) -> None:
        for listener in self._on_congested:
            listener(node, congested)

    def _frames(self, node: str, frames: list[Frame]) -> None:
        handlers = self._handlers
        for kind, payload in frames:
            if kind == PostKind.PIECE or kind == PostKind.LAST_PIECE:
                whole = self._piece(node, kind, payload)
                if whole is None:
                    continue
                kind, payload = whole
            handler = handlers.get(kind)
            if handler is None:
                raise Undeliverable(f"a frame of kind {kind} from {node}")
            handler(node, payload)

    def _piece(self, node: str, kind: int, payload: bytes) -> tuple[int, bytes] | None:
        """Keep a piece; returns kind and payload of the whole if it was the last piece."""
        if len(payload) < _KIND.size:
            raise Undeliverable(f"a piece of {len(payload)} octets from {node}")
        piled = self._piled.get(node, 0) + len(payload)
        if piled > WHOLE_BYTES_MAX:
            raise Undeliverable(f"pieces of {piled} octets from {node}")
        pieces = self._pieces.setdefault(node, [])
        pieces.append(payload[_KIND.size :])
        self._piled[node] = piled
        if kind == PostKind.PIECE:
            return None
        del self._pieces[node], self._piled[node]
        return _KIND.unpack_from(payload)[0], b"".join(pieces)

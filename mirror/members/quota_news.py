"""Tells the other nodes how much of each quota the queues led here hold, and hears of theirs.

Every node counts every second, and tells the others when the result has changed. When a link comes
up, each node sends its last result; when the link goes down, that of the peer is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from warren.core.messages.stock import Stock
from warren.core.node import Node
from warren.core.scheduling.periodic import Periodic
from warren.core.scheduling.waiting import run
from warren.mirror.messages.post import Post, PostKind, Undeliverable

INTERVAL_S = 1.0


class QuotaNews:
    """The stock of each quota in the queues of this node, and of the nodes that it has links to."""

    def __init__(self, node: Node, post: Post) -> None:
        self._turns = node.turns
        self._quotas = node.quotas
        self._post = post
        self._counts = False
        self._told: dict[str, Stock] = {}
        post.handle(PostKind.QUOTAS, self._heard)
        post.watch(on_up=self._up, on_down=lambda peer: self._quotas.told(peer, {}))
        Periodic(node.clock, self._look).start()

    def _look(self, now: float) -> float:
        if not self._counts:
            self._counts = True
            run(self._quotas.held_here(self._turns), self._counted)
        return INTERVAL_S

    def _counted(self, result: Callable[[], dict[str, Stock]]) -> None:
        self._counts = False
        held = result()
        if held != self._told:
            self._told = held
            for peer in self._post.peers():
                self._tell(peer)

    def _up(self, peer: str) -> None:
        if self._told:
            self._tell(peer)

    def _tell(self, peer: str) -> None:
        self._post.send(peer, PostKind.QUOTAS, msgspec.msgpack.encode(self._told))

    def _heard(self, peer: str, payload: bytes) -> None:
        try:
            held = msgspec.msgpack.decode(payload, type=dict[str, Stock])
        except msgspec.MsgspecError as error:
            raise Undeliverable(f"quotas that cannot be read: {error}") from None
        self._quotas.told(peer, held)

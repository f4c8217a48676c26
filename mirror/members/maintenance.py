"""The nodes in maintenance mode: they lead no queue that another node can lead.

A node tells the others when its maintenance begins and when it ends. While it lasts, it also tells
each node that it gets a link with. Maintenance is not stored: a node that was restarted is in
service.
"""

from __future__ import annotations

from collections.abc import Collection

from warren.mirror.messages.post import Post, PostKind, Undeliverable

IN_SERVICE, IN_MAINTENANCE = b"\0", b"\1"


class Maintenance:
    def __init__(self, name: str, post: Post) -> None:
        self._name = name
        self._post = post
        self._drained: set[str] = set()
        post.handle(PostKind.MAINTENANCE, self._heard)
        post.watch(on_up=self._up, on_down=self._drained.discard)

    def may_lead(self, node: str) -> bool:
        """Whether queues may be given to this node to lead."""
        return node not in self._drained

    @property
    def drained(self) -> Collection[str]:
        """The nodes in maintenance mode that can be reached, this one included."""
        return frozenset(self._drained)

    def begin(self) -> None:
        self._drained.add(self._name)
        self._tell(IN_MAINTENANCE)

    def end(self) -> None:
        self._drained.discard(self._name)
        self._tell(IN_SERVICE)

    def _tell(self, news: bytes) -> None:
        for node in self._post.peers():
            self._post.send(node, PostKind.MAINTENANCE, news)

    def _up(self, node: str) -> None:
        if self._name in self._drained:
            self._post.send(node, PostKind.MAINTENANCE, IN_MAINTENANCE)

    def _heard(self, node: str, payload: bytes) -> None:
        if payload == IN_MAINTENANCE:
            self._drained.add(node)
        elif payload == IN_SERVICE:
            self._drained.discard(node)
        else:
            raise Undeliverable(f"news of maintenance that cannot be read: {payload!r}")

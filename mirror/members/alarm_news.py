"""Tells the other nodes of this node's alarms, and hears of theirs.

A link that comes up begins with the alarms there are; one that goes down takes the peer's with it.
"""

from __future__ import annotations

import msgspec

from warren.core.alarms import Alarms, Resource
from warren.mirror.messages.post import Kind, Post, Undeliverable

SHARED = frozenset((Resource.MEMORY, Resource.DISK))
"""Of a fault the others need not hear: the node is about to go."""


class AlarmNews:
    def __init__(self, alarms: Alarms, post: Post) -> None:
        self._alarms = alarms
        self._post = post
        self._told = b""
        post.handle(Kind.ALARMS, self._heard)
        post.watch(on_up=self._up, on_down=alarms.node_down)
        alarms.subscribe(self._changed)

    def _changed(self) -> None:
        news = self._news()
        if news != self._told:
            self._told = news
            for node in self._post.peers():
                self._post.send(node, Kind.ALARMS, news)

    def _up(self, node: str) -> None:
        self._post.send(node, Kind.ALARMS, self._news())

    def _news(self) -> bytes:
        local = [alarm.resource for alarm in self._alarms.local()]
        return msgspec.msgpack.encode([resource for resource in local if resource in SHARED])

    def _heard(self, node: str, payload: bytes) -> None:
        try:
            short = msgspec.msgpack.decode(payload, type=list[Resource])
        except msgspec.MsgspecError as error:
            raise Undeliverable(f"alarms that cannot be read: {error}") from None
        for resource in Resource:
            self._alarms.report(resource, resource in short, node)

"""Tells the other nodes of this node's alarms and of its queues that grow, and hears of theirs.

When a link comes up, each node sends its present alarms; when it goes down, those of the peer end.
"""

from __future__ import annotations

import msgspec

from warren.core.resources.alarms import Alarms, Resource
from warren.core.resources.growth import Growth
from warren.mirror.messages.post import Post, PostKind, Undeliverable

SHARED = frozenset((Resource.MEMORY, Resource.DISK))
"""Resources whose alarms are told to other nodes. The alarm of a fault is not: its node is about
to stop."""


class News(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """`short` are the resources that run short at a node; for those of them in `growing_only` only
    publishers to growing queues wait. `grown` are the ids of the queues led there that have grown.
    """

    short: list[Resource]
    growing_only: list[Resource]
    grown: list[int]


class AlarmNews:
    """The alarms and the growth of this node, and those of the nodes it has links to."""

    def __init__(self, alarms: Alarms, growth: Growth, post: Post) -> None:
        self._alarms = alarms
        self._growth = growth
        self._post = post
        self._told = b""
        post.handle(PostKind.ALARMS, self._heard)
        post.watch(on_up=self._up, on_down=self._down)
        alarms.subscribe(self._changed)
        growth.watch(self._changed)

    def _changed(self) -> None:
        news = self._news()
        if news != self._told:
            self._told = news
            for node in self._post.peers():
                self._post.send(node, PostKind.ALARMS, news)

    def _up(self, node: str) -> None:
        self._post.send(node, PostKind.ALARMS, self._news())

    def _down(self, node: str) -> None:
        self._alarms.node_down(node)
        self._growth.node_down(node)

    def _news(self) -> bytes:
        local = [alarm for alarm in self._alarms.local() if alarm.resource in SHARED]
        mild = [alarm.resource for alarm in local if self._alarms.growing_only(alarm)]
        short = [alarm.resource for alarm in local]
        return msgspec.msgpack.encode(News(short, mild, self._growth.grown_here()))

    def _heard(self, node: str, payload: bytes) -> None:
        try:
            news = msgspec.msgpack.decode(payload, type=News)
        except msgspec.MsgspecError as error:
            raise Undeliverable(f"alarms that cannot be read: {error}") from None
        for resource in Resource:
            self._alarms.report(
                resource, resource in news.short, node, growing_only=resource in news.growing_only
            )
        self._growth.told(node, news.grown)

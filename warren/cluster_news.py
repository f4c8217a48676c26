"""The news that the nodes of a cluster exchange, except those of queues."""

from __future__ import annotations

from warren.core.node import Node
from warren.mirror.members.alarm_news import AlarmNews
from warren.mirror.members.quota_news import QuotaNews
from warren.mirror.members.trace_news import TraceNews
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.post import Post
from warren.mirror.remote.remote_replies import RemoteReplies


def tell_others(node: Node, name: str, post: Post, calls: Calls) -> None:
    """Exchange news of alarms, quotas, traced messages and direct replies with the other nodes."""
    AlarmNews(node.alarms, node.growth, post)
    QuotaNews(node, post)
    TraceNews(node.tracer, post, calls)
    RemoteReplies(node.replies, name, calls)

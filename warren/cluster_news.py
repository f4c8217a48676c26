"""What the nodes of a cluster tell each other of their own accord, beside what queues need."""

from __future__ import annotations

from warren.core.node import Node
from warren.mirror.members.alarm_news import AlarmNews
from warren.mirror.members.quota_news import QuotaNews
from warren.mirror.members.trace_news import TraceNews
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.post import Post
from warren.mirror.remote.remote_replies import RemoteReplies


def tell_others(node: Node, name: str, post: Post, calls: Calls) -> None:
    """Alarms, quotas, messages that are followed, and direct replies."""
    AlarmNews(node.alarms, node.growth, post)
    QuotaNews(node, post)
    TraceNews(node.tracer, post, calls)
    RemoteReplies(node.replies, name, calls)

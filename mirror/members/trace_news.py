"""Nodes tell each other which messages they follow (`core/tracer.py`), so that each records what
happens to these at itself."""

from __future__ import annotations

from warren.core.tracing.tracer import Tracer
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.post import Post

FOLLOW = "trace.follow"


class TraceNews:
    """What this node tells the others, and what it is told."""

    def __init__(self, tracer: Tracer, post: Post, calls: Calls) -> None:
        self._tracer = tracer
        self._post = post
        self._calls = calls
        tracer.on_follow = self._tell
        calls.serve(FOLLOW, self._told)

    def _tell(self, vhost: str, name: str) -> None:
        """At once: it goes before the message itself, which may go the same way in a moment."""
        for node in self._post.peers():
            self._calls.ask(node, FOLLOW, vhost, name)

    async def _told(self, _node: str, vhost: str, name: str) -> None:
        self._tracer.follow_too(vhost, name)

"""Nodes tell each other which messages they trace (`core/tracing/tracer.py`), so that each node
records what happens to these messages there."""

from __future__ import annotations

from warren.core.tracing.tracer import Tracer
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.post import Post

FOLLOW = "trace.follow"

TELL_US = 20
"""The cost of telling another node, in the microseconds that `core/scheduling/turns.py` counts."""


class TraceNews:
    """Tells the other nodes of the messages traced here, and traces those that they tell of."""

    def __init__(self, tracer: Tracer, post: Post, calls: Calls) -> None:
        self._tracer = tracer
        self._post = post
        self._calls = calls
        tracer.on_follow = self._tell
        calls.serve(FOLLOW, self._told)

    def _tell(self, vhost: str, name: str) -> None:
        """Tell the others at once, so that the news arrives before the message, which may go the
        same way in a moment."""
        for node in self._post.peers():
            self._tracer.turns.spend(TELL_US)
            self._calls.ask(node, FOLLOW, vhost, name)

    async def _told(self, _node: str, vhost: str, name: str) -> None:
        self._tracer.follow_too(vhost, name)

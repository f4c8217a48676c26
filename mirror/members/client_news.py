"""Nodes tell each other how many connections and channels their clients have open: limits hold for
all nodes together."""

from __future__ import annotations

from warren.core.access.clients_elsewhere import ClientsElsewhere, OpenCounts, Place
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.post import Post

CHANGED = "clients.opened"
BEGINS = "clients.all_opened"


class ClientNews:
    """Tells the nodes that can be reached what our clients have open, and takes note of what theirs
    have."""

    def __init__(self, clients: ClientsElsewhere, post: Post, calls: Calls) -> None:
        self._clients = clients
        self._post = post
        self._calls = calls
        clients.tell = self._tell
        calls.serve(CHANGED, self._changed)
        calls.serve(BEGINS, self._began)
        post.watch(on_up=self._up, on_down=clients.ended)

    def _tell(self, place: Place, more: OpenCounts) -> None:
        """Tell the others at once: the client may open its next connection at another node."""
        for node in self._post.peers():
            self._calls.ask(node, CHANGED, *place, *more)

    def _up(self, node: str) -> None:
        opened = [(*place, *counts) for place, counts in self._clients.here().items()]
        self._calls.ask(node, BEGINS, opened)

    async def _changed(
        self, node: str, vhost: str, user: str, connections: int, channels: int
    ) -> None:
        self._clients.told(node, (vhost, user), OpenCounts(connections, channels))

    async def _began(self, node: str, opened: list[tuple[str, str, int, int]]) -> None:
        self._clients.begins(
            node,
            {
                (vhost, user): OpenCounts(connections, channels)
                for vhost, user, connections, channels in opened
            },
        )

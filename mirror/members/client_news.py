"""Processes of one broker tell each other what clients they have: limits are of the broker."""

from __future__ import annotations

from collections.abc import Callable, Collection

from warren.core.access.clients_elsewhere import ClientsElsewhere
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.post import Post

CHANGED = "clients.changed"
BEGINS = "clients.all"


class ClientNews:
    """`others` are the processes that can be reached, without this one."""

    def __init__(
        self,
        clients: ClientsElsewhere,
        post: Post,
        calls: Calls,
        others: Callable[[], Collection[str]],
    ) -> None:
        self._clients = clients
        self._calls = calls
        self._others = others
        clients.tell = self._tell
        calls.serve(CHANGED, self._changed)
        calls.serve(BEGINS, self._began)
        post.watch(on_up=self._up, on_down=clients.ended)

    def _tell(self, vhost: str, user: str, more: int) -> None:
        """At once: the client may have its next connection at another process."""
        for node in self._others():
            self._calls.ask(node, CHANGED, vhost, user, more)

    def _up(self, node: str) -> None:
        if node in self._others():
            counts = [(vhost, user, count) for (vhost, user), count in self._clients.here().items()]
            self._calls.ask(node, BEGINS, counts)

    async def _changed(self, node: str, vhost: str, user: str, more: int) -> None:
        self._clients.told(node, (vhost, user), more)

    async def _began(self, node: str, counts: list[tuple[str, str, int]]) -> None:
        self._clients.begins(node, {(vhost, user): count for vhost, user, count in counts})

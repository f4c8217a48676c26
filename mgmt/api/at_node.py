"""Endpoints that each node answers for itself.

A request that names another member of the cluster in its path is passed on to that member.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from warren.mgmt.http.errors import ObjectNotFound
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.peers import peers_of

Handler: TypeAlias = Callable[[ApiRequest], Awaitable[Any]]


def at_node(path: str, handler: Handler) -> Handler:
    """A handler that has the node in the path, `{node}`, answer the request with `handler`.

    `peers()` in `endpoints.py` must list the endpoint, or the other node would refuse the request.
    The answer must not be a `Reply`, as nodes cannot send one another those.
    """

    async def answer(request: ApiRequest) -> Any:
        name = request.http.match_info.get("node", request.node.name)
        if name == request.node.name:
            return await handler(request)
        peers = peers_of(request)
        if peers is None or name not in peers.members():
            raise ObjectNotFound()
        method = "GET" if request.http.method == "HEAD" else request.http.method
        return await peers.ask(name, request, path, {"node": name}, method=method)

    return answer

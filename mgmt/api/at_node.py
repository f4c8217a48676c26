"""Endpoints a node answers for itself: a request that names another member is passed on to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from warren.mgmt.http.errors import ObjectNotFound
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.peers import peers_of

Handler: TypeAlias = Callable[[ApiRequest], Awaitable[Any]]


def at_node(path: str, handler: Handler) -> Handler:
    """A handler that has the node in the path, `{node}`, answer the request.

    `peers()` must have the endpoint. The answer must not be a `Reply`, as nodes cannot send those.
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

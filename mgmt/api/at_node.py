"""What a node answers for itself alone: a request that names another member is passed on to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from warren.mgmt.http.errors import ObjectNotFound
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.peers import peers_of

Handler: TypeAlias = Callable[[ApiRequest], Awaitable[Any]]


def at_node(path: str, handler: Handler) -> Handler:
    """Have the node that is called `{node}` in the path answer; `peers()` must know the endpoint.

    The answer may be no `Reply`, which is not for other nodes.
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

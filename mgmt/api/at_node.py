"""Endpoints that each node answers for itself.

`at_node` passes a request that names another member of the cluster in its path on to that member.
`from_any` asks one member after the other, where any of them may have the object of the path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from warren.core.errors import BrokerError
from warren.mgmt.http.errors import ApiError, ObjectNotFound
from warren.mgmt.http.request import ApiRequest

Handler: TypeAlias = Callable[[ApiRequest], Awaitable[Any]]


def at_node(path: str, handler: Handler) -> Handler:
    """A handler that has the node in the path, `{node}`, answer the request with `handler`.

    `join_peers()` in `endpoints.py` must list the endpoint, or the other node would refuse the
    request. The answer must not be an `HttpReply`, as nodes cannot send one another those.
    """

    async def answer(request: ApiRequest) -> Any:
        name = request.http.match_info.get("node", request.node.name)
        if name == request.node.name:
            return await handler(request)
        peers = request.peers
        if peers is None or name not in peers.members():
            raise ObjectNotFound()
        method = "GET" if request.http.method == "HEAD" else request.http.method
        return await peers.ask(name, request, path, {"node": name}, method=method)

    return answer


async def from_any(
    request: ApiRequest,
    path: str,
    *,
    method: str = "GET",
    query: Mapping[str, str] | None = None,
) -> Any:
    """The answer of the other node that has the object of the path. Raises `ObjectNotFound`.
    `query` is added to the query of the request.

    The refusal of a node is passed on: the object exists, and the user may not see it.
    """
    peers = request.peers
    refused: ApiError | None = None
    parts = dict(request.http.match_info)
    for node in peers.linked() if peers is not None else ():
        assert peers is not None
        try:
            return await peers.ask(node, request, path, parts, method=method, query=query)
        except ApiError as error:
            if error.status != 404:
                refused = error
        except BrokerError:
            continue
    raise refused or ObjectNotFound()

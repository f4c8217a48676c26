"""What operators have the node do: forget its statistics, spread its queues."""

from __future__ import annotations

from warren.mgmt.api.changes import audit
from warren.mgmt.api.overview import check_node
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.waiting import through


async def reset_statistics(request: ApiRequest) -> None:
    """Rates and samples begin anew; counts stay, for they are the node's own."""
    if "node" in request.http.match_info:
        check_node(request)
    request.managed.statistics.reset()
    audit(request, "statistics_reset")


async def rebalance_queues(request: ApiRequest) -> None:
    """Spread mirrored queues over the nodes; a node that is alone has all of them."""
    cluster = request.managed.cluster
    if cluster is not None:
        await through(cluster.mirroring.hand_overs.rebalance())


ENDPOINTS = [
    Endpoint(
        "/reset", {"DELETE": reset_statistics}, Right.ADMINISTRATOR, summary="Forget statistics"
    ),
    Endpoint(
        "/reset/{node}",
        {"DELETE": reset_statistics},
        Right.ADMINISTRATOR,
        summary="Forget statistics of a node",
    ),
    Endpoint(
        "/rebalance/queues",
        {"POST": rebalance_queues},
        Right.ADMINISTRATOR,
        summary="Spread queue leaders over the nodes",
    ),
]

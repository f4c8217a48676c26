"""Maintenance of a node: resetting its statistics, spreading queues over the nodes."""

from __future__ import annotations

from collections import Counter

from warren.core.patterns.pattern import InvalidPattern, compile_pattern
from warren.core.queues.queue_type import QUORUM, STREAM
from warren.mgmt.api.changes import audit
from warren.mgmt.api.overview import check_node
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.listing import Row
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.queue_members import leader_of, queues_with_members
from warren.mgmt.waiting import through

REBALANCED = ("all", "classic", "quorum")
"""The values of `type`, as RabbitMQ's tool names them."""

ANY_NAME = ".*"


async def reset_statistics(request: ApiRequest) -> None:
    """Forget rates and samples. Counts stay, as they belong to the node itself."""
    if "node" in request.http.match_info:
        check_node(request)
    request.managed.statistics.reset()
    audit(request, "statistics_reset")


async def rebalance_queues(request: ApiRequest) -> list[Row] | None:
    """Spread the leaders of queues that have copies over the nodes; a lone node keeps them all.

    `vhost_pattern`, `queue_pattern` and `type` in the body limit this to some queues, and the
    answer to a request with a body is how many queues each node leads afterwards. Without a body
    the answer is empty, as RabbitMQ's.
    """
    body = await request.body()
    kind = body.get("type", "all")
    if kind not in REBALANCED:
        raise BadRequest(f"type {kind} is not supported. Try one of {', '.join(REBALANCED)}.")
    patterns = [body.get(name, ANY_NAME) for name in ("vhost_pattern", "queue_pattern")]
    if not all([isinstance(pattern, str) for pattern in patterns]):
        raise BadRequest("patterns should be strings")
    cluster = request.managed.cluster
    try:
        for pattern in patterns:
            compile_pattern(pattern)
        quorum = _quorum_leads(request, *patterns) if kind != "classic" else Counter()
        leads: dict[str, int] = {}
        if cluster is not None:
            rebalance = cluster.mirroring.hand_overs.rebalance
            if kind != "quorum":
                leads = await through(rebalance(*patterns))
            if kind != "classic":
                vhosts, queues = patterns
                quorum = Counter(await through(rebalance(vhosts, queues, QUORUM)))
            if kind == "all":
                await through(rebalance(patterns[0], patterns[1], STREAM))
    except InvalidPattern as error:
        raise BadRequest(["invalid_regexp", error.pattern, error.reason]) from error
    audit(request, "queues_rebalanced")
    if not body:
        return None
    return [
        {"node": node, "classic": leads.get(node, 0), "quorum": quorum.get(node, 0)}
        for node in sorted({*leads, *quorum})
    ]


def _quorum_leads(request: ApiRequest, vhosts: str, queues: str) -> Counter[str]:
    """How many quorum queues with matching names each node leads."""
    in_vhosts, named = compile_pattern(vhosts), compile_pattern(queues)
    return Counter(
        leader_of(request.managed, queue)
        for queue in queues_with_members(request.managed, {QUORUM})
        if in_vhosts.search(queue.vhost_name) and named.search(queue.name)
    )


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

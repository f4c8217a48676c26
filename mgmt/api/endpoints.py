"""All endpoints, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warren.mgmt.api import (
    auth_attempts,
    bindings,
    connections,
    consumers,
    control,
    definitions,
    delayed,
    exchanges,
    feature_flags,
    federation,
    health,
    holders,
    limits,
    looking,
    maintenance,
    members,
    message_jobs,
    messages,
    openapi,
    overview,
    parameters,
    permissions,
    policies,
    processes,
    queues,
    quorum,
    session,
    shovels,
    snapshots,
    streams,
    trace,
    unclaimed,
    users,
    vhosts,
)
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.passed_requests import PassedRequests
from warren.mgmt.peers import Peers

if TYPE_CHECKING:
    from warren.cluster import Cluster


def join_peers(managed: ManagedNode, cluster: Cluster) -> PassedRequests:
    """Have a node ask the others, and answer them by those endpoints that they may use here."""
    managed.peers = Peers(managed.name, cluster)
    return PassedRequests(
        managed,
        cluster.calls,
        [
            *overview.ENDPOINTS,
            *queues.ENDPOINTS,
            *queues.FOR_NODES,
            *looking.ENDPOINTS,
            *holders.FOR_NODES,
            *message_jobs.ENDPOINTS,
            *exchanges.ENDPOINTS,
            *exchanges.FOR_NODES,
            *delayed.ENDPOINTS,
            *vhosts.ENDPOINTS,
            *connections.ENDPOINTS,
            *consumers.ENDPOINTS,
            *members.ENDPOINTS,
            *shovels.ENDPOINTS,
            *federation.ENDPOINTS,
            *quorum.ENDPOINTS,
            *streams.ENDPOINTS,
            *snapshots.FOR_NODES,
            *trace.ENDPOINTS,
            *health.ENDPOINTS,
            *auth_attempts.ENDPOINTS,
        ],
    )


def all_endpoints(log_in: session.LogIn) -> list[Endpoint]:
    endpoints = [
        *session.endpoints(log_in),
        *overview.ENDPOINTS,
        *queues.ENDPOINTS,
        *exchanges.ENDPOINTS,
        *delayed.ENDPOINTS,
        *bindings.ENDPOINTS,
        *messages.ENDPOINTS,
        *looking.ENDPOINTS,
        *message_jobs.ENDPOINTS,
        *connections.ENDPOINTS,
        *consumers.ENDPOINTS,
        *vhosts.ENDPOINTS,
        *users.ENDPOINTS,
        *permissions.ENDPOINTS,
        *policies.ENDPOINTS,
        *parameters.ENDPOINTS,
        *limits.ENDPOINTS,
        *definitions.ENDPOINTS,
        *health.ENDPOINTS,
        *processes.ENDPOINTS,
        *feature_flags.ENDPOINTS,
        *auth_attempts.ENDPOINTS,
        *maintenance.ENDPOINTS,
        *control.ENDPOINTS,
        *quorum.ENDPOINTS,
        *streams.ENDPOINTS,
        *unclaimed.ENDPOINTS,
        *members.ENDPOINTS,
        *shovels.ENDPOINTS,
        *federation.ENDPOINTS,
        *snapshots.ENDPOINTS,
        *trace.ENDPOINTS,
    ]

    async def describe(request: ApiRequest) -> Any:
        return openapi.description(endpoints)

    endpoints.append(Endpoint("/openapi.json", {"GET": describe}, summary="This description"))
    return endpoints

"""All endpoints, in one place."""

from __future__ import annotations

from typing import Any

from warren.mgmt.api import (
    auth_attempts,
    bindings,
    connections,
    consumers,
    control,
    definitions,
    exchanges,
    feature_flags,
    health,
    limits,
    maintenance,
    messages,
    openapi,
    overview,
    parameters,
    permissions,
    policies,
    queues,
    session,
    users,
    vhosts,
)
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.request import ApiRequest


def all_endpoints(log_in: session.LogIn) -> list[Endpoint]:
    endpoints = [
        *session.endpoints(log_in),
        *overview.ENDPOINTS,
        *queues.ENDPOINTS,
        *exchanges.ENDPOINTS,
        *bindings.ENDPOINTS,
        *messages.ENDPOINTS,
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
        *feature_flags.ENDPOINTS,
        *auth_attempts.ENDPOINTS,
        *maintenance.ENDPOINTS,
        *control.ENDPOINTS,
    ]

    async def describe(request: ApiRequest) -> Any:
        return openapi.description(endpoints)

    endpoints.append(Endpoint("/openapi.json", {"GET": describe}, summary="This description"))
    return endpoints

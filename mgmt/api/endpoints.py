"""All endpoints, in one place."""

from __future__ import annotations

from warren.mgmt.api import (
    bindings,
    connections,
    consumers,
    exchanges,
    messages,
    overview,
    queues,
    session,
)
from warren.mgmt.http.endpoint import Endpoint


def all_endpoints(log_in: session.LogIn) -> list[Endpoint]:
    return [
        *session.endpoints(log_in),
        *overview.ENDPOINTS,
        *queues.ENDPOINTS,
        *exchanges.ENDPOINTS,
        *bindings.ENDPOINTS,
        *messages.ENDPOINTS,
        *connections.ENDPOINTS,
        *consumers.ENDPOINTS,
    ]

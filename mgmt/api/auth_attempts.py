"""The number of logins of each protocol (management_api.md section 2)."""

from __future__ import annotations

from typing import Any

from warren.mgmt.api.at_node import at_node
from warren.mgmt.api.changes import audit
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.listing import answer_rows
from warren.mgmt.http.request import ApiRequest


async def list_attempts(request: ApiRequest) -> Any:
    rows = [
        {
            "protocol": protocol,
            "auth_attempts": counts.succeeded + counts.failed,
            "auth_attempts_failed": counts.failed,
            "auth_attempts_succeeded": counts.succeeded,
        }
        for protocol, counts in sorted(request.node.counts.logins.items())
    ]
    return await answer_rows(request, rows)


async def list_attempts_by_source(request: ApiRequest) -> Any:
    """Always empty: RabbitMQ counts by address only if it is configured to."""
    return []


async def forget_attempts(request: ApiRequest) -> None:
    request.node.counts.logins.clear()
    audit(request, "auth_attempts_reset")


async def forget_attempts_by_source(request: ApiRequest) -> None:
    """Does nothing: there are no counts by address."""


BY_PROTOCOL = "/auth/attempts/{node}"
BY_SOURCE = "/auth/attempts/{node}/source"

ENDPOINTS = [
    Endpoint(
        BY_PROTOCOL,
        {
            "GET": at_node(BY_PROTOCOL, list_attempts),
            "DELETE": at_node(BY_PROTOCOL, forget_attempts),
        },
        Right.MONITOR,
        summary="Logins of each protocol",
    ),
    Endpoint(
        BY_SOURCE,
        {
            "GET": at_node(BY_SOURCE, list_attempts_by_source),
            "DELETE": at_node(BY_SOURCE, forget_attempts_by_source),
        },
        Right.MONITOR,
        summary="Logins of each address",
    ),
]

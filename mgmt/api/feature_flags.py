"""Feature flags of RabbitMQ 3.10: all are on, as Warren has the features they stand for."""

from __future__ import annotations

from typing import Any

from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.listing import answer_rows
from warren.mgmt.http.request import ApiRequest

BROKER = "rabbit"
MANAGEMENT = "rabbitmq_management_agent"

FLAGS = {
    "classic_mirrored_queue_version": (BROKER, "Mirrored queues have versions"),
    "drop_unroutable_metric": (MANAGEMENT, "Messages dropped as unroutable are counted"),
    "empty_basic_get_metric": (MANAGEMENT, "Fetches from empty queues are counted"),
    "implicit_default_bindings": (BROKER, "Bindings to the default exchange are not stored"),
    "maintenance_mode_status": (BROKER, "Nodes tell whether they are in maintenance"),
    "quorum_queue": (BROKER, "Quorum queues are known"),
    "stream_queue": (BROKER, "Streams are known"),
    "user_limits": (BROKER, "Users have limits"),
    "virtual_host_metadata": (BROKER, "Virtual hosts have descriptions and tags"),
}
"""Each flag's provider and description."""


async def list_flags(request: ApiRequest) -> Any:
    rows = [
        {
            "name": name,
            "desc": description,
            "doc_url": "",
            "state": "enabled",
            "stability": "stable",
            "provided_by": provider,
        }
        for name, (provider, description) in FLAGS.items()
    ]
    return await answer_rows(request, rows)


async def enable(request: ApiRequest) -> None:
    if request.name("name") not in FLAGS:
        raise BadRequest("unsupported")


ENDPOINTS = [
    Endpoint("/feature-flags", {"GET": list_flags}, Right.ADMINISTRATOR, summary="Feature flags"),
    Endpoint(
        "/feature-flags/{name}/enable",
        {"PUT": enable},
        Right.ADMINISTRATOR,
        summary="Enable a feature flag",
    ),
]

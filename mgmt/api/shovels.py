"""The shovels of all nodes of the cluster: their state, restart and deletion.

A shovel is made and changed as a runtime parameter (`parameters.py`).
"""

from __future__ import annotations

from typing import Any

from warren.core.errors import BrokerError
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import ApiError, ObjectNotFound
from warren.mgmt.http.listing import Row, answer_row, answer_rows
from warren.mgmt.http.request import ApiRequest
from warren.shovel.shovels import COMPONENT


async def list_shovels(request: ApiRequest) -> Any:
    visible = {vhost.name for vhost in request.seen_vhosts()}
    return await answer_rows(
        request, [row for row in await _rows(request) if row["vhost"] in visible]
    )


async def list_of_vhost(request: ApiRequest) -> Any:
    vhost = request.seen_vhost().name
    return await answer_rows(
        request, [row for row in await _rows(request) if row["vhost"] == vhost]
    )


async def get_shovel(request: ApiRequest) -> Any:
    vhost, name = request.seen_vhost().name, request.name("name")
    for row in await _rows(request):
        if (row["vhost"], row["name"]) == (vhost, name):
            return answer_row(request, row)
    raise ObjectNotFound()


async def delete_shovel(request: ApiRequest) -> None:
    vhost, name = request.vhost_of_policies().name, request.name("name")
    # Raises NotThere, which is answered with 404.
    request.node.parameters.clear(COMPONENT, vhost, name)
    audit(request, "parameter_cleared", vhost=vhost, component=COMPONENT, name=name)
    await durable(request)


async def restart_shovel(request: ApiRequest) -> None:
    vhost, name = request.vhost_of_policies().name, request.name("name")
    shovels = request.managed.shovels
    node = shovels.node_of(vhost, name)
    if node is None:
        raise ObjectNotFound()
    if not shovels.restart(vhost, name):
        await _restart_at(request, node)
    audit(request, "shovel_restarted", vhost=vhost, name=name)


async def _restart_at(request: ApiRequest, node: str) -> None:
    peers = request.peers
    try:
        if peers is None or node not in peers.linked():
            raise BrokerError(f"node '{node}' cannot be reached")
        await peers.ask(node, request, RESTART, dict(request.http.match_info), method="DELETE")
    except BrokerError as error:
        raise ApiError(503, "unavailable", error.text) from error


async def _rows(request: ApiRequest) -> list[Row]:
    """All shovels, as their nodes report them; if one does not answer, as far as known here."""
    shovels = request.managed.shovels
    if request.passed:
        return shovels.rows()
    rows = {(row["vhost"], row["name"]): row for row in shovels.all_rows()}
    peers = request.peers
    if peers is not None:
        for answered in (await peers.ask_all(request, "/shovels")).values():
            rows |= {(row["vhost"], row["name"]): row for row in answered}
    return [rows[key] for key in sorted(rows)]


RESTART = "/shovels/vhost/{vhost}/{name}/restart"

ENDPOINTS = [
    Endpoint("/shovels", {"GET": list_shovels}, Right.MONITOR, summary="All shovels"),
    Endpoint("/shovels/{vhost}", {"GET": list_of_vhost}, Right.MONITOR, "Shovels of a vhost"),
    Endpoint(
        "/shovels/vhost/{vhost}/{name}",
        {"GET": get_shovel, "DELETE": delete_shovel},
        Right.MONITOR,
        summary="One shovel",
        rights={"DELETE": Right.POLICYMAKER},
    ),
    Endpoint(RESTART, {"DELETE": restart_shovel}, Right.POLICYMAKER, summary="Restarts a shovel"),
]

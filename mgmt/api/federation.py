"""The federation links of all nodes of the cluster: their state, and their restart.

Policies and the runtime parameters of upstreams decide which links exist.
"""

from __future__ import annotations

from typing import Any

from warren.core.errors import BrokerError
from warren.federation.status import DOWN
from warren.mgmt.api.changes import audit
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import ApiError, ObjectNotFound
from warren.mgmt.http.listing import Row, answer_rows
from warren.mgmt.http.request import ApiRequest

DOWN_STATES = {state.value for state in DOWN}


async def list_links(request: ApiRequest) -> Any:
    return await answer_rows(request, await _visible(request))


async def list_down_links(request: ApiRequest) -> Any:
    return await answer_rows(request, _down(await _visible(request)))


async def list_of_vhost(request: ApiRequest) -> Any:
    return await answer_rows(request, await _of_vhost(request))


async def list_down_of_vhost(request: ApiRequest) -> Any:
    return await answer_rows(request, _down(await _of_vhost(request)))


async def restart_link(request: ApiRequest) -> None:
    vhost = request.vhost_of_policies().name
    link_id, node = request.name("id"), request.name("node")
    if node == request.node.name:
        if not request.managed.federation.restart(vhost, link_id):
            raise ObjectNotFound()
    else:
        await _restart_at(request, node)
    audit(request, "federation_link_restarted", vhost=vhost, id=link_id, node=node)


async def _restart_at(request: ApiRequest, node: str) -> None:
    peers = request.peers
    if peers is None or node not in peers.members():
        raise ObjectNotFound()
    try:
        if node not in peers.linked():
            raise BrokerError(f"node '{node}' cannot be reached")
        await peers.ask(node, request, RESTART, dict(request.http.match_info), method="DELETE")
    except BrokerError as error:
        raise ApiError(503, "unavailable", error.text) from error


async def _visible(request: ApiRequest) -> list[Row]:
    visible = {vhost.name for vhost in request.seen_vhosts()}
    return [row for row in await _rows(request) if row["vhost"] in visible]


async def _of_vhost(request: ApiRequest) -> list[Row]:
    vhost = request.seen_vhost().name
    return [row for row in await _rows(request) if row["vhost"] == vhost]


def _down(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["status"] in DOWN_STATES]


async def _rows(request: ApiRequest) -> list[Row]:
    """The links of all nodes; each node knows its own."""
    rows = request.managed.federation.rows()
    peers = request.peers
    if peers is not None:
        for answered in (await peers.ask_all(request, "/federation-links")).values():
            rows += answered
    return sorted(rows, key=_order)


def _order(row: Row) -> tuple[str, ...]:
    return row["vhost"], row["type"], row[row["type"]], row["upstream"], row["node"]


RESTART = "/federation-links/vhost/{vhost}/{id}/{node}/restart"

ENDPOINTS = [
    Endpoint(
        "/federation-links", {"GET": list_links}, Right.MONITOR, summary="All federation links"
    ),
    Endpoint(
        "/federation-links/state/down",
        {"GET": list_down_links},
        Right.MONITOR,
        summary="Federation links that are down",
    ),
    Endpoint(
        "/federation-links/{vhost}",
        {"GET": list_of_vhost},
        Right.MONITOR,
        summary="Federation links of a vhost",
    ),
    Endpoint(
        "/federation-links/{vhost}/state/down",
        {"GET": list_down_of_vhost},
        Right.MONITOR,
        summary="Federation links of a vhost that are down",
    ),
    Endpoint(
        RESTART, {"DELETE": restart_link}, Right.POLICYMAKER, summary="Restarts a federation link"
    ),
]

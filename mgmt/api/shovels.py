"""Shovels: how they are, and to restart or delete them, at whatever node of the cluster they run.

A shovel is made and changed as a runtime parameter (`parameters.py`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from warren.core.errors import BrokerError
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.api.queues import queue_of
from warren.mgmt.api.validation_texts import told_of_validation
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import ApiError, ObjectNotFound
from warren.mgmt.http.listing import Row, answer_row, answer_rows
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.peers import peers_of
from warren.mgmt.waiting import taken
from warren.shovel.definition import QUEUE_LENGTH
from warren.shovel.redrive import Back, Death
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


async def redrive(request: ApiRequest) -> Any:
    """Have a shovel send what is in a queue back to where it came from; it ends when that is done.

    What cannot go back stays in the queue.
    """
    vhost, queue = queue_of(request)
    request.vhost_of_policies()
    body = await request.body()
    wanted = {
        "dest-redrive": body.get("to", Back.EXCHANGE.value),
        "dest-redrive-death": body.get("death", Death.LAST.value),
        "src-delete-after": body.get("limit", QUEUE_LENGTH),
    }
    uri = f"amqp:///{quote(vhost.name, safe='')}"
    value = {"src-uri": uri, "src-queue": queue.name, "dest-uri": uri, **wanted}
    name = f"Redrive of {queue.name}"
    user = None if request.caller.local else request.caller.user
    with told_of_validation(escape=True):
        parameters = request.node.parameters
        await taken(lambda: parameters.set(COMPONENT, vhost.name, name, value, user))
    audit(request, "redrive_begun", vhost=vhost.name, queue=queue.name, **body)
    await durable(request)
    return {"shovel": name}


async def _restart_at(request: ApiRequest, node: str) -> None:
    peers = peers_of(request)
    try:
        if peers is None or node not in peers.linked():
            raise BrokerError(f"node '{node}' cannot be reached")
        await peers.ask(node, request, RESTART, dict(request.http.match_info), method="DELETE")
    except BrokerError as error:
        raise ApiError(503, "unavailable", error.text) from error


async def _rows(request: ApiRequest) -> list[Row]:
    """Each node knows its own; those of nodes that do not answer are known by their parameters."""
    shovels = request.managed.shovels
    if request.passed:
        return shovels.rows()
    rows = {(row["vhost"], row["name"]): row for row in shovels.all_rows()}
    peers = peers_of(request)
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
    Endpoint(
        "/queues/{vhost}/{queue}/redrive",
        {"POST": redrive},
        Right.POLICYMAKER,
        summary="Sends dead letters back to where they came from",
    ),
    Endpoint(RESTART, {"DELETE": restart_shovel}, Right.POLICYMAKER, summary="Restarts a shovel"),
]

"""The members of the cluster, for `warren ctl`: listing them, forgetting one, stopping this one."""

from __future__ import annotations

import platform
from contextlib import suppress
from typing import Any

from warren import __version__
from warren.core.errors import NotFound
from warren.mgmt.api.changes import audit
from warren.mgmt.api.control import listener_rows
from warren.mgmt.api.overview import cluster_name
from warren.mgmt.api.processes import expect_no_process, list_processes
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.errors import ApiError, ObjectNotFound
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.rabbitmq_version import RABBITMQ_VERSION

STATUS = "/control/cluster-status"


async def cluster_status(request: ApiRequest) -> Any:
    """The status with RabbitMQ's names; other nodes are asked for their own part."""
    status = _own_status(request)
    peers = request.peers
    if peers is None:
        return status
    if request.managed.config.process is not None:
        with suppress(NotFound):
            status["processes"] = await list_processes(request)
    for other in (await peers.ask_all(request, STATUS)).values():
        status["running_nodes"] += other["running_nodes"]
        for name in ("versions", "maintenance_status", "listeners"):
            status[name].update(other[name])
    status["running_nodes"].sort()
    status["disk_nodes"] = peers.members()
    silent = sorted(set(peers.up()) - set(status["running_nodes"]))
    if silent:
        # These nodes run according to etcd, and do not answer this node.
        status["partitions"] = {request.node.name: silent}
    return status


def _own_status(request: ApiRequest) -> dict[str, Any]:
    managed, name = request.managed, request.node.name
    under = managed.suspended or managed.drained
    maintained = "under maintenance" if under else "not under maintenance"
    return {
        "cluster_name": cluster_name(managed),
        "disk_nodes": [name],
        "ram_nodes": [],
        "running_nodes": [] if managed.paused else [name],
        "versions": {
            name: {
                "rabbitmq_version": RABBITMQ_VERSION,
                "erlang_version": f"Python {platform.python_version()}",
                "product_name": "Warren",
                "product_version": __version__,
            }
        },
        "maintenance_status": {name: maintained},
        "alarms": [
            {"node": alarm.node, "resource": alarm.resource.value}
            for alarm in managed.node.alarms.in_effect()
        ],
        "partitions": {},
        "listeners": {name: listener_rows(managed)},
    }


async def members(request: ApiRequest) -> Any:
    """The members of the cluster, and as `linked` those that this node can reach, itself included.

    A node that has paused reaches none.
    """
    peers = request.managed.peers
    name = request.node.name
    if peers is None:
        return {"members": [name], "linked": [name]}
    linked = [] if request.managed.paused else sorted([name, *peers.linked()])
    return {"members": peers.members(), "linked": linked}


async def member_names(request: ApiRequest) -> Any:
    """The names of all members. Every management user may see them: rows of queues name nodes."""
    peers = request.managed.peers
    return {"members": [request.node.name] if peers is None else peers.members()}


async def forget(request: ApiRequest) -> None:
    """Remove a node from the cluster. Raises `ApiError`: 404 for no member, 409 if it is up."""
    name, cluster = request.name("node"), request.managed.cluster
    if cluster is None:
        raise ObjectNotFound()
    await expect_no_process(request, name)
    refusal = await cluster.forget(name)
    if refusal is not None:
        raise ApiError(refusal.status, "not_forgotten", refusal.reason)
    audit(request, "cluster_node_forgotten", node=name)


async def state(request: ApiRequest) -> Any:
    return {"state": "paused" if request.managed.paused else "running"}


async def stop_app(request: ApiRequest) -> Any:
    """Have the node stop, but not its process; the answer is sent before it stops."""
    audit(request, "node_stop_wanted", process="stays")
    request.managed.stop_app()
    return {"state": "stopping"}


async def running_already(request: ApiRequest) -> Any:
    return {"state": "running"}


async def must_be_stopped(request: ApiRequest) -> Any:
    raise ApiError(409, "app_running", f"node {request.node.name} is running")


ENDPOINTS = [
    Endpoint("/members", {"GET": member_names}, summary="The names of the members of the cluster"),
    Endpoint(STATUS, {"GET": cluster_status}, Right.MONITOR, "The cluster as `ctl` has it"),
    Endpoint("/control/members", {"GET": members}, Right.MONITOR, "Members of the cluster"),
    Endpoint("/control/members/{node}", {"DELETE": forget}, Right.LOCAL, "Forget a member"),
    Endpoint("/control/app", {"GET": state}, Right.LOCAL, "Whether the node runs"),
    Endpoint("/control/app/stop", {"POST": stop_app}, Right.LOCAL, "Stop all but the process"),
    Endpoint("/control/app/start", {"POST": running_already}, Right.LOCAL, "Start it again"),
    Endpoint("/control/reset", {"POST": must_be_stopped}, Right.LOCAL, "Forget everything"),
    Endpoint("/control/join", {"POST": must_be_stopped}, Right.LOCAL, "Join a cluster"),
]

"""The cluster: its members, joining and leaving it, stopping a node without ending its process."""

from __future__ import annotations

from typing import Any, NoReturn

import click

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, flag, several
from warren.mgmt.ctl.errors import CtlError, Exit, NeedsLocal, RequestRefused
from warren.mgmt.ctl.formats import Answer, Document, cell, sections
from warren.mgmt.ctl.node import NONE, Polling, alarm_lines, listener_lines

START_S = 300.0
"""Time for a node to stop or start; it may have much to write, or to recover."""

NOT_NEEDED = {
    "change_cluster_node_type": "every node of this broker's clusters keeps its data on disk, and"
    " there is no other type",
    "rename_cluster_node": "a node is known by its data directory: have the cluster forget the old"
    " name with forget_cluster_node, and start it under the new one with an empty data directory",
    "update_cluster_nodes": "nodes learn from etcd who is in the cluster whenever they start",
}


# Looking at the cluster


@command("cluster_status", "Show the nodes of the cluster.")
def cluster_status(call: CommandCall) -> Answer:
    call.announce(f"Cluster status of node {call.node} ...")
    said = call.client.get("control", "cluster-status")
    flags = call.client.get("feature-flags")
    return Document(sections(_sections(said, flags)), {**said, "feature_flags": flags})


def _sections(said: dict[str, Any], flags: list[dict[str, Any]]) -> dict[str, list[str]]:
    versions, maintenance = said["versions"], said["maintenance_status"]
    listeners = [one for node in sorted(said["listeners"]) for one in said["listeners"][node]]
    return {
        "Basics": [f"Cluster name: {said['cluster_name']}"],
        "Disk Nodes": said["disk_nodes"],
        "Running Nodes": said["running_nodes"],
        "Versions": [
            f"{node}: {version['product_name']} {version['product_version']}"
            f" (RabbitMQ {version['rabbitmq_version']}) on {version['erlang_version']}"
            for node, version in sorted(versions.items())
        ],
        "Maintenance status": [
            f"Node: {node}, status: {status}" for node, status in sorted(maintenance.items())
        ],
        "Alarms": alarm_lines(said["alarms"]) or NONE,
        "Network Partitions": [
            f"Node {node} cannot communicate with {', '.join(others)}"
            for node, others in said["partitions"].items()
        ]
        or NONE,
        **({"Processes": process_lines(said["processes"])} if "processes" in said else {}),
        "Listeners": listener_lines(listeners, with_node=True),
        "Feature flags": [f"Flag: {one['name']}, state: {cell(one['state'])}" for one in flags],
    }


def process_lines(processes: list[dict[str, Any]]) -> list[str]:
    """The processes' states; for those that have ended, how often and the last reason, too."""
    return [
        f"Process: {one['number']}, node: {one['node']}, state: {one['state']}"
        + (f", deaths: {one['deaths']}, last {one['reason']}" if one["deaths"] else "")
        for one in processes
    ]


@command(
    "await_online_nodes",
    "Wait until so many nodes of the cluster run.",
    argument("count", type=click.IntRange(min=1)),
)
def await_online_nodes(call: CommandCall, count: int) -> Answer:
    until = Polling(call, START_S, Exit.SOFTWARE)
    call.announce(
        f"Will wait for at least {count} nodes to join the cluster of {call.node}."
        f" Timeout: {until.patience_s:g} seconds."
    )
    until.true(lambda: len(call.client.get("control", "members")["linked"]) >= count)
    return None


# Members

LEASE_S = 120.0
"""How long to wait, without --timeout, until a dead node counts as down. It does when its lease
ends, after `cluster.lease_ttl`, which is shorter in most clusters."""


@command(
    "forget_cluster_node",
    "Remove a node that has stopped for good, with the queues that only it has.",
    argument("node_name"),
    flag("--offline", help="Refused: a running node of the cluster is asked."),
)
def forget_cluster_node(call: CommandCall, node_name: str, offline: bool) -> Answer:
    if offline:
        raise CtlError(
            "--offline is not needed here: etcd knows the members, so ask any node that runs",
            Exit.USAGE,
        )
    call.announce(f"Removing node {node_name} from the cluster")

    def is_removed() -> bool:
        """False while a dead node still counts as running, for some seconds."""
        try:
            call.client.delete("control", "members", node_name)
        except RequestRefused as refusal:
            if refusal.status == 404:
                raise CtlError("The node selected is not in the cluster.") from refusal
            if refusal.status != 409:
                raise
            if node_name in call.client.get("control", "members")["linked"]:
                raise CtlError(
                    f"RabbitMQ on node {node_name} must be stopped with 'warren ctl -n {node_name}"
                    " stop_app' before it can be removed"
                ) from refusal
            return False
        return True

    Polling(call, LEASE_S, Exit.SOFTWARE).true(is_removed)
    return None


@command(
    "join_cluster",
    "Check that the next start joins the cluster of a node; needs stop_app before.",
    argument("node_name"),
    flag("--disc", help="The only type there is."),
    flag("--ram", help="Refused: there are no such nodes."),
)
def join_cluster(call: CommandCall, node_name: str, disc: bool, ram: bool) -> Answer:
    if ram:
        _not_needed("change_cluster_node_type")
    call.announce(f"Clustering node {call.node} with {node_name}")
    _expect_stopped(call)
    answer = _asked(call, "join", {"node": node_name})
    if answer["already_member"]:
        return "The node is already a member of this cluster"
    return None


def _not_needed(name: str) -> NoReturn:
    raise CtlError(f"{name} is not needed here: {NOT_NEEDED[name]}")


@command(
    "change_cluster_node_type", "Refused: there is one type of nodes.", argument("type_of_node")
)
def change_cluster_node_type(call: CommandCall, type_of_node: str) -> Answer:
    _not_needed("change_cluster_node_type")


@command("rename_cluster_node", "Refused: a new name is a new node.", several("names"))
def rename_cluster_node(call: CommandCall, names: tuple[str, ...]) -> Answer:
    _not_needed("rename_cluster_node")


@command("update_cluster_nodes", "Refused: etcd knows the members.", argument("seed_node"))
def update_cluster_nodes(call: CommandCall, seed_node: str) -> Answer:
    _not_needed("update_cluster_nodes")


# Stopping and starting the node, but not its process


@command("stop_app", "Stop the node, but for its process and the control socket.")
def stop_app(call: CommandCall) -> Answer:
    call.announce(f"Stopping rabbit application on node {call.node} ...")
    _expect_local(call, "Stopping a node")
    process = call.client.peer_pid()
    call.client.post("control", "app", "stop")
    until = Polling(call, START_S, Exit.TIMEOUT)
    until.true(lambda: app_state(call).get("state") == "stopped", while_process=process)
    return None


@command("start_app", "Start a node that stop_app has stopped.")
def start_app(call: CommandCall) -> Answer:
    call.announce(f"Starting node {call.node} ...")
    _expect_local(call, "Starting a node")
    process = call.client.peer_pid()
    call.client.post("control", "app", "start")
    # The node closes this connection when it starts.
    call.client.close()

    def has_started() -> bool:
        state = app_state(call)
        if state.get("failure") and state["state"] == "stopped":
            raise CtlError(state["failure"])
        return state.get("state") == "running"

    Polling(call, START_S, Exit.SOFTWARE).true(has_started, while_process=process)
    return None


@command("reset", "Leave the cluster and delete all data; needs stop_app before.")
def reset(call: CommandCall) -> Answer:
    call.announce(f"Resetting node {call.node} ...")
    _expect_stopped(call)
    _asked(call, "reset", {"force": False})
    return None


@command("force_reset", "Delete all data, even if the cluster cannot be told.")
def force_reset(call: CommandCall) -> Answer:
    call.announce(f"Forcefully resetting node {call.node} ...")
    _expect_stopped(call)
    _asked(call, "reset", {"force": True})
    return None


def app_state(call: CommandCall) -> dict[str, Any]:
    """The state the node reports; empty while it changes between stopped and running."""
    try:
        state: dict[str, Any] = call.client.get("control", "app")
    except CtlError:
        call.client.close()
        return {}
    return state


def _asked(call: CommandCall, what: str, body: dict[str, Any]) -> Any:
    try:
        return call.client.post("control", what, body=body)
    except RequestRefused as refusal:
        raise CtlError(refusal.text, Exit.SOFTWARE) from refusal


def _expect_local(call: CommandCall, what: str) -> None:
    if not call.client.target.local:
        raise NeedsLocal(what)


def _expect_stopped(call: CommandCall) -> None:
    _expect_local(call, "This")
    if app_state(call).get("state") == "running":
        raise CtlError(
            f"The node is still running: {call.node}.\n"
            "Please stop the node with `warren ctl stop_app` first.",
            Exit.SOFTWARE,
        )

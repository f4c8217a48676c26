"""Health checks and other reports of a node's condition (ctl_commands.md section 3)."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import click

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, flag, option
from warren.mgmt.ctl.errors import CheckFailed, NodeUnreachable, RequestRefused, WrongUsage
from warren.mgmt.ctl.formats import Answer, Document, Table, sections
from warren.mgmt.ctl.node import (
    UNIT,
    alarm_lines,
    listener_lines,
    memory_lines,
    memory_shares,
)
from warren.mgmt.ctl.node import (
    is_running as node_runs,
)

CHECKS = ("health", "checks")
PERIODS = ("days", "weeks", "months", "years")
CONNECT_S = 10.0
ANY = {"0.0.0.0": "127.0.0.1", "[::]": "localhost", "": "localhost"}
"""The host to connect to for a listener at all addresses."""


def _status(call: CommandCall) -> dict[str, Any]:
    said = call.client.get("control", "status")
    assert isinstance(said, dict)
    return said


def _failing(call: CommandCall, *check: str) -> dict[str, Any] | None:
    """The failure that a health check reports; None if all is well."""
    is_well, said = _checked(call, *check)
    return None if is_well else said


def _checked(call: CommandCall, *check: str) -> tuple[bool, dict[str, Any]]:
    """Whether all is well, and what the health check says."""
    try:
        return True, dict(call.client.get(*CHECKS, *check))
    except RequestRefused as refused:
        if refused.status == 503:
            return False, dict(refused.answer)
        raise


# Running


def _not_running_text(node: str) -> str:
    return f"RabbitMQ on node {node} is not running or has not fully booted yet"


def _running_text(node: str) -> str:
    return f"RabbitMQ on node {node} is fully booted and running"


@command("check_running", "Check that the node runs.")
def check_running(call: CommandCall) -> Answer:
    call.announce(f"Checking if RabbitMQ is running on node {call.node} ...")
    if not node_runs(call):
        raise CheckFailed(_not_running_text(call.node))
    return _running_text(call.node)


@command("is_running", "Say whether the node runs.")
def is_running(call: CommandCall) -> Answer:
    try:
        node = call.node
    except NodeUnreachable as error:
        text = f"RabbitMQ is not running or has not fully booted yet ({error.text.splitlines()[1]})"
        return Document(text, {"result": False, "message": text})
    call.announce(f"Asking node {node} for its status ...")
    if not node_runs(call):
        text = _not_running_text(node)
        return Document(text, {"result": False, "node": node, "message": text})
    text = _running_text(node)
    return Document(text, {"result": True, "node": node, "message": text})


@command("is_booting", "Say whether the node is starting.")
def is_booting(call: CommandCall) -> Answer:
    """Always answer no: a node that answers has started, and one that does not answer may as well
    be stopped."""
    name = "the node"
    with suppress(NodeUnreachable):
        name = f"node {call.node}"
        call.announce(f"Asking {name} for its boot status ...")
    text = (
        f"RabbitMQ on {name} is fully booted (check with is_running), stopped or has not started"
        " booting yet"
    )
    return Document(text, {"result": False, "message": text})


@command("node_health_check", "Deprecated: check that the node runs and has no alarms.")
def node_health_check(call: CommandCall) -> Answer:
    call.announce(
        "This command is deprecated: check_running, check_local_alarms and others check one thing"
        f" each.\nChecking health of node {call.node} ..."
    )
    alarms = _local_alarms(call)
    if alarms:
        raise CheckFailed("\n".join(alarms))
    return "Health check passed"


@command("server_version", "Show the version the node tells clients.")
def server_version(call: CommandCall) -> Answer:
    call.announce(f"Asking node {call.node} for its RabbitMQ version...")
    version = _status(call)["rabbitmq_version"]
    return Document(version, {"result": "ok", "node": call.node, "value": version})


# Alarms


def _local_alarms(call: CommandCall) -> list[str]:
    said = _status(call)
    return alarm_lines([one for one in said["alarms"] if one["node"] == said["node"]])


@command("check_alarms", "Check that there are no alarms, here or elsewhere.")
def check_alarms(call: CommandCall) -> Answer:
    call.announce(f"Asking node {call.node} to report any local resource alarms ...")
    found = alarm_lines(_status(call)["alarms"])
    if found:
        local = _local_alarms(call)
        elsewhere = [alarm for alarm in found if alarm not in local]
        raise CheckFailed("\n".join(found), heading="", **{"local": local, "global": elsewhere})
    return f"Node {call.node} reported no alarms, local or clusterwide"


@command("check_local_alarms", "Check that the node has no alarms.")
def check_local_alarms(call: CommandCall) -> Answer:
    call.announce(f"Asking node {call.node} to report any local resource alarms ...")
    found = _local_alarms(call)
    if found:
        raise CheckFailed("\n".join(found))
    return f"Node {call.node} reported no local alarms"


@command("alarms", "Show alarms.")
def alarms(call: CommandCall) -> Answer:
    call.announce(f"Asking node {call.node} to report any known resource alarms ...")
    found = _status(call)["alarms"]
    nothing = f"Node {call.node} reported no alarms, local or clusterwide"
    text = "\n".join(alarm_lines(found)) or nothing
    return Document(text, {"result": "ok", "node": call.node, "alarms": found})


# Listeners


@command("listeners", "Show where the node listens.")
def listeners(call: CommandCall) -> Answer:
    call.announce(f"Asking node {call.node} to report its protocol listeners ...")
    found = _status(call)["listeners"]
    answer = {"result": "ok", "node": call.node, "listeners": found}
    return Document("\n".join(listener_lines(found)), answer)


@command(
    "check_port_connectivity",
    "Check that all ports can be connected to.",
    option("--address", metavar="HOST", help="Where, instead of the address of each listener."),
)
def check_port_connectivity(call: CommandCall, address: str | None) -> Answer:
    call.announce(f"Testing TCP connections to all active listeners on node {call.node} ...")
    found = _status(call)["listeners"]
    failed = [one for one in found if not _connects(call, one, address)]
    if failed:
        lines = "\n".join(listener_lines(failed))
        raise CheckFailed(f"Connection to ports of the following listeners failed:\n{lines}")
    ports = ", ".join(str(one["port"]) for one in found)
    return f"Successfully connected to ports {ports} on node {call.node}."


def _connects(call: CommandCall, listener: dict[str, Any], address: str | None) -> bool:
    host = address or _host(call, listener)
    timeout_s = call.options.timeout or CONNECT_S
    try:
        socket.create_connection((host, listener["port"]), timeout_s).close()
    except (OSError, UnicodeError):
        # The name of a host that is too long, or has an empty part, raises UnicodeError.
        return False
    return True


def _host(call: CommandCall, listener: dict[str, Any]) -> str:
    interface: str = listener["interface"]
    if not call.client.target.local:
        return urlsplit(call.options.url or "").hostname or ""
    return ANY.get(interface, interface.strip("[]"))


@command("check_port_listener", "Check that a port is open.", argument("port", type=int))
def check_port_listener(call: CommandCall, port: int) -> Answer:
    call.announce(f"Asking node {call.node} if there's an active listener on port {port} ...")
    failure = _failing(call, "port-listener", str(port))
    if failure is not None:
        ports = ", ".join(str(one) for one in failure["ports"])
        raise CheckFailed(
            f"No listener for port {port} is active on node {call.node}."
            f" Found listeners that use the following ports: {ports}",
            heading="",
        )
    return f"A listener for port {port} is running on node {call.node}."


@command("check_protocol_listener", "Check that a protocol is served.", argument("protocol"))
def check_protocol_listener(call: CommandCall, protocol: str) -> Answer:
    call.announce(
        f"Asking node {call.node} if there's an active listener for protocol {protocol} ..."
    )
    failure = _failing(call, "protocol-listener", protocol)
    if failure is not None:
        raise CheckFailed(
            f"No listener for protocol {protocol} is active on node {call.node}."
            f" Found listeners for the following protocols: {', '.join(failure['protocols'])}"
        )
    return f"A listener for protocol {protocol} is running on node {call.node}."


# Virtual hosts, certificates, replicas


@command("check_virtual_hosts", "Check that all virtual hosts run.")
def check_virtual_hosts(call: CommandCall) -> Answer:
    call.announce(f"Checking if all vhosts are running on node {call.node} ...")
    failure = _failing(call, "virtual-hosts")
    if failure is not None:
        down = ", ".join(failure["virtual-hosts"])
        raise CheckFailed(f"Some virtual hosts on node {call.node} are down: {down}")
    return f"Node {call.node} reported all vhosts as running"


@command(
    "check_certificate_expiration",
    "Check that no certificate expires soon.",
    option("--within", type=click.IntRange(min=1), default=4, metavar="N"),
    option("--unit", default="weeks", metavar="|".join(PERIODS)),
)
def check_certificate_expiration(call: CommandCall, within: int, unit: str) -> Answer:
    if unit not in PERIODS:
        raise WrongUsage(f"unit '{unit}' is not supported. Please use one of: {', '.join(PERIODS)}")
    call.announce(f"Checking certificate expiration on node {call.node} ...")
    failure = _failing(call, "certificate-expiration", str(within), unit)
    period = f"{within} {unit if within > 1 else unit[:-1]}"
    if failure is None:
        return f"No certificates are expiring within {period}."
    rows = failure.get("expired") or []
    lines = [line for row in rows for line in _certificate_lines(row)]
    raise CheckFailed("\n".join([f"{failure['reason']} within {period}:", *lines]))


def _certificate_lines(row: dict[str, Any]) -> list[str]:
    where = f"{row['interface']}:{row['port']} ({row['protocol']})"
    return [
        f"{where}: {row[key]} expires on {', '.join(row[f'{key}_expires_on'])}"
        for key in ("certfile", "cacertfile")
        if key in row
    ]


@command("certificates", "Show the certificate files of TLS listeners, and when they expire.")
def certificates(call: CommandCall) -> Answer:
    """Ask which certificates expire within 10,000 years: all of them do."""
    call.announce(f"Certificates of node {call.node} ...")
    failure = _failing(call, "certificate-expiration", "10000", "years")
    rows = failure.get("expired") or [] if failure is not None else []
    text = "\n".join(line for row in rows for line in _certificate_lines(row))
    return Document(text or "(none)", {"result": "ok", "node": call.node, "certificates": rows})


def _critical(call: CommandCall, check: str, well: str) -> Answer:
    is_well, said = _checked(call, check)
    if not is_well:
        queues = "".join([f"\n{row['readable_name']}" for row in said.get("queues", ())])
        raise CheckFailed(f"{said['reason']}{queues}")
    if "reason" not in said:
        return f"Node {call.node} reported {well}"
    return (
        f"Node {call.node} seems to be the only one in a single node cluster,"
        " the check does not apply"
    )


@command("check_if_node_is_mirror_sync_critical", "Check that no queue has its only copy here.")
def check_if_node_is_mirror_sync_critical(call: CommandCall) -> Answer:
    call.announce(
        f"Checking if node {call.node} is critical for data safety of any classic mirrored"
        " queues ..."
    )
    return _critical(
        call,
        "node-is-mirror-sync-critical",
        "no classic mirrored queues without a synchronised mirror",
    )


@command(
    "check_if_node_is_quorum_critical",
    "Check that no quorum queue or stream would lose its majority.",
)
def check_if_node_is_quorum_critical(call: CommandCall) -> Answer:
    call.announce(f"Checking if node {call.node} is critical for quorum of any quorum queues ...")
    return _critical(call, "node-is-quorum-critical", "no queues that need it for their quorum")


# Parts and resources of the node


@command("memory_breakdown", "Show where memory went.", UNIT)
def memory_breakdown(call: CommandCall, unit: str) -> Answer:
    call.announce(f"Reporting memory breakdown on node {call.node}...")
    memory = _status(call)["memory"]
    shares = {
        name: {"bytes": size, "percentage": share} for name, size, share in memory_shares(memory)
    }
    return Document("\n".join(memory_lines(memory, unit, "%")), shares)


@command("log_location", "Show where the node logs.", flag("-a", "--all"))
def log_location(call: CommandCall, all: bool) -> Answer:
    call.announce(f"Log file location(s) on node {call.node} ...")
    files = _status(call)["log_files"]
    shown = files if all else files[:1]
    return Document("\n".join(shown), {"result": "ok", "node": call.node, "paths": shown})


@command(
    "log_tail",
    "Show the last lines of the log.",
    option("-N", "--number", type=click.IntRange(min=0), default=50, metavar="LINES"),
)
def log_tail(call: CommandCall, number: int) -> Answer:
    call.announce(f"Last {number} log lines on node {call.node} ...")
    said = call.client.get("control", "log-tail", lines=str(number))
    return Document("\n".join(said["lines"]), said)


@command("list_network_interfaces", "Show the network interfaces of this machine.")
def list_network_interfaces(call: CommandCall) -> Answer:
    call.announce(f"Asking node {call.node} to report its network interfaces ...")
    found = call.client.get("control", "network-interfaces")
    parts = {
        f"Interface {name}": [f"{key}: {value}" for one in facts for key, value in one.items()]
        for name, facts in found.items()
    }
    return Document(sections(parts), found)


@command("os_env", "Show the environment variables the node reads.")
def os_env(call: CommandCall) -> Answer:
    call.announce(f"Listing RabbitMQ-specific environment variables defined on node {call.node}...")
    said = call.client.get("control", "os-env")
    return Document("\n".join(f"{name}={value}" for name, value in said.items()), said)


@command("command_line_arguments", "Show how the node was started.")
def command_line_arguments(call: CommandCall) -> Answer:
    call.announce(f"Command line arguments of node {call.node} ...")
    said = call.client.get("control", "command-line")
    return Document("\n".join(said), said)


@command(
    "list_node_auth_attempt_stats",
    "Show how many logins there were.",
    flag("--by-source", help="By address: always empty, since addresses are not kept."),
)
def list_node_auth_attempt_stats(call: CommandCall, by_source: bool) -> Answer:
    call.announce(f'Listing authentication attempts for node "{call.node}" ...')
    path = ("auth", "attempts", call.node, *(["source"] if by_source else []))
    rows = call.client.get(*path)
    if not rows and call.options.formatter == "table":
        return f"Node {call.node} reported no authentication attempt stats"
    columns = (
        "protocol", "auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded",
    )  # fmt: skip
    return Table(columns, [[row.get(column) for column in columns] for row in rows])

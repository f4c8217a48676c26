"""Health checks (management_api.md section 2.1): 200 when all is well, 503 when it is not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from warren.core.messages.message import Envelope
from warren.core.messages.message_observer import TracedClient
from warren.core.ports import Commit
from warren.core.resources.alarms import Alarm, Resource
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.api.at_node import at_node
from warren.mgmt.certificates import expiry_times
from warren.mgmt.http.endpoint import Endpoint, HttpReply
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.managed_node import OpenListener
from warren.mgmt.queue_members import is_critical, queues_with_members
from warren.mgmt.waiting import taken, through

DAY_S = 86_400
UNITS_S = {"days": DAY_S, "weeks": 7 * DAY_S, "months": 365 / 12 * DAY_S, "years": 365 * DAY_S}

RESOURCES = {
    Resource.MEMORY: "memory",
    Resource.DISK: "disk space",
    Resource.FAULT: "internal error",
}

ALIASES = {
    "amqp091": "amqp",
    "amqp0.9.1": "amqp",
    "amqp0-9-1": "amqp",
    "amqp10": "amqp",
    "amqp1.0": "amqp",
    "amqps": "amqp/ssl",
    "mqtt311": "mqtt",
    "mqtt3.1": "mqtt",
    "mqtt3.1.1": "mqtt",
    "mqtts": "mqtt/ssl",
    "mqtt+ssl": "mqtt/ssl",
    "stomp1.0": "stomp",
    "stomp1.1": "stomp",
    "stomp1.2": "stomp",
    "stomp10": "stomp",
    "stomp11": "stomp",
    "stomp12": "stomp",
    "stomps": "stomp/ssl",
    "stomp+ssl": "stomp/ssl",
    "web-mqtt": "http/web-mqtt",
    "web-mqtt/ssl": "https/web-mqtt",
    "web-stomp": "http/web-stomp",
    "web-stomp/ssl": "https/web-stomp",
    "management": "http",
    "distribution": "clustering",
}
"""Other names of protocols that a request may use."""

ALIVENESS_QUEUE = "aliveness-test"
ALIVENESS_BODY = b"test_message"

OK = {"status": "ok"}
CHECKS = "/health/checks"
MIRROR_SYNC_CRITICAL = f"{CHECKS}/node-is-mirror-sync-critical"
QUORUM_CRITICAL = f"{CHECKS}/node-is-quorum-critical"
NODE_HEALTH = "/healthchecks/node/{node}"


def _failed(reason: str, **more: object) -> HttpReply:
    return HttpReply(503, {"status": "failed", "reason": reason, **more})


# Alarms


async def alarms(request: ApiRequest) -> Any:
    in_effect = request.node.alarms.in_effect()
    return _alarms(in_effect, "There are alarms in effect in the cluster")


async def local_alarms(request: ApiRequest) -> Any:
    return _alarms(request.node.alarms.local(), "There are alarms in effect on the node")


def _alarms(in_effect: list[Alarm], reason: str) -> Any:
    if not in_effect:
        return OK
    shown = [{"resource": RESOURCES[alarm.resource], "node": alarm.node} for alarm in in_effect]
    return _failed(reason, alarms=shown)


# Certificates

LINKS = "clustering"


async def certificate_expiration(request: ApiRequest) -> Any:
    """Whether a certificate of a TLS listener or of the links between nodes has expired, or will
    within the time in the path."""
    within_s = _period_s(request.name("within"), request.name("unit"))
    deadline = request.node.clock.wall_time() + within_s
    expiring = []
    try:
        for listener in (*request.managed.listeners, *_link_listener(request)):
            times = _certificate_times(request, listener)
            if any(moment.timestamp() <= deadline for _, _, found in times for moment in found):
                expiring.append(_listener_row(request, listener, times))
    except (OSError, ValueError) as error:
        return _failed(f"Certificates cannot be read: {error}", expired=[])
    return _failed("Certificates expiring", expired=expiring) if expiring else OK


def _link_listener(request: ApiRequest) -> list[OpenListener]:
    """The listener for the links of other nodes, under RabbitMQ's name; empty if there is none."""
    managed = request.managed
    if managed.cluster is None or managed.config.cluster is None:
        return []
    host = managed.config.cluster.listener.host
    return [OpenListener(LINKS, host, managed.cluster.link_port)]


def _period_s(within: str, unit: str) -> float:
    if unit not in UNITS_S:
        units = ", ".join(UNITS_S)
        raise BadRequest(f"Time unit not recognised. Supported units: {units}.")
    try:
        return float(int(within)) * UNITS_S[unit]
    except (ValueError, OverflowError) as error:
        raise BadRequest("Invalid expiration value.") from error


def _certificate_times(
    request: ApiRequest, listener: OpenListener
) -> list[tuple[str, Path, list[datetime]]]:
    """The listener's certificate files: setting, path, and when the certificates in it expire."""
    config = request.managed.config
    links = config.cluster.link_ssl if config.cluster is not None else None
    files = {
        "amqp/ssl": config.ssl,
        "https": config.http_ssl,
        "https/prometheus": config.metrics_ssl,
        LINKS: links,
    }.get(listener.protocol)
    if files is None:
        return []
    named = (("cacertfile", files.cacertfile), ("certfile", files.certfile))
    return [
        (key, path, expiry_times(Path(path).read_text("ascii", "replace")))
        for key, path in named
        if path is not None
    ]


def _listener_row(
    request: ApiRequest, listener: OpenListener, times: list[tuple[str, Path, list[datetime]]]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "node": request.node.name,
        "protocol": listener.protocol,
        "interface": listener.host,
        "port": listener.port,
    }
    for key, path, found in times:
        row[key] = str(path)
        row[f"{key}_expires_on"] = [moment.strftime("%Y-%m-%d %H:%M:%S") for moment in found]
    return row


# Listeners


async def port_listener(request: ApiRequest) -> Any:
    try:
        port = int(request.name("port"))
    except ValueError as error:
        raise BadRequest("Invalid port") from error
    ports = list(dict.fromkeys(listener.port for listener in request.managed.listeners))
    if port in ports:
        return {**OK, "port": port}
    return _failed("No active listener", missing=port, ports=ports)


async def protocol_listener(request: ApiRequest) -> Any:
    wanted = request.name("protocol").lower()
    protocol = ALIASES.get(wanted, wanted)
    protocols = list(dict.fromkeys(listener.protocol for listener in request.managed.listeners))
    if protocol in protocols:
        return {**OK, "protocol": protocol}
    return _failed("No active listener", missing=protocol, protocols=protocols)


# The node


async def virtual_hosts(request: ApiRequest) -> Any:
    """Whether every virtual host that is defined could be recovered: then it runs."""
    missing = list(_missing_vhosts(request))
    if not missing:
        return OK
    reason = "Some virtual hosts are down"
    return _failed(reason, **{"virtual-hosts": missing})


def _missing_vhosts(request: ApiRequest) -> Iterator[str]:
    for key, _, _ in request.node.metadata.records(("vhost",)):
        if key[1] not in request.node.vhosts:
            yield key[1]


SINGLE = {**OK, "reason": "single node cluster"}


def _is_alone(request: ApiRequest) -> bool:
    """Whether there is one machine: no queue has a copy that outlives it."""
    peers = request.managed.peers
    return peers is None or peers.have_one_machine()


async def _of_machine(
    request: ApiRequest, path: str, rows: list[dict[str, Any]], reason: str
) -> Any:
    """The answer with these queues, and those that other processes of the broker add: they end
    together. Such a process answers with its own queues alone."""
    if request.passed:
        return rows
    peers = request.managed.peers
    if peers is not None:
        found = [*rows, *await peers.rows_beside(request, path)]
        rows = sorted(found, key=lambda row: (row["virtual_host"], row["name"]))
    return _failed(reason, queues=rows) if rows else OK


async def mirror_sync_critical(request: ApiRequest) -> Any:
    """Whether a queue that should have mirrors is complete on this machine only."""
    cluster = request.managed.cluster
    if cluster is None or _is_alone(request):
        return SINGLE
    figures = cluster.mirroring.figures
    rows = [
        {
            "name": queue.name,
            "virtual_host": queue.vhost_name,
            "type": "classic",
            "readable_name": f"queue '{queue.name}' in vhost '{queue.vhost_name}'",
        }
        for queue in figures.led_queues()
        if figures.lacks_mirrors(queue)
    ]
    reason = "There are classic mirrored queues without a synchronised mirror"
    return await _of_machine(request, MIRROR_SYNC_CRITICAL, rows, reason)


async def quorum_critical(request: ApiRequest) -> Any:
    """Whether a quorum queue or a stream would lose its majority without this machine.

    RabbitMQ 3.10.8 looks at quorum queues only, though it confirms to a stream by majority, too.
    """
    if _is_alone(request):
        return SINGLE
    managed = request.managed
    rows = [
        {
            "name": queue.name,
            "readable_name": f"queue '{queue.name}' in vhost '{queue.vhost_name}'",
            "virtual_host": queue.vhost_name,
            "type": str(queue.settings.type),
        }
        for queue in queues_with_members(managed)
        if is_critical(managed, queue)
    ]
    reason = (
        "There are quorum queues or streams that would lose their quorum if the target node is shut"
        " down"
    )
    return await _of_machine(request, QUORUM_CRITICAL, rows, reason)


async def node_health(request: ApiRequest) -> Any:
    said = await at_node(NODE_HEALTH, _own_health)(request)
    return said if said == OK or request.passed else _failed(said["reason"])


async def _own_health(request: ApiRequest) -> dict[str, str]:
    local = request.node.alarms.local()
    if not local:
        return OK
    listed = ",".join(f"{{resource_limit,{alarm.resource},{alarm.node}}}" for alarm in local)
    return {"status": "failed", "reason": f"resource alarm(s) in effect:[{listed}]"}


# Aliveness


async def aliveness(request: ApiRequest) -> Any:
    """Whether a message can be published and fetched. The queue for that is not deleted."""
    vhost, name = request.vhost(), ALIVENESS_QUEUE
    request.check(vhost.name, "queue", name, "configure")
    request.check(vhost.name, "exchange", "", "write")
    request.check(vhost.name, "queue", name, "read")
    await taken(lambda: _declare(vhost))
    header = request.node.codec.content_header(len(ALIVENESS_BODY), {})
    envelope = Envelope("", name, header, False, 0, None)
    await through(vhost.publish(envelope, ALIVENESS_BODY, (name,)))
    client = TracedClient(f"http {request.caller.address}", 1, request.caller.name)
    message, _, _ = await through(vhost.queue(name).get_one(True, client))
    if message is None:
        return _failed("the message that was published could not be fetched")
    return OK


def _declare(vhost: VirtualHost) -> Commit | None:
    queue = vhost.queues.get(ALIVENESS_QUEUE)
    if queue is None:
        vhost.check_queue_limit(ALIVENESS_QUEUE)
        return vhost.declare_queue(
            ALIVENESS_QUEUE, durable=False, exclusive_owner=None, auto_delete=False, arguments={}
        )
    vhost.check_queue_equivalent(
        queue, None, exclusive=False, durable=False, auto_delete=False, arguments={}
    )
    return None


ENDPOINTS = [
    Endpoint(f"{CHECKS}/alarms", {"GET": alarms}, summary="No alarms in the cluster"),
    Endpoint(f"{CHECKS}/local-alarms", {"GET": local_alarms}, summary="No alarms on the node"),
    Endpoint(
        f"{CHECKS}/certificate-expiration/{{within}}/{{unit}}",
        {"GET": certificate_expiration},
        summary="No certificate expires soon",
    ),
    Endpoint(f"{CHECKS}/port-listener/{{port}}", {"GET": port_listener}, summary="A port is open"),
    Endpoint(
        f"{CHECKS}/protocol-listener/{{protocol}}",
        {"GET": protocol_listener},
        summary="A protocol is served",
    ),
    Endpoint(f"{CHECKS}/virtual-hosts", {"GET": virtual_hosts}, summary="All vhosts run"),
    Endpoint(
        MIRROR_SYNC_CRITICAL,
        {"GET": mirror_sync_critical},
        summary="No queue would lose its last mirror",
    ),
    Endpoint(
        QUORUM_CRITICAL,
        {"GET": quorum_critical},
        summary="No queue would lose its majority",
    ),
    Endpoint("/aliveness-test/{vhost}", {"GET": aliveness}, summary="A message passes"),
    Endpoint(
        "/healthchecks/node/",
        {"GET": node_health},
        summary="The node is well",
    ),
    Endpoint("/healthchecks/node", {"GET": node_health}, summary="The node is well"),
    Endpoint(NODE_HEALTH, {"GET": node_health}, summary="A node is well"),
]

"""Snapshots of this node's queues, for readers that run on other machines.

A user makes a snapshot of queues that AMQP would let it read, and gets an id and a token. With the
token a reader reads the snapshot's files, a piece at a time, renews its lease and releases it; so
tasks of Spark need no password. Each answer with octets has their CRC-32 (`Warren-Crc32`).

In a cluster each node makes snapshots of the queues that it leads; a reader asks all nodes.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from warren.core.access.access_control import NoSuchUser, User
from warren.core.errors import AccessRefused
from warren.extras import install_command
from warren.mgmt.api.changes import audit
from warren.mgmt.http.endpoint import NO_CONTENT, Endpoint, HttpReply, Right
from warren.mgmt.http.errors import ApiError, BadRequest, NotAuthorised, ObjectNotFound
from warren.mgmt.http.request import ApiRequest, boolean, text
from warren.mgmt.http.slices import Breather
from warren.mgmt.snapshot_service import (
    Granted,
    ServedPiece,
    SnapshotService,
    can_make,
    same_token,
)
from warren.persist.snapshots import cursors

LEASE_S = 3600
LEASE_S_MAX = 10 * 366 * 86400

RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")

WILDCARDS = ("", "0.0.0.0", "::")

CURSOR_ACTIONS = ("take_cursor", "release_others", "why_gone", "leave_cursor")

QUEUES_MAX_BYTES = 8 << 20
"""Octets of the largest request for a snapshot: it may name many queues."""


# Making snapshots


async def create(request: ApiRequest) -> Any:
    service = _service(request)
    body = await request.body()
    pattern = _optional_text(body, "pattern")
    names = body.get("queues")
    vhost = _optional_text(body, "vhost")
    if names is not None and not _are_texts(names):
        raise BadRequest("queues should be a list of strings")
    cursor = _cursor(body.get("cursor"))
    queues = await _readable(request, vhost, names)
    token = secrets.token_urlsafe(32)
    made = await service.ask(
        {
            "do": "create",
            "vhost": vhost,
            "names": names,
            "pattern": pattern,
            "queues": queues,
            "vhosts": sorted(one.name for one in request.visible_vhosts()),
            "lease_s": _lease(body),
            "needs_state": boolean(body.get("state", False)),
            "retained": boolean(body.get("retained", False)),
            "missing_ok": boolean(body.get("missing_ok", False)),
            "cursor": cursor,
            "holder": text(body, "holder"),
            "user": request.caller.name,
            "token": token,
        }
    )
    audit(request, "snapshot_made", snapshot=made["id"], queues=len(queues))
    granted = await service.find(made["id"])
    where = {"here": made["here"], "elsewhere": made["elsewhere"]}
    return HttpReply(201, {**_described(request, granted), **where})


async def token(request: ApiRequest) -> Any:
    """The token of a snapshot, for the user who made it or an administrator.

    A stream of Spark that was restarted knows only the snapshot's id, and gets the token here.
    """
    service = _service(request)
    granted = await service.find(request.name("snapshot"), fresh=True)
    if granted.user != request.caller.name and not request.caller.is_administrator:
        raise NotAuthorised("The snapshot was made for another user")
    await _check_readable(request, service, granted)
    return _described(request, granted)


async def nodes(request: ApiRequest) -> Any:
    """The nodes that make snapshots of their queues, and the addresses of their APIs.

    Each process of a broker of several processes is such a node, below `/process/` and its number.
    """
    listeners = request.managed.listeners
    config = request.managed.config
    cluster = config.cluster
    known = request.managed.name.partition("@")[2]
    if cluster is not None and cluster.advertised_host:
        known = cluster.advertised_host
    process: dict[str, Any] = {}
    if config.process is not None and cluster is not None:
        process = {"process": config.process.number, "machine": cluster.machine}
    rows = [
        {
            "node": request.managed.name,
            "protocol": one.protocol,
            "host": known if one.host in WILDCARDS else one.host,
            "port": one.port,
            **process,
        }
        for one in listeners
        if one.protocol in ("http", "https")
    ]
    peers = request.peers
    if peers is not None:
        rows += await peers.rows(request, "/snapshots/nodes")
        answered = {row["node"] for row in rows}
        silent = [node for node in peers.up() if node not in answered]
        if silent:
            raise ApiError(
                503,
                "StoreRefused",
                f"node {silent[0]} runs and does not answer: its queues would be missing",
            )
    return rows


async def use_cursor(request: ApiRequest) -> Any:
    service = _service(request)
    body = await request.body()
    action = text(body, "action")
    if action not in CURSOR_ACTIONS:
        raise BadRequest(f"action should be one of {', '.join(CURSOR_ACTIONS)}")
    octets_max = body.get("octets_max")
    if octets_max is not None and (isinstance(octets_max, bool) or not isinstance(octets_max, int)):
        raise BadRequest("octets_max should be a number")
    needed = body.get("needed", [])
    if not _are_texts(needed):
        raise BadRequest("needed should be a list of strings")
    answer = await service.ask(
        {
            "do": action,
            "name": _cursor(request.name("cursor")),
            "holder": text(body, "holder"),
            "octets_max": octets_max,
            "needed": needed,
            "id": text(body, "snapshot"),
            "user": request.caller.name,
            "administrator": request.caller.is_administrator,
        }
    )
    return {"answer": answer}


# With the token of a snapshot


async def describe(request: ApiRequest) -> Any:
    granted = await _granted(request, fresh=True)
    return _described(request, granted)


async def extend(request: ApiRequest) -> Any:
    granted = await _granted(request)
    service = _service(request)
    question = {"do": "extend", "id": granted.directory.name}
    answer = await service.ask({**question, "lease_s": _lease(await request.body())})
    service.forget(granted.directory.name)
    return answer


async def release(request: ApiRequest) -> Any:
    granted = await _granted(request)
    service = _service(request)
    await service.ask({"do": "release", "id": granted.directory.name})
    service.forget(granted.directory.name)
    return NO_CONTENT


async def list_files(request: ApiRequest) -> Any:
    return await _service(request).names(await _granted(request))


async def read_entries(request: ApiRequest) -> Any:
    granted = await _granted(request)
    start, size = _range(request)
    reading = _service(request).read_entries(granted, request.name("queue_id"), start, size)
    return await _piece(reading)


async def read_log(request: ApiRequest) -> Any:
    granted = await _granted(request)
    start, size = _range(request)
    reading = _service(request).read_log(granted, request.name("file"), start, size)
    return await _piece(reading)


# Shared


def _service(request: ApiRequest) -> SnapshotService:
    service = request.managed.snapshots
    if service is None:
        raise ApiError(409, "StoreRefused", "the node has no data directory: it keeps no messages")
    if not can_make():
        raise ApiError(
            409,
            "StoreRefused",
            "the node cannot make snapshots: numpy is not installed beside it:"
            f" {install_command('snapshots')}",
        )
    return service


async def _readable(
    request: ApiRequest, vhost: str | None, names: list[str] | None
) -> list[tuple[str, str, int, bool]]:
    """Durable queues that the caller may read: names, id, and whether this node leads the queue.

    Raises `NotAuthorised` if the request names a queue that the caller may not read.
    """
    if request.caller.local:
        raise BadRequest("snapshots are made for a user, not for the command line")
    access, user = request.node.access, request.caller.user
    breather = Breather()
    await breather.breathe()
    found = []
    for one in request.node.vhosts.values():
        if vhost is not None and one.name != vhost:
            continue
        for queue in list(one.queues.values()):
            await breather.breathe()
            if not queue.durable or queue.exclusive_owner is not None:
                continue
            try:
                access.check_resource(user, one.name, "queue", queue.name, "read")
            except AccessRefused as refusal:
                if names is not None and queue.name in names and vhost is not None:
                    raise NotAuthorised("Access refused.") from refusal
                continue
            found.append((one.name, queue.name, queue.queue_id, queue.is_here))
    return found


async def _granted(request: ApiRequest, *, fresh: bool = False) -> Granted:
    """The snapshot in the path. Raises `ApiError` if the request does not have its token."""
    service = request.managed.snapshots
    if service is None:
        raise ObjectNotFound()
    granted = await service.find(request.name("snapshot"), fresh=fresh)
    kind, _, given = request.http.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not same_token(granted, given.strip()):
        raise NotAuthorised("This is not the token of the snapshot")
    if service.needs_check(granted):
        await _check_readable(request, service, granted)
    return granted


async def _check_readable(request: ApiRequest, service: SnapshotService, granted: Granted) -> None:
    """Raises `NotAuthorised` unless the snapshot's user may still read all of its queues."""
    access = request.node.access
    try:
        user = User(granted.user, frozenset(access.user(granted.user).tags))
        breather = Breather()
        await breather.breathe()
        for vhost, name in granted.queues:
            await breather.breathe()
            access.check_resource(user, vhost, "queue", name, "read")
    except (AccessRefused, NoSuchUser) as refusal:
        raise NotAuthorised(
            "The user of the snapshot may not read its queues any more"
        ) from refusal
    service.checked(granted)


def _described(request: ApiRequest, granted: Granted) -> dict[str, Any]:
    return {"node": request.managed.name, "token": granted.token, "snapshot": granted.fields}


def _range(request: ApiRequest) -> tuple[int, int]:
    """First octet and number of octets. Raises `BadRequest`."""
    match = RANGE.fullmatch(request.http.headers.get("Range", ""))
    if match is None or int(match[2]) < int(match[1]):
        raise BadRequest("a header such as Range: bytes=0-1048575 is needed")
    return int(match[1]), int(match[2]) - int(match[1]) + 1


async def _piece(reading: Any) -> HttpReply:
    try:
        piece: ServedPiece = await reading
    except FileNotFoundError as error:
        raise ApiError(404, "FileNotFound", "the snapshot has no such file") from error
    except OSError as error:
        raise ApiError(500, "unreadable", str(error)) from error
    if not piece.data:
        headers = {"Content-Range": f"bytes */{piece.size}"}
        raise ApiError(416, "range", f"the file has {piece.size} octets", headers)
    end = piece.start + len(piece.data) - 1
    return HttpReply(
        206,
        piece.data,
        {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"bytes {piece.start}-{end}/{piece.size}",
            "Warren-Crc32": f"{piece.crc:08x}",
        },
    )


def _lease(body: dict[str, Any]) -> float:
    lease = body.get("lease_s", LEASE_S)
    if (
        isinstance(lease, bool)
        or not isinstance(lease, int | float)
        or not 0 < lease <= LEASE_S_MAX
    ):
        raise BadRequest(f"lease_s should be a number of seconds, {LEASE_S_MAX} at most")
    return float(lease)


def _optional_text(body: dict[str, Any], name: str) -> str | None:
    return None if body.get(name) is None else text(body, name)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)


def _cursor(name: Any) -> str | None:
    if name is not None and not (isinstance(name, str) and cursors.NAME.fullmatch(name)):
        raise BadRequest("cursor should be a name of letters, digits, - _ and .")
    return name


FOR_NODES = [
    Endpoint("/snapshots/nodes", {"GET": nodes}, summary="Where snapshots are made"),
]

ENDPOINTS = [
    *FOR_NODES,
    Endpoint(
        "/snapshots",
        {"POST": create},
        summary="Make a snapshot of queues",
        body_bytes_max=QUEUES_MAX_BYTES,
    ),
    Endpoint("/snapshots/cursors/{cursor}", {"POST": use_cursor}, summary="Hold a cursor"),
    Endpoint("/snapshots/{snapshot}/token", {"POST": token}, summary="The token of a snapshot"),
    Endpoint(
        "/snapshots/{snapshot}",
        {"GET": describe, "PUT": extend, "DELETE": release},
        Right.ANYBODY,
        summary="A snapshot, for clients that have its token",
    ),
    Endpoint(
        "/snapshots/{snapshot}/log",
        {"GET": list_files},
        Right.ANYBODY,
        summary="The log files of a snapshot, for clients that have its token",
    ),
    Endpoint(
        "/snapshots/{snapshot}/log/{file}",
        {"GET": read_log},
        Right.ANYBODY,
        summary="Octets of a log file, for clients that have the snapshot's token",
    ),
    Endpoint(
        "/snapshots/{snapshot}/queues/{queue_id}",
        {"GET": read_entries},
        Right.ANYBODY,
        summary="The entries of a queue, for clients that have the snapshot's token",
    ),
]

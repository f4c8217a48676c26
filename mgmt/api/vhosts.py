"""Virtual hosts: list, one, make, change, delete (management_api.md sections 2 and 3)."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.validation import term
from warren.core.field import SHORT_STRING_MAX
from warren.core.queues.queue_type import DEFAULT_TYPES
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.api import stats_json
from warren.mgmt.api.changes import audit, durable
from warren.mgmt.api.permissions import permission_rows, topic_permission_rows
from warren.mgmt.definitions.items import tags
from warren.mgmt.http.endpoint import CREATED, NO_CONTENT, Endpoint, HttpReply, Right
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.listing import Listing, Row, answer, answer_row, answer_rows
from warren.mgmt.http.request import ApiRequest, boolean, text
from warren.mgmt.peers import added
from warren.mgmt.statistics import figures
from warren.mgmt.waiting import through, visible

NO_QUEUE_TYPE = "undefined"

EVERYTHING = ".*"


Elsewhere: TypeAlias = dict[str, list[Row]]


class ListedVhost(NamedTuple):
    """A virtual host with its record at the time of the request: it may be deleted meanwhile."""

    vhost: VirtualHost
    record: VirtualHostRecord


class VhostRows:
    """Makes the JSON of virtual hosts for one request."""

    def __init__(self, request: ApiRequest, elsewhere: Elsewhere | None = None) -> None:
        self._elsewhere = elsewhere or {}
        self._request = request
        self._statistics = request.managed.statistics
        self._offset_s = stats_json.wall_offset_s(request)
        kinds = ("lengths", "msg_rates", "data_rates")
        self._lengths, self._rates, self._octets = stats_json.times_of_kinds(request, *kinds)

    def row(self, listed: ListedVhost) -> Row:
        vhost, record = listed
        kind = record.default_queue_type
        said: Row = {"description": record.description, "tags": list(record.tags)}
        row = {
            "name": vhost.name,
            **said,
            "default_queue_type": kind or NO_QUEUE_TYPE,
            "metadata": {**said, **({"default_queue_type": kind} if kind else {})},
            "tracing": vhost.observation.firehose is not None,
            "cluster_state": {self._request.node.name: "running"},
            **self._figures(vhost),
        }
        for other in self._elsewhere.get(vhost.name, ()):
            _add_node(row, other)
        return row

    def _figures(self, vhost: VirtualHost) -> Row:
        current = self._statistics.vhost_figures(vhost)
        rates = self._statistics.vhost_rates(vhost, current)

        def shown(times: list[float]) -> stats_json.ShownStats:
            samples = self._statistics.vhost_samples(vhost, times) if times else ()
            return stats_json.ShownStats(figures.VHOST, current, rates, samples, self._offset_s)

        stats = shown(self._rates).message_stats()
        return {
            **shown(self._lengths).levels(*figures.LENGTHS),
            **shown(self._octets).levels(*figures.OCTETS),
            **({"message_stats": stats} if stats else {}),
        }


def _add_node(row: Row, other: Row) -> None:
    """Add another node's figures; the definition is the same on all nodes."""
    row["cluster_state"].update(other["cluster_state"])
    for name in (*figures.LENGTHS, *figures.OCTETS):
        row[name] += other[name]
        row[f"{name}_details"] = added(row[f"{name}_details"], other[f"{name}_details"])
    stats = added(row.get("message_stats"), other.get("message_stats"))
    if stats:
        row["message_stats"] = stats


async def _elsewhere(request: ApiRequest, path: str) -> Elsewhere:
    """The rows that the other nodes have of virtual hosts, by name of the virtual host."""
    found: Elsewhere = {}
    peers = request.peers
    if peers is not None:
        answers = await peers.ask_all(request, path, dict(request.http.match_info))
        for answer in answers.values():
            for row in answer if isinstance(answer, list) else [answer]:
                found.setdefault(row["name"], []).append(row)
    return found


def _record(request: ApiRequest, name: str) -> VirtualHostRecord | None:
    stored = request.node.metadata.get(("vhost", name))
    if stored is None:
        return None
    assert isinstance(stored.record, VirtualHostRecord)
    return stored.record


def _listed(request: ApiRequest, vhost: VirtualHost) -> ListedVhost:
    record = _record(request, vhost.name)
    assert record is not None, vhost.name
    return ListedVhost(vhost, record)


async def list_vhosts(request: ApiRequest) -> Any:
    """All virtual hosts the caller may see: pages choose the one for `X-Vhost` from this list."""
    node, caller = request.node, request.caller
    vhosts = [
        _listed(request, vhost)
        for name, vhost in sorted(node.vhosts.items())
        if caller.may_see(node, name)
    ]
    listing: Listing[ListedVhost] = Listing(
        row=VhostRows(request, await _elsewhere(request, "/vhosts")).row,
        name=lambda listed: listed.vhost.name,
        keys={"name": lambda listed: listed.vhost.name},
    )
    return await answer(request, vhosts, listing)


async def get_vhost(request: ApiRequest) -> Any:
    request.vhost()
    rows = VhostRows(request, await _elsewhere(request, "/vhosts/{vhost}"))
    return answer_row(request, rows.row(_listed(request, request.vhost())))


async def _trace_at_siblings(request: ApiRequest, name: str, tracing: bool) -> None:
    """Switch tracing in the broker's other processes, too: a node traces its own messages only."""
    peers = request.peers
    if peers is not None and request.managed.config.process is not None:
        parts, body = {"vhost": name}, {"tracing": tracing}
        await peers.ask_all(request, "/vhosts/{vhost}", parts, method="PUT", body=body)


async def put_vhost(request: ApiRequest) -> HttpReply:
    """Make or change a virtual host.

    Description and tags become empty if the body lacks them; the default queue type is only set for
    a new virtual host.
    """
    name, body = request.name("vhost"), await request.body()
    if len(name.encode("utf-8", "surrogatepass")) > SHORT_STRING_MAX:
        raise BadRequest(f"the name of a vhost has {SHORT_STRING_MAX} octets at most")
    tracing = boolean(body["tracing"]) if "tracing" in body else None
    existing = _record(request, name)
    kind = _default_queue_type(body) if existing is None else existing.default_queue_type
    record = VirtualHostRecord(
        text(body, "description"), tags(body.get("tags", ""), f"vhost '{name}'"), kind
    )
    node, caller = request.node, request.caller
    await visible(node.add_vhost(name, record))
    if existing is None and not caller.local:
        node.access.set_permissions(caller.name, name, EVERYTHING, EVERYTHING, EVERYTHING)
    if tracing is not None and name in node.vhosts:
        node.trace(name, tracing)
        await _trace_at_siblings(request, name, tracing)
    audit(request, "vhost_created" if existing is None else "vhost_changed", vhost=name)
    await durable(request)
    return CREATED if existing is None else NO_CONTENT


def _default_queue_type(body: dict[str, Any]) -> str | None:
    kind = body.get("defaultqueuetype")
    if kind in (None, "", NO_QUEUE_TYPE):
        return None
    if kind not in DEFAULT_TYPES:
        raise BadRequest("invalid_queue_type")
    assert isinstance(kind, str)
    return kind


async def delete_vhost(request: ApiRequest) -> None:
    name = request.vhost().name
    await through(request.node.end_vhost(name))
    audit(request, "vhost_deleted", vhost=name)
    await durable(request)


async def list_permissions(request: ApiRequest) -> Any:
    rows = permission_rows(request.node, vhost=request.vhost().name)
    return await answer_rows(request, rows)


async def list_topic_permissions(request: ApiRequest) -> Any:
    rows = topic_permission_rows(request.node, vhost=request.vhost().name)
    return await answer_rows(request, rows)


async def start_vhost(request: ApiRequest) -> None:
    """Check that the virtual host exists. There is nothing to start: on a running node all run."""
    node, vhost = request.name("node"), request.name("vhost")
    running = (request.node.name, *(request.peers.linked() if request.peers is not None else ()))
    if node not in running:
        raise BadRequest(f"Request to node {node} failed with nodedown")
    if vhost not in request.node.vhosts:
        missing = f"{{no_such_vhost,{term(vhost)}}}"
        raise BadRequest(f"Request to node {node} failed with {missing}")


ENDPOINTS = [
    Endpoint("/vhosts", {"GET": list_vhosts}, summary="All virtual hosts"),
    Endpoint(
        "/vhosts/{vhost}",
        {"GET": get_vhost, "PUT": put_vhost, "DELETE": delete_vhost},
        Right.ADMINISTRATOR,
        summary="One virtual host",
    ),
    Endpoint(
        "/vhosts/{vhost}/permissions",
        {"GET": list_permissions},
        Right.ADMINISTRATOR,
        summary="Permissions in a vhost",
    ),
    Endpoint(
        "/vhosts/{vhost}/topic-permissions",
        {"GET": list_topic_permissions},
        Right.ADMINISTRATOR,
        summary="Topic permissions in a vhost",
    ),
    Endpoint(
        "/vhosts/{vhost}/start/{node}",
        {"POST": start_vhost},
        Right.ADMINISTRATOR,
        summary="Start a vhost on a node",
    ),
]

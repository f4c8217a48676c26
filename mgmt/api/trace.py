"""The recorded lives of messages (docs/tracing.md): the life of one message, and counts of all.

Each node records the events on itself; the node that gets the request asks the others. Rules, which
select messages, are parameters of the component `trace`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from warren.core.tracing.trace_rules import COMPONENT
from warren.core.tracing.trace_store import FOUND_MAX, Life
from warren.mgmt.http.endpoint import Endpoint, Right
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.message_life import in_order, lived, record_of, row

ALL = "/trace/{vhost}"
ONE = "/trace/{vhost}/{message}"

LATEST = 100
"""How many messages are listed."""


async def overview(request: ApiRequest) -> Any:
    """Counts of each node's records, the rules, and the messages followed last."""
    vhost = request.seen_vhost().name
    nodes = {request.managed.name: _counts(request)}
    peers = request.peers
    if peers is not None:
        answers = await peers.ask_all(request, ALL, dict(request.http.match_info))
        for answer in answers.values():
            nodes |= answer["nodes"]
    rules = request.node.parameters.all(COMPONENT, vhost)
    return {
        "vhost": vhost,
        "rules": [{"name": rule.name, **rule.value} for rule in rules],
        "nodes": nodes,
        "missing_nodes": _missing(request, nodes),
        "messages": request.node.tracer.followed(vhost, LATEST),
    }


def _counts(request: ApiRequest) -> dict[str, Any]:
    tracer = request.node.tracer
    tracer.hand_over()
    exporter = request.managed.span_exporter
    counts = tracer.counts._asdict()
    counts["lost"] += tracer.store.lost
    counts["file_bytes"] = tracer.store.octets
    counts["file_bytes_max"] = request.managed.config.trace_size_limit
    if exporter is not None:
        counts["spans_exported"] = exporter.exported
        counts["spans_dropped"] = exporter.dropped
    return counts


def _missing(request: ApiRequest, answered: Any) -> list[str]:
    """Nodes of the cluster that have not answered."""
    peers = request.peers
    return [] if peers is None else sorted(set(peers.members()) - set(answered))


async def life(request: ApiRequest) -> Any:
    """All records of one message; most messages have none."""
    vhost, name = request.seen_vhost().name, request.name("message")
    own = await _recorded(request, vhost, name)
    records, is_whole = own.records, own.is_whole
    answered = {request.managed.name}
    peers = request.peers
    if peers is not None:
        answers = await peers.ask_all(request, ONE, dict(request.http.match_info))
        for node, answer in answers.items():
            try:
                records = records + [record_of(one) for one in answer["records"]]
            except msgspec.ValidationError:
                # A later version may have records that this one does not understand.
                continue
            is_whole &= answer["is_whole"]
            answered.add(node)
    known = lived(in_order(records)[-FOUND_MAX:])
    return {
        "id": name,
        "vhost": vhost,
        "queues": known.queues,
        "records": [row(record) for record in known.records],
        "is_whole": is_whole and len(records) <= FOUND_MAX,
        "missing_nodes": _missing(request, answered),
    }


async def _recorded(request: ApiRequest, vhost: str, name: str) -> Life:
    tracer = request.node.tracer
    tracer.hand_over()
    looked: asyncio.Future[Life] = asyncio.get_running_loop().create_future()

    def found(life: Life) -> None:
        # The request may have been cancelled.
        if not looked.done():
            looked.set_result(life)

    tracer.store.find(vhost, name, found)
    return await looked


ENDPOINTS = [
    Endpoint(
        ALL, {"GET": overview}, Right.MONITOR, summary="What is recorded of lives of messages"
    ),
    Endpoint(ONE, {"GET": life}, Right.MONITOR, summary="The life of a message"),
]

"""The processes of a broker and their states, as their supervisor reports them.

A broker without a supervisor has one process, which runs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import msgspec

from warren.core.errors import NotFound
from warren.mgmt.http.endpoint import Endpoint, HttpReply, Right
from warren.mgmt.http.errors import BadRequest
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.processes.asking import statuses
from warren.mgmt.processes.states import ProcessState, ProcessStatus


async def list_processes(request: ApiRequest) -> Any:
    return msgspec.to_builtins(await _statuses(request))


async def all_run(request: ApiRequest) -> Any:
    """Answers 503 while a process is down for good, stopped, or being started."""
    others = [one for one in await _statuses(request) if one.state is not ProcessState.RUNNING]
    if not others:
        return {"status": "ok"}
    shown = [{"node": one.node, "state": str(one.state)} for one in others]
    return HttpReply(
        503, {"status": "failed", "reason": "Not all processes are running", "processes": shown}
    )


async def add_reasons(request: ApiRequest, rows: list[dict[str, Any]]) -> None:
    """Complete the rows of nodes that are processes of this broker.

    They get the process's number, how often it has ended, and why it ended if it did.
    """
    if request.managed.config.process is None:
        return
    known: dict[str, ProcessStatus] = {}
    # Lists must work without a supervisor.
    with suppress(NotFound):
        known = {one.node: one for one in await _statuses(request)}
    for row in rows:
        one = known.get(row["name"])
        if one is not None:
            row["process"] = one.number
            row["deaths"] = one.deaths
            row["reason"] = one.reason


async def expect_no_process(request: ApiRequest, name: str) -> None:
    """Raise `BadRequest` for a node that is a process of this broker: forgotten, it could neither
    come back nor be replaced."""
    if request.managed.config.process is None:
        return
    if name in [one.node for one in await _statuses(request)]:
        raise BadRequest(
            f"node {name} is a process of this broker. To have fewer, stop the broker and start it"
            " with a smaller number of --processes"
        )


async def _statuses(request: ApiRequest) -> list[ProcessStatus]:
    process = request.managed.config.process
    if process is None:
        return [ProcessStatus(1, request.node.name, ProcessState.RUNNING, os.getpid())]
    found = await statuses(process.supervisor)
    peers = request.managed.peers
    serving = {request.node.name, *(peers.linked() if peers is not None else ())}
    for one in found:
        if one.state is ProcessState.RUNNING and one.node not in serving:
            one.state = ProcessState.STOPPED
    return found


ENDPOINTS = [
    Endpoint("/processes", {"GET": list_processes}, Right.MONITOR, "Processes of the broker"),
    Endpoint(
        "/health/checks/processes",
        {"GET": all_run},
        summary="All processes of the broker run",
    ),
]

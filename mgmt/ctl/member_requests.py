"""Requests about the members of a quorum queue or a stream."""

from __future__ import annotations

from typing import Any

from warren.mgmt.ctl.call import Call
from warren.mgmt.ctl.errors import CtlError, Refused


def asked(call: Call, method: str, queues: str, *path: str, missing: str = "not_found") -> Any:
    """The answer about a queue. `queues`: the part of the path that names queues of its type.

    Raises `CtlError`, with RabbitMQ's word for a refusal; `missing`: if there is no such queue.
    """
    try:
        return call.client.request(method, "control", queues, call.vhost, *path)
    except Refused as refused:
        if refused.status == 404:
            raise CtlError(missing) from refused
        if refused.status == 400:
            raise CtlError(refused.reason) from refused
        raise

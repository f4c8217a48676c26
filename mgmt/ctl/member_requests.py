"""Requests about a quorum queue or a stream, mostly about its members."""

from __future__ import annotations

from typing import Any

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.errors import CtlError, RequestRefused


def asked(
    call: CommandCall, method: str, queues: str, *path: str, missing: str = "not_found"
) -> Any:
    """The answer to a request about a queue. `queues` is the part of the path for its type.

    Raises `CtlError`: with RabbitMQ's word for a refusal, or with the text `missing` if there is no
    such queue.
    """
    try:
        return call.client.request(method, "control", queues, call.vhost, *path)
    except RequestRefused as refused:
        if refused.status == 404:
            raise CtlError(missing) from refused
        if refused.status == 400:
            raise CtlError(refused.reason) from refused
        raise

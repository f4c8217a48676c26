"""What every change through the API has in common: it is answered when durable, and on record."""

from __future__ import annotations

import asyncio

from warren.core.audit import audit as put_on_record
from warren.mgmt.http.request import ApiRequest


async def durable(request: ApiRequest) -> None:
    """Return when the definitions written so far are on disk."""
    commit = request.node.metadata.uncommitted()
    if commit is not None:
        reached = asyncio.get_running_loop().create_future()
        commit.then(lambda: None if reached.done() else reached.set_result(None))
        await reached


def audit(request: ApiRequest, action: str, **what: object) -> None:
    """Put on record who changed what."""
    caller = request.caller
    who = caller.name if caller.local else f"{caller.name} http {caller.address}"
    put_on_record(who, action, **what)

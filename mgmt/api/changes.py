"""Common parts of all changes: they are durable when answered, and are put on record."""

from __future__ import annotations

from warren.core.access.audit import audit as put_on_record
from warren.mgmt import waiting
from warren.mgmt.http.request import ApiRequest


async def durable(request: ApiRequest) -> None:
    """Return when the definitions written so far are on disk."""
    await waiting.durable(request.node.metadata)


def audit(request: ApiRequest, action: str, **what: object) -> None:
    """Put on record that the caller did this."""
    caller = request.caller
    who = caller.name if caller.local else f"{caller.name} http {caller.address}"
    put_on_record(who, action, **what)

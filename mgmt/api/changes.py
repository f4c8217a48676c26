"""The last steps of each request that changes something: wait for the disk, and audit it."""

from __future__ import annotations

from warren.core.access.audit import audit as put_on_record
from warren.mgmt import waiting
from warren.mgmt.http.request import ApiRequest


async def durable(request: ApiRequest) -> None:
    """Return when the definitions written so far are on disk."""
    await waiting.durable(request.node.metadata)


def audit(request: ApiRequest, action: str, **what: object) -> None:
    """Write to the audit log that the caller did `action`; `what` are its details."""
    caller = request.caller
    who = caller.name if caller.local else f"{caller.name} http {caller.address}"
    put_on_record(who, action, **what)

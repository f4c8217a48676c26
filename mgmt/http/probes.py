"""What asks whether a node lives and is ready, without a login: containers, load balancers.

A node that does not answer `/health/live` should be started again. One that is not ready should be
sent no new clients; it says why. A node with an alarm is ready: those who consume must reach it, or
the alarm would never end. The checks below `/api/health` know more, and want a login.
"""

from __future__ import annotations

from aiohttp import web

from warren.mgmt.http.server import SECURITY, Routes
from warren.mgmt.managed_node import ManagedNode

LIVE = "/health/live"
READY = "/health/ready"


def probe_routes(managed: ManagedNode) -> Routes:
    """Their paths have no prefix, whatever the configuration says of the others."""

    async def live(http: web.Request) -> web.Response:
        return web.Response(text="alive\n", headers=SECURITY)

    async def ready(http: web.Request) -> web.Response:
        reason = not_ready(managed)
        if reason:
            return web.Response(status=503, text=f"{reason}\n", headers=SECURITY)
        return web.Response(text="ready\n", headers=SECURITY)

    return {LIVE: live, READY: ready}


def not_ready(managed: ManagedNode) -> str:
    """Why the node should be sent no new clients; empty when it should."""
    if managed.paused:
        return f"paused: {managed.paused}"
    if managed.drained:
        return "in maintenance"
    return "no new clients are let in" if managed.suspended else ""

"""Probes of containers and load balancers: whether a node lives and is ready, without a login.

A node that does not answer `/health/live` should be started again. A node that is not ready should
be sent no new clients; it says why. A node with an alarm is ready: consumers must reach it, or the
alarm would never end. The checks below `/api/health` tell more, and need a login.
"""

from __future__ import annotations

from aiohttp import web

from warren.mgmt.http.server import SECURITY, Routes
from warren.mgmt.managed_node import ManagedNode

LIVE = "/health/live"
READY = "/health/ready"


def probe_routes(managed: ManagedNode) -> Routes:
    """The routes of the probes. Their paths never have the prefix that is configured for others."""

    async def live(http: web.Request) -> web.Response:
        return web.Response(text="alive\n", headers=SECURITY)

    async def ready(http: web.Request) -> web.Response:
        reason = not_ready(managed)
        if reason:
            return web.Response(status=503, text=f"{reason}\n", headers=SECURITY)
        return web.Response(text="ready\n", headers=SECURITY)

    return {LIVE: live, READY: ready}


def not_ready(managed: ManagedNode) -> str:
    """Why the node should be sent no new clients; empty if it is ready."""
    if managed.paused:
        return f"paused: {managed.paused}"
    if managed.drained:
        return "in maintenance"
    return "no new clients are let in" if managed.suspended else ""

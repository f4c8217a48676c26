"""The HTTP routes at which Prometheus fetches the metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from warren.mgmt.http.server import Routes
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.metrics.collect import detailed, exposed
from warren.mgmt.metrics.exposition import CONTENT_TYPE


def metric_routes(managed: ManagedNode) -> Routes:
    path = managed.config.metrics_path.rstrip("/")
    by_default = managed.config.metrics_per_object

    async def aggregated(request: web.Request) -> web.StreamResponse:
        return await _answer(request, exposed(managed, per_object=by_default))

    async def per_object(request: web.Request) -> web.StreamResponse:
        managed.statistics.latencies.wanted()
        return await _answer(request, exposed(managed, per_object=True))

    async def chosen(request: web.Request) -> web.StreamResponse:
        vhosts = request.query.getall("vhost", [])
        families = request.query.getall("family", [])
        return await _answer(request, detailed(managed, families, set(vhosts) or None))

    return {
        path: aggregated,
        f"{path}/per-object": per_object,
        f"{path}/detailed": chosen,
    }


async def _answer(request: web.Request, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
    response.enable_compression()
    await response.prepare(request)
    async for piece in pieces:
        await response.write(piece)
    await response.write_eof()
    return response

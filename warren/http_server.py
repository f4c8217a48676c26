"""Builds the HTTP server of a node. Importing this module imports everything HTTP needs."""

from __future__ import annotations

from importlib import import_module

from warren.config import Config
from warren.mgmt.api.endpoints import all_endpoints
from warren.mgmt.http.pages import page_routes
from warren.mgmt.http.probes import probe_routes
from warren.mgmt.http.server import ManagementServer, SiblingProcesses
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.metrics.routes import metric_routes


def new_server(managed: ManagedNode) -> ManagementServer:
    return ManagementServer(
        managed,
        all_endpoints,
        pages=page_routes(managed.config.path_prefix),
        metrics=metric_routes(managed),
        probes=probe_routes(managed),
        siblings=_siblings(managed.config),
    )


def _siblings(config: Config) -> SiblingProcesses | None:
    """The other processes of the broker; the module is loaded only if there are any."""
    if config.process is None:
        return None
    siblings: SiblingProcesses = import_module("warren.mgmt.processes.siblings").Siblings(
        config.process, config.path_prefix
    )
    return siblings

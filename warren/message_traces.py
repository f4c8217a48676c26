"""The recorded lives of a node's messages (docs/tracing.md): the thread that writes them, and the
exporter of their spans, if it is configured."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from warren.config import Config
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.extras import install_command
from warren.node_refused import NodeRefused
from warren.persist.disk.group_commit import OnFault, SyncThread
from warren.persist.disk.trace_files import DIRECTORY, TraceFiles

if TYPE_CHECKING:
    from warren.mgmt.otlp import OtlpExporter

log = logging.getLogger("warren.node")


class MessageTraces:
    """The records from `start` to `stop`. A node without a data directory keeps them in memory."""

    def __init__(self, node: Node, directory: Path | None, on_fault: OnFault) -> None:
        self.exporter: OtlpExporter | None = None
        self._node = node
        self._directory = directory
        self._on_fault = on_fault
        self._thread: SyncThread | None = None
        self._files: TraceFiles | None = None

    async def start(self, config: Config) -> None:
        """Go on recording the messages that were recorded before. Raises `NodeRefused` if the
        package that exports spans is not installed."""
        self._export_spans(config)
        if self._directory is None:
            return
        self._thread = SyncThread("trace", self._on_fault)
        files = TraceFiles(
            self._directory / DIRECTORY,
            config.trace_size_limit,
            self._thread.run,
            asyncio.get_running_loop().call_soon_threadsafe,
        )
        try:
            traced = await asyncio.to_thread(files.open)
        except OSError as error:
            log_event(log, logging.ERROR, "trace_not_read", reason=error)
            traced = []
        self._node.tracer.store = self._files = files
        self._node.resume_traces(traced)

    def _export_spans(self, config: Config) -> None:
        if config.otel_endpoint is None:
            return
        try:
            module = import_module("warren.mgmt.otlp")
        except ModuleNotFoundError as error:
            raise NodeRefused(
                f"opentelemetry.endpoint needs the package {error.name}: {install_command('otel')}"
            ) from error
        self.exporter = module.OtlpExporter(
            config.otel_endpoint, config.otel_service_name, self._node.name
        )
        assert self.exporter is not None
        self._node.tracer.listeners.append(self.exporter.take)

    async def stop(self) -> None:
        """Write and export the records that are left."""
        self._node.tracer.hand_over()
        if self._thread is not None:
            self._thread.close()
        if self._files is not None:
            # A node that pauses still answers with the records that it has.
            self._files.close(partial(asyncio.get_running_loop().run_in_executor, None))
        if self.exporter is not None:
            await asyncio.to_thread(self.exporter.close)

"""Handles unexpected exceptions (faults): the first one ends the node.

One rule: a fault in serving one client ends that client's connection, and any other fault ends the
node. Connections handle their own faults (`amqp/server.py`, `amqp/guarded_clock.py`, the HTTP
server, the links between nodes). The faults that arrive here come from threads or from callbacks of
the loop; after such a fault the state of the node may be wrong.

The first fault is logged with its traceback, blocks publishers with an alarm, and is told to the
callbacks that `watch` has registered. The message storage then writes nothing more, so the next
start finds the files as after a crash, which recovery can handle. Then the node stops.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from warren.core.log_line import log_event, log_fault

log = logging.getLogger("warren.node")

PACKAGE = "warren."
LOOPS = ("uvloop", "asyncio")


class NodeFailed(Exception):
    """The node met a fault and has stopped."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__(f"a fault ended the node: {fault!r}; its log has the traceback")


class Faults:
    """The faults of one node. To be created on its loop; `first` is the fault that ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first: BaseException | None = None
        self.happened = asyncio.Event()
        self._loop = loop
        self._thread = threading.get_ident()
        self._watchers: list[Callable[[], None]] = []

    def catch(self) -> None:
        """Handle the exceptions of the loop's callbacks from now on."""
        self._loop.set_exception_handler(self._handle)

    def release(self) -> None:
        self._loop.set_exception_handler(None)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back at once at the first fault, in order of registration: the storage first."""
        if self.first is not None:
            callback()
        else:
            self._watchers.append(callback)

    def report(self, fault: BaseException) -> None:
        """Report a fault that ends the node; may be called from any thread."""
        if threading.get_ident() == self._thread:
            self._happen(fault)
            return
        try:
            self._loop.call_soon_threadsafe(self._happen, fault)
        except RuntimeError:
            # The loop is closed: the node has stopped.
            log_event(log, logging.ERROR, "fault_after_stop", fault=repr(fault))

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's handler for uncaught exceptions."""
        fault = context.get("exception")
        if isinstance(fault, Exception) and "handle" in context and _is_ours(fault):
            self._happen(fault)
        else:
            # The loop has closed the socket that failed, or nothing awaits the task that failed.
            loop.default_exception_handler(context)

    def _happen(self, fault: BaseException) -> None:
        if self.first is not None:
            # Most likely a consequence of the first fault.
            log_event(log, logging.WARNING, "further_fault", fault=repr(fault))
            return
        self.first = fault
        try:
            raise fault
        except BaseException:
            log_fault(log, "node_fault", action="stopping")
        for callback in self._watchers:
            try:
                callback()
            except Exception:
                log_fault(log, "fault_handling_failed")
        self.happened.set()


def _is_ours(fault: BaseException) -> bool:
    """Whether the callback that failed is Warren's. A library's would concern one client only."""
    frame = fault.__traceback__
    while frame is not None:
        name: str = frame.tb_frame.f_globals.get("__name__", "")
        if not name.startswith(LOOPS):
            return name.startswith(PACKAGE)
        frame = frame.tb_next
    return False

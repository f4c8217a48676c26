"""What becomes of an exception that nobody expected.

One rule: a fault in serving one client ends that client's connection, and any other fault ends the
node. A connection keeps its own faults to itself (`amqp/server.py`, `amqp/guarded_clock.py`, the
HTTP server, the links between nodes). What arrives here is a fault of a thread or of a callback of
the loop, after which nobody knows what is true of the node's state.

The first fault is logged with its traceback, blocks publishers with an alarm, and is told to those
who `watch`: the message storage writes nothing more, so that the next start finds what a crash
leaves, which recovery is made for. Then the node stops.
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
    """The faults of one node. Made on its loop; `first` is the one that ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first: BaseException | None = None
        self.happened = asyncio.Event()
        self._loop = loop
        self._thread = threading.get_ident()
        self._watchers: list[Callable[[], None]] = []

    def catch(self) -> None:
        """Hear of the exceptions of the loop's callbacks from now on."""
        self._loop.set_exception_handler(self._handle)

    def release(self) -> None:
        self._loop.set_exception_handler(None)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back at the first fault, at once; what is told first is to do no harm first."""
        if self.first is not None:
            callback()
        else:
            self._watchers.append(callback)

    def report(self, fault: BaseException) -> None:
        """A fault that ends the node; called from any thread."""
        if threading.get_ident() == self._thread:
            self._happen(fault)
            return
        try:
            self._loop.call_soon_threadsafe(self._happen, fault)
        except RuntimeError:
            # The loop is closed: the node has stopped.
            log_event(log, logging.ERROR, "fault_after_stop", fault=repr(fault))

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the loop calls with an exception that nobody caught."""
        fault = context.get("exception")
        if isinstance(fault, Exception) and "handle" in context and _is_ours(fault):
            self._happen(fault)
        else:
            # The loop has closed the socket it is about, or nobody waited for the task it ended.
            loop.default_exception_handler(context)

    def _happen(self, fault: BaseException) -> None:
        if self.first is not None:
            # Most likely a consequence of the first.
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
    """Whether the callback that failed is Warren's, and not that of a library for one client."""
    frame = fault.__traceback__
    while frame is not None:
        name: str = frame.tb_frame.f_globals.get("__name__", "")
        if not name.startswith(LOOPS):
            return name.startswith(PACKAGE)
        frame = frame.tb_next
    return False

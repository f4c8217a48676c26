"""The states of a broker's processes, as their supervisor reports them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

PATH = "/processes"
"""The path at which the supervisor answers with a list of `ProcessStatus`, on its socket."""


class ProcessState(StrEnum):
    """The state of a process.

    `down`: it has ended too often, and is not started any more. `stopped`: the process exists, but
    serves no clients, because `stop_app` has stopped its node, or because it hangs. The supervisor
    does not know of that state; the other processes do.
    """

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    DOWN = "down"


class ProcessStatus(msgspec.Struct):
    """The state of one process.

    `deaths` counts its ends since the supervisor started, `reason` is the reason of the last one;
    `pid` is 0 while it does not run.
    """

    number: int
    node: str
    state: ProcessState
    pid: int = 0
    deaths: int = 0
    reason: str = ""

"""How the processes of a broker are, as their supervisor knows it and tells them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

PATH = "/processes"
"""Where the supervisor answers with a list of these, on its socket."""


class ProcessState(StrEnum):
    """`down`: it has ended again and again, and is not started any more."""

    STARTING = "starting"
    RUNNING = "running"
    DOWN = "down"


class ProcessStatus(msgspec.Struct):
    """One process. `deaths` counts its ends since the supervisor began, `reason` is the last one's;
    `pid` is 0 while there is none."""

    number: int
    node: str
    state: ProcessState
    pid: int = 0
    deaths: int = 0
    reason: str = ""

"""When the processes of a broker load the files of `load_definitions`.

The first process loads them, once the others are up: the queues are spread over all of them. The
others let clients in when that is done, so a client finds the definitions at whichever process it
reaches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from warren.config import ProcessConfig
from warren.core.errors import NotFound
from warren.core.log_line import log_event
from warren.mgmt.processes.asking import statuses
from warren.mgmt.processes.states import ProcessState, ProcessStatus

log = logging.getLogger("warren.definitions")

FIRST = 1
"""The number of the process that loads the files."""
OTHERS_UP_S = 10.0
"""How long the first process waits for the others. One that recovers much may take longer; the
files are loaded without it then."""
POLL_S = 0.05


async def is_to_load(process: ProcessConfig, running: Callable[[], Collection[str]]) -> bool:
    """Wait until the files can be loaded, or are loaded; True if this process is to load them.

    `running` are the names of the processes that this one can reach.
    """

    def is_up(one: ProcessStatus) -> bool:
        return one.state is ProcessState.DOWN or one.node in running()

    if process.number == FIRST:
        try:
            async with asyncio.timeout(OTHERS_UP_S):
                while not await _all_are(process, is_up):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            log_event(log, logging.WARNING, "definitions_loaded_before_all_processes_are_up")
        return True
    while not await _all_are(process, _has_loaded):
        await asyncio.sleep(POLL_S)
    return False


async def _all_are(process: ProcessConfig, ready: Callable[[ProcessStatus], bool]) -> bool:
    """Whether the supervisor answers, and every process is `ready` by what it says."""
    try:
        return all(map(ready, await statuses(process.supervisor)))
    except NotFound:
        return False


def _has_loaded(one: ProcessStatus) -> bool:
    """False for the first process, until it serves clients or is down for good."""
    return one.number != FIRST or one.state is not ProcessState.STARTING

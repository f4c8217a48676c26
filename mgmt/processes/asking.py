"""Asks the supervisor, from one of its processes, for the states of all processes."""

from __future__ import annotations

import os
from pathlib import Path

import aiohttp
import msgspec

from warren.core.errors import NotFound
from warren.mgmt.processes.states import PATH, ProcessStatus

ASK_S = 5.0
"""How long the supervisor may take to answer: as long as another node may (`mgmt/peers.py`)."""


async def statuses(supervisor: Path) -> list[ProcessStatus]:
    """The states, ordered by number. Raises `NotFound` when the supervisor does not answer."""
    # The path may be too long for a socket, so it is opened relative to its directory.
    directory_fd = os.open(supervisor.parent, os.O_PATH)
    try:
        connector = aiohttp.UnixConnector(f"/proc/self/fd/{directory_fd}/{supervisor.name}")
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(f"http://supervisor{PATH}") as answer,
        ):
            return msgspec.json.decode(await answer.read(), type=list[ProcessStatus])
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        raise NotFound(f"the supervisor of the processes does not answer: {error!r}") from None
    finally:
        os.close(directory_fd)

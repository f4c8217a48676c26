"""Tells the service manager how the node is: systemd's protocol for `Type=notify`.

The manager names a datagram socket in `NOTIFY_SOCKET`. A service says there that it is ready or
about to stop, and, where `WATCHDOG_USEC` is set, that it is alive; one that says nothing for so
long is ended and started again. Without the variables nothing is said.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Self

SIGNS_OF_LIFE = 3
"""In the time after which a silent service counts as dead."""


class ServiceManager:
    """`address` is the manager's socket, None where there is none. A message that cannot be sent
    is lost: the node has better things to do than to wait for its manager."""

    def __init__(self, address: str | None, watchdog_s: float | None) -> None:
        self.watchdog_s = watchdog_s
        self._address = address
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str], process: int) -> Self:
        """What the environment says; a watchdog that is meant for another process is none."""
        address = variables.get("NOTIFY_SOCKET") or None
        if address is not None and address.startswith("@"):
            # The first octet of an abstract address.
            address = f"\0{address[1:]}"
        microseconds = variables.get("WATCHDOG_USEC", "")
        ours = variables.get("WATCHDOG_PID", str(process)) == str(process)
        watched = ours and microseconds.isdecimal() and int(microseconds) > 0
        return cls(address, int(microseconds) / 1e6 if watched else None)

    def ready(self, status: str) -> None:
        self._say("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self._say(f"STATUS={status}")

    def stopping(self) -> None:
        self._say("STOPPING=1", "STATUS=stopping")

    def stay_alive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give signs of life as long as the loop turns, if there is a watchdog."""
        if self._address is None or self.watchdog_s is None:
            return
        self._say("WATCHDOG=1")
        self._timer = loop.call_later(self.watchdog_s / SIGNS_OF_LIFE, self.stay_alive, loop)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _say(self, *lines: str) -> None:
        if self._address is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto("\n".join(lines).encode(), self._address)
            except OSError:
                return

"""Reports the state of the node to the service manager: systemd's protocol for `Type=notify`.

The manager names a datagram socket in `NOTIFY_SOCKET`. A service reports there that it is ready or
about to stop. If `WATCHDOG_USEC` is set, it also reports that it is alive; a service that is silent
for that time is killed and started again. Without the variables nothing is sent.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Self

SIGNS_OF_LIFE = 3
"""Reports of being alive within the watchdog's time."""


class ServiceManager:
    """The reports to a service manager. `address` is the manager's socket, or None. A message that
    cannot be sent is lost: the node does not wait for its manager."""

    def __init__(self, address: str | None, watchdog_s: float | None) -> None:
        self.watchdog_s = watchdog_s
        self._address = address
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str], process: int) -> Self:
        """The service manager named in the environment; a watchdog for another process is
        ignored."""
        address = variables.get("NOTIFY_SOCKET") or None
        if address is not None and address.startswith("@"):
            # The @ stands for the first octet of an abstract address, NUL.
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
        """Report being alive as long as the loop runs, if there is a watchdog."""
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

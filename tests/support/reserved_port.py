"""Ports for servers of tests that are started again, and are to be found where they were."""

from __future__ import annotations

import os
import socket
import weakref


def reserve_port(owner: object) -> int:
    """A port of 127.0.0.1 that nobody else is given by the kernel while the owner is there.

    It is bound and nobody listens. That does not stand in the way of servers, which set
    SO_REUSEADDR; but while none of them is up, no connection of others has it as its own port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        weakref.finalize(owner, os.close, holder.detach())
    return port

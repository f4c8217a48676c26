"""Error texts for addresses that cannot be listened at: which, why, and what to change.

The system says only "Name or service not known" or "Address already in use"; the person who starts
a node needs to know which listener has that problem, and how to choose another address.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Awaitable
from enum import Enum

from warren.config import ANY_HOST, Listener


class Purpose(Enum):
    """The purpose of a listener; the value says where to choose its address."""

    AMQP = "--amqp HOST:PORT, or listeners.tcp in rabbitmq.conf"
    AMQP_TLS = "listeners.ssl in rabbitmq.conf"
    HTTP = "--http HOST:PORT, or management.tcp in rabbitmq.conf"
    HTTP_TLS = "management.ssl in rabbitmq.conf"
    METRICS = "prometheus.tcp in rabbitmq.conf"
    METRICS_TLS = "prometheus.ssl in rabbitmq.conf"
    LINKS = "distribution.listener in rabbitmq.conf"


class AddressRefused(OSError):
    """The system does not let the node listen there. `errno` is the system's."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


async def opened(purpose: Purpose, address: Listener, listening: Awaitable[int]) -> int:
    """The port that `listening` opens. Raises `AddressRefused`."""
    try:
        return await listening
    except OSError as error:
        raise refusal(purpose, address, error) from error


def refusal(purpose: Purpose, address: Listener, error: OSError) -> AddressRefused:
    host, port = address
    choose = f"choose another with {purpose.value}"
    number = error.errno or 0
    if isinstance(error, socket.gaierror):
        return AddressRefused(number, f"host {host!r} was not found: {choose}")
    where = "every address" if host in ("", ANY_HOST) else host
    if number == errno.EADDRINUSE:
        reason = f"port {port} of {where} cannot be used, address already in use"
    elif number == errno.EADDRNOTAVAIL:
        reason = f"{host} is no address of this machine"
    elif number == errno.EACCES:
        reason = f"port {port} may be used by privileged processes only"
    else:
        reason = f"port {port} of {where} cannot be used, {os.strerror(number).lower()}"
    return AddressRefused(number, f"{reason}: {choose}")


def web_address(protocol: str, address: Listener, port: int, path_prefix: str) -> str:
    """The URL of a listener for a browser on this machine."""
    host = address.host
    if host in ("", ANY_HOST, "0.0.0.0"):
        host = "localhost"
    elif ":" in host:
        host = f"[{host}]"
    return f"{protocol}://{host}:{port}{path_prefix}/"

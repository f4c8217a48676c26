"""The ports that all processes of a broker share, reserved for as long as the supervisor lives.

Makes sure that no other program has these ports. Processes that share a port need SO_REUSEPORT,
with which the system would let two brokers of one user share it, too, without an error; so each
address is tried without it first. The reserved sockets are bound and do not listen: they get no
connections.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Self

from warren.addresses import Purpose, opened
from warren.amqp.accepting import bind
from warren.config import Config, Listener
from warren.mgmt.processes.plan import Addresses, Shared


class ReservedPorts:
    """The reserved ports, until `release`; `addresses` have real ports in place of 0."""

    def __init__(self) -> None:
        self.addresses = Shared((), (), (), (), (), ())
        self._kept: list[socket.socket] = []

    @classmethod
    async def reserve(cls, config: Config) -> Self:
        """Reserve all ports of the configuration. Raises `AddressRefused`."""
        ports = cls()
        try:
            ports.addresses = Shared(
                await ports._keep(Purpose.AMQP, config.amqp_listeners),
                await ports._keep(Purpose.AMQP_TLS, config.tls_listeners),
                await ports._keep(Purpose.HTTP, config.http_listeners),
                await ports._keep(Purpose.HTTP_TLS, config.http_tls_listeners),
                await ports._keep(Purpose.METRICS, config.metrics_listeners),
                await ports._keep(Purpose.METRICS_TLS, config.metrics_tls_listeners),
            )
        except BaseException:
            ports.release()
            raise
        return ports

    def release(self) -> None:
        for kept in self._kept:
            kept.close()
        self._kept.clear()

    async def _keep(self, purpose: Purpose, addresses: Addresses) -> Addresses:
        return tuple(
            [
                address._replace(port=await opened(purpose, address, self._keep_one(address)))
                for address in addresses
            ]
        )

    async def _keep_one(self, address: Listener) -> int:
        alone = await bind(*address)
        try:
            # Bound sockets with SO_REUSEADDR do not exclude each other; listening ones do.
            for one in alone:
                one.listen(1)
            port: int = alone[0].getsockname()[1]
        finally:
            _close(alone)
        self._kept += await bind(address.host, port, shared=True)
        return port


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        one.close()

"""How the file descriptors a process may have (`ulimit -n`) are shared out.

The system gives each new file or socket the lowest number that is free. So a socket whose number is
`clients` or above shows that as many are in use, for whatever purpose. It is refused, and the
numbers above are left for the node's own files, which must never wait for strangers to go.
"""

from __future__ import annotations

from typing import NamedTuple

SPARE_MAX = 200
"""Descriptors kept from clients: all open log files of both stores, and what threads open."""
SPARE_SHARE = 4
"""Where the limit is low, the fraction 1/SPARE_SHARE of it is kept from clients."""

THREADS_FILES = 15
"""Files that the threads, checkpoints and dialled links have open for a moment."""
LOG_FILES_MIN = 2
LOG_FILES_MAX = 64
"""Log files that a store keeps open to read from."""

STORES = 2

STRANGERS_SHARE = 4
"""The fraction 1/STRANGERS_SHARE of what is kept from clients is for strangers."""

HTTP_SHARE = 5
HTTP_MAX = 2000
"""HTTP connections at a time: clients that hold them open must not take AMQP's descriptors."""


class Descriptors(NamedTuple):
    """`clients`: the number from which on sockets are refused. `http`: connections at a time.
    `log_files`: how many each store keeps open. `strangers`: connections from other nodes that
    have not proved yet that they are of the cluster."""

    total: int
    clients: int
    http: int
    log_files: int
    strangers: int


def share_out(total: int) -> Descriptors:
    """For a process that may have so many."""
    spare = min(SPARE_MAX, total // SPARE_SHARE)
    clients = total - spare
    strangers = spare // STRANGERS_SHARE
    log_files = (spare - THREADS_FILES - strangers) // STORES
    return Descriptors(
        total,
        clients,
        min(HTTP_MAX, max(1, clients // HTTP_SHARE)),
        min(LOG_FILES_MAX, max(LOG_FILES_MIN, log_files)),
        strangers,
    )

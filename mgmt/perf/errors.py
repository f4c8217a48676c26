"""Errors that end a run early. Their texts are for the person who started the run.

PerfError
├── BrokerUnreachable   no connection, or its other end does not speak AMQP
├── LoginRefused        the broker does not take the user, the password or the vhost
├── ConnectionLost      the connection ended without a reason given
├── ClosedByBroker      the broker closed the channel or the connection, and said why
├── ConsumerCancelled   the broker ended a consumer, since its queue is gone
├── ProtocolFault       the broker sent something AMQP 0-9-1 does not allow
└── WorkerLost          a worker process of this run ended unexpectedly
"""

from __future__ import annotations


class PerfError(Exception):
    """A run cannot go on."""


class BrokerUnreachable(PerfError):
    pass


class PerfLoginRefused(PerfError):
    pass


class ConnectionLost(PerfError):
    pass


class ClosedByBroker(PerfError):
    """The broker closed `what`: the channel or the connection. `code` is AMQP's reply code."""

    def __init__(self, what: str, code: int, reply_text: str) -> None:
        super().__init__(f"the broker closed the {what}: {code} {reply_text}")
        self.code = code


class ConsumerCancelled(PerfError):
    pass


class ProtocolFault(PerfError):
    pass


class WorkerLost(PerfError):
    pass

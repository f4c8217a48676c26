"""What ends a run early. The text of each is written for the person who started the run.

PerfError
├── BrokerUnreachable   no connection, or nothing that speaks AMQP at its other end
├── LoginRefused        the broker does not take the user, the password or the vhost
├── ConnectionLost      the connection ended without a word
├── ClosedByBroker      the broker closed the channel or the connection, and said why
├── ConsumerCancelled   the broker ended a consumer, since its queue is gone
├── ProtocolFault       the broker sent what AMQP 0-9-1 does not allow
└── WorkerLost          one of our own processes ended on its own
"""

from __future__ import annotations


class PerfError(Exception):
    """A run cannot go on."""


class BrokerUnreachable(PerfError):
    pass


class LoginRefused(PerfError):
    pass


class ConnectionLost(PerfError):
    pass


class ClosedByBroker(PerfError):
    """`code` is AMQP's reply code; the text has it too."""

    def __init__(self, what: str, code: int, reply_text: str) -> None:
        super().__init__(f"the broker closed the {what}: {code} {reply_text}")
        self.code = code


class ConsumerCancelled(PerfError):
    pass


class ProtocolFault(PerfError):
    pass


class WorkerLost(PerfError):
    pass

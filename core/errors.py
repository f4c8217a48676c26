"""The errors of the broker, by their meaning; `amqp/errors.py` gives each its reply code.

    BrokerError
    ├── ChannelFault              closes the channel
    │   ├── AccessRefused         403
    │   ├── NotFound              404
    │   ├── ResourceLocked        405
    │   └── PreconditionFailed    406
    └── ConnectionFault           closes the connection
        ├── CommandInvalid        503
        ├── NotAllowed            530
        ├── Unsupported           540
        └── InternalFault         541

The text of an error is what the peer reads after the code's name; the texts are those of
reference amqp_semantics.md sections 2.1 and 2.2.
"""


class BrokerError(Exception):
    """An operation was refused; the text says why in words the peer is told."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class ChannelFault(BrokerError):
    """Closes the channel on which the operation was asked for."""


class AccessRefused(ChannelFault):
    """The user may not do this, or no user may (reserved names, internal exchanges)."""


class NotFound(ChannelFault):
    """The queue or exchange named does not exist."""


class ResourceLocked(ChannelFault):
    """The queue belongs exclusively to another connection."""


class PreconditionFailed(ChannelFault):
    """The operation contradicts the state or the declaration of the entity."""


class ConnectionFault(BrokerError):
    """Closes the whole connection."""


class CommandInvalid(ConnectionFault):
    """The command makes no sense to the broker, such as an unknown exchange type."""


class NotAllowed(ConnectionFault):
    """A limit, or access to a virtual host."""


class Unsupported(ConnectionFault):
    """The command is part of AMQP, but RabbitMQ does not have it (immediate, prefetch_size)."""


class InternalFault(ConnectionFault):
    """The broker could not carry out a legal command."""


def locked_queue(name: str, vhost: str) -> ResourceLocked:
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be"
        " originally declared on another connection or the exclusive property value does not match"
        " that of the original declaration."
    )


class HomeNodeDown(NotFound):
    """The queue is at a node that does not answer."""


class QueueNotHere(NotFound):
    """The leader of a queue was asked about it and has deleted it; the asking node has not heard
    of that yet."""


def no_queue(name: str, vhost: str) -> NotFound:
    return NotFound(f"no queue '{name}' in vhost '{vhost}'")


def unknown_type(kind: str) -> CommandInvalid:
    """There is no exchange type of this name."""
    return CommandInvalid(f"{'unknown' if kind else 'invalid'} exchange type '{kind}'")


def home_node_down(leader: str, durable: bool, name: str, vhost: str) -> HomeNodeDown:
    kind = "durable queue" if durable else "queue"
    return HomeNodeDown(
        f"home node '{leader}' of {kind} '{name}' in vhost '{vhost}' is down or inaccessible"
    )


def no_exchange(name: str, vhost: str) -> NotFound:
    return NotFound(f"no exchange '{name}' in vhost '{vhost}'")

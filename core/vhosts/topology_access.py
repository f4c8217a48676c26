"""The permissions that a user needs to declare and bind (amqp_semantics.md section 2.3).

AMQP and HTTP ask here, so that neither can do what the other refuses. The permission to configure
what is declared is not among it: it is asked for before anything is looked up.
"""

from __future__ import annotations

from typing import NamedTuple

from warren.core.access.access_control import AccessControl, Kind, Permission, User
from warren.core.errors import AccessRefused
from warren.core.exchanges.binding import DestinationKind
from warren.core.exchanges.exchange import ALTERNATE_EXCHANGE
from warren.core.exchanges.routing import DEFAULT_EXCHANGE
from warren.core.field import Table, to_text
from warren.core.queues.queue_arguments import DEAD_LETTER_EXCHANGE, check_dead_letter_exchange
from warren.core.vhosts.vhost import VirtualHost


class Asking(NamedTuple):
    """The user who declares or binds, and where.

    Without a user it is the node itself, which may do everything.
    """

    access: AccessControl
    user: User | None
    vhost: VirtualHost

    def check(self, kind: Kind, name: str, permission: Permission) -> None:
        if self.user is not None:
            self.access.check_resource(self.user, self.vhost.name, kind, name, permission)


def refuse_default(exchange: str) -> None:
    """Raise `AccessRefused` for the default exchange: it cannot be declared, deleted or bound."""
    if exchange == DEFAULT_EXCHANGE:
        raise AccessRefused("operation not permitted on the default exchange")


def check_binding(
    asking: Asking, kind: DestinationKind, destination: str, source: str, routing_key: str
) -> None:
    """Raise `AccessRefused` unless this may be bound or unbound."""
    asking.check(kind, destination, "write")
    if kind == "exchange":
        refuse_default(destination)
    refuse_default(source)
    asking.check("exchange", source, "read")
    exchange = asking.vhost.exchanges.get(source)
    if exchange is not None and exchange.type == "topic" and asking.user is not None:
        asking.access.check_topic(asking.user, asking.vhost.name, source, routing_key, "read")


def check_exchange(asking: Asking, name: str, arguments: Table) -> None:
    """Raise `PreconditionFailed` or `AccessRefused` for what a new exchange's arguments name."""
    asking.vhost.check_exchange_arguments(name, arguments)
    alternate = arguments.get(ALTERNATE_EXCHANGE)
    if alternate is not None:
        asking.check("exchange", name, "read")
        asking.check("exchange", to_text(alternate.value), "write")


def check_queue(asking: Asking, name: str, arguments: Table) -> None:
    """Check what a new queue needs."""
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if exchange is not None:
        check_dead_letter_exchange(name, asking.vhost.name, exchange)
        asking.check("queue", name, "read")
        asking.check("exchange", to_text(exchange.value), "write")

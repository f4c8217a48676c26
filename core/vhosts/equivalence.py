"""The refusals of declarations that contradict an existing object, in RabbitMQ's words."""

from __future__ import annotations

from warren.core.erlang_text import argument_text
from warren.core.errors import PreconditionFailed
from warren.core.exchanges.delay import DELAYED_TYPE, ROUTING_TYPE
from warren.core.exchanges.exchange import ALTERNATE_EXCHANGE, Exchange
from warren.core.field import Table


def check_exchange_equivalent(
    exchange: Exchange,
    vhost: str,
    kind: str,
    *,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Table,
) -> None:
    """Raise `PreconditionFailed` when a declaration contradicts the exchange there is."""
    described = f"exchange '{exchange.name}' in vhost '{vhost}'"
    for name, received, current in (
        ("type", type_shown(kind), type_shown(exchange.type)),
        ("durable", durable, exchange.durable),
        ("auto_delete", auto_delete, exchange.auto_delete),
        ("internal", internal, exchange.internal),
    ):
        if received != current:
            raise inequivalent(name, described, shown(received), shown(current))
    names = [ALTERNATE_EXCHANGE]
    if exchange.type == DELAYED_TYPE:
        names.append(ROUTING_TYPE)
    for name in names:
        received_argument, current_argument = arguments.get(name), exchange.arguments.get(name)
        if received_argument != current_argument:
            both = received_argument is not None and current_argument is not None
            raise inequivalent(
                name,
                described,
                argument_text(received_argument, both),
                argument_text(current_argument, both),
            )


def inequivalent(name: str, described: str, received: str, current: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{name}' for {described}: received {received} but current is {current}"
    )


def shown(value: str | bool) -> str:
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    return f"'{value}'"


def type_shown(kind: str) -> str:
    """The type of an exchange as RabbitMQ quotes it in this text."""
    return f"'{kind}'" if "-" in kind else kind

"""exchange.*: permissions and replies (amqp_semantics.md sections 2.3 and 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamqp import commands

from warren.amqp.methods import make
from warren.amqp.names import checked_new_name, clean_name
from warren.core.binding import Binding
from warren.core.errors import AccessRefused
from warren.core.topology_access import check_binding, check_exchange, refuse_default

if TYPE_CHECKING:
    from warren.amqp.channel import Channel


def declare(channel: Channel, method: commands.Exchange.Declare) -> None:
    vhost = channel.vhost
    name = clean_name(method.exchange)
    if method.passive:
        refuse_default(name)
        vhost.exchange(name)
    else:
        arguments: Any = method.arguments
        vhost.check_exchange_type(method.exchange_type)
        refuse_default(name)
        channel.check("exchange", name, "configure")
        existing = vhost.exchanges.get(name)
        if existing is None:
            checked_new_name("exchange", name)
            check_exchange(channel.asking(), name, arguments)
            vhost.declare_exchange(
                name,
                method.exchange_type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=arguments,
            )
        else:
            vhost.check_exchange_equivalent(
                existing,
                method.exchange_type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=arguments,
            )
    channel.reply_durably(None if method.nowait else make(commands.Exchange.DeclareOk))


def delete(channel: Channel, method: commands.Exchange.Delete) -> None:
    vhost = channel.vhost
    name = clean_name(method.exchange)
    refuse_default(name)
    if name.startswith("amq."):
        raise AccessRefused(
            f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed"
        )
    channel.check("exchange", name, "configure")
    existed = name in vhost.exchanges
    vhost.delete_exchange(name, if_unused=method.if_unused)
    if existed:
        channel.audit("exchange_deleted", exchange=name)
    channel.reply_durably(None if method.nowait else make(commands.Exchange.DeleteOk))


def bind(channel: Channel, method: commands.Exchange.Bind) -> None:
    channel.vhost.bind(_binding(channel, method), channel.connection)
    channel.reply_durably(None if method.nowait else make(commands.Exchange.BindOk))


def unbind(channel: Channel, method: commands.Exchange.Unbind) -> None:
    channel.vhost.unbind(_binding(channel, method), channel.connection)
    channel.reply_durably(None if method.nowait else make(commands.Exchange.UnbindOk))


def _binding(
    channel: Channel, method: commands.Exchange.Bind | commands.Exchange.Unbind
) -> Binding:
    source, destination = clean_name(method.source), clean_name(method.destination)
    check_binding(channel.asking(), "exchange", destination, source, method.routing_key)
    arguments: Any = method.arguments
    return Binding(source, "exchange", destination, method.routing_key, arguments)

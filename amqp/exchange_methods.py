"""exchange.*: permissions and replies (amqp_semantics.md sections 2.3 and 3)."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from warren.amqp.channel import Channel
from warren.amqp.methods import make
from warren.amqp.names import checked_new_name, clean_name
from warren.core.errors import AccessRefused
from warren.core.exchanges.binding import Binding, binding_in_turns
from warren.core.scheduling.waiting import decided, outliving, taken
from warren.core.vhosts.equivalence import check_exchange_equivalent
from warren.core.vhosts.topology_access import check_binding, check_exchange, refuse_default


async def declare(channel: Channel, method: commands.Exchange.Declare) -> None:
    name = clean_name(method.exchange)
    if method.passive:
        refuse_default(name)
        channel.vhost.exchange(name)
    else:
        channel.vhost.check_exchange_type(method.exchange_type)
        refuse_default(name)
        channel.check("exchange", name, "configure")
        await _active(channel, name, method)
    channel.reply_durably(None if method.nowait else make(commands.Exchange.DeclareOk))


async def _active(channel: Channel, name: str, method: commands.Exchange.Declare) -> None:
    vhost = channel.vhost
    arguments: Any = method.arguments
    while True:
        existing = vhost.exchanges.get(name)
        if existing is not None:
            check_exchange_equivalent(
                existing,
                vhost.name,
                method.exchange_type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=arguments,
            )
            return
        checked_new_name("exchange", name)
        check_exchange(channel.asking(), name, arguments)
        commit = vhost.declare_exchange(
            name,
            method.exchange_type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=arguments,
            declared_by=channel.connection.user_name,
        )
        await decided(commit)
        if not commit.refused:
            await vhost.placed_exchange(name)
            return


async def delete(channel: Channel, method: commands.Exchange.Delete) -> None:
    vhost = channel.vhost
    name = clean_name(method.exchange)
    refuse_default(name)
    if name.startswith("amq."):
        raise AccessRefused(
            f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed"
        )
    channel.check("exchange", name, "configure")
    existed = name in vhost.exchanges
    await outliving(vhost.end_exchange(name, if_unused=method.if_unused))
    if existed:
        channel.audit("exchange_deleted", exchange=name)
    channel.reply_durably(None if method.nowait else make(commands.Exchange.DeleteOk))


async def bind(channel: Channel, method: commands.Exchange.Bind) -> None:
    binding = await _binding(channel, method)
    await taken(lambda: channel.vhost.bind(binding, channel.connection))
    channel.reply_durably(None if method.nowait else make(commands.Exchange.BindOk))


async def unbind(channel: Channel, method: commands.Exchange.Unbind) -> None:
    binding = await _binding(channel, method)
    await outliving(taken(lambda: channel.vhost.unbind(binding, channel.connection)))
    channel.reply_durably(None if method.nowait else make(commands.Exchange.UnbindOk))


async def _binding(
    channel: Channel, method: commands.Exchange.Bind | commands.Exchange.Unbind
) -> Binding:
    source, destination = clean_name(method.source), clean_name(method.destination)
    check_binding(channel.asking(), "exchange", destination, source, method.routing_key)
    arguments: Any = method.arguments
    turns = channel.connection.node.turns
    return await binding_in_turns(
        turns, source, "exchange", destination, method.routing_key, arguments
    )

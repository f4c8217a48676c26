"""queue.*: permissions and replies (amqp_semantics.md sections 2.3 and 4)."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from warren.amqp.channel import Channel
from warren.amqp.methods import make
from warren.amqp.names import checked_new_name, clean_name
from warren.core.errors import NotFound, no_queue
from warren.core.exchanges.binding import Binding, binding_in_turns
from warren.core.queues.queue import Queue
from warren.core.queues.queue_arguments import check_named_by_client
from warren.core.scheduling.waiting import decided, outliving, taken
from warren.core.vhosts.reply_to import REPLY_TO_NAME, REPLY_TO_PREFIX
from warren.core.vhosts.topology_access import check_binding, check_queue


async def declare(channel: Channel, method: commands.Queue.Declare) -> None:
    name = clean_name(method.queue)
    if name == REPLY_TO_NAME or name.startswith(REPLY_TO_PREFIX):
        await _declare_reply_queue(channel, name, method.nowait)
        return
    channel.connection.node.counts.queues_declared += 1
    queue = _passive(channel, name) if method.passive else await _active(channel, name, method)
    channel.last_queue = queue.name
    messages, consumers = await queue.counts()
    if not method.nowait:
        channel.reply_durably(_declare_ok(queue.name, messages, consumers), queue.durable)


async def bind(channel: Channel, method: commands.Queue.Bind) -> None:
    binding = await _binding(channel, method)
    await taken(lambda: channel.vhost.bind(binding, channel.connection))
    channel.reply_durably(None if method.nowait else make(commands.Queue.BindOk))


async def unbind(channel: Channel, method: commands.Queue.Unbind) -> None:
    binding = await _binding(channel, method)
    await outliving(taken(lambda: channel.vhost.unbind(binding, channel.connection)))
    channel.reply_durably(make(commands.Queue.UnbindOk))


async def purge(channel: Channel, method: commands.Queue.Purge) -> None:
    name = named_queue(channel, method.queue)
    channel.check("queue", name, "read")
    queue = channel.vhost.queue(name)
    queue.check_access(channel.connection)
    count = await queue.empty()
    channel.audit("queue_purged", queue=name, messages=count)
    if not method.nowait:
        channel.reply(make(commands.Queue.PurgeOk, message_count=count))


async def delete(channel: Channel, method: commands.Queue.Delete) -> None:
    vhost = channel.vhost
    name = clean_name(named_queue(channel, method.queue))
    channel.check("queue", name, "configure")
    queue = vhost.queues.get(name)
    with channel.cancels_later():
        count = 0
        if queue is not None:
            queue.check_access(channel.connection)
            # The deletion must be finished even if the client leaves meanwhile: half a deletion
            # would be worse than none.
            await outliving(queue.end(if_unused=method.if_unused, if_empty=method.if_empty))
            count = queue.left_ready
            channel.audit("queue_deleted", queue=name, messages=count)
        if not method.nowait:
            delete_ok = make(commands.Queue.DeleteOk, message_count=count)
            channel.reply_durably(delete_ok, queue is not None and queue.durable)


def named_queue(channel: Channel, name: str) -> str:
    """The name, or if it is empty, the name of the queue last declared on this channel."""
    if name:
        return name
    if channel.last_queue is None:
        raise NotFound("no previously declared queue")
    return channel.last_queue


def _passive(channel: Channel, name: str) -> Queue:
    queue = channel.vhost.queue(name)
    queue.check_access(channel.connection)
    return queue


async def _active(channel: Channel, name: str, method: commands.Queue.Declare) -> Queue:
    vhost = channel.vhost
    given: Any = method.arguments
    arguments = vhost.with_default_type(
        given,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
    )
    if name:
        checked_new_name("queue", name)
    else:
        check_named_by_client(arguments)
        name = f"amq.gen-{channel.connection.node.new_token()}"
    channel.check("queue", name, "configure")
    owner = channel.connection if method.exclusive else None
    durable = method.durable and not method.exclusive
    while True:
        existing = vhost.queues.get(name)
        if existing is not None:
            vhost.check_queue_equivalent(
                existing,
                channel.connection,
                exclusive=method.exclusive,
                durable=durable,
                auto_delete=method.auto_delete,
                arguments=arguments,
            )
            return existing
        vhost.check_queue_limit(name)
        check_queue(channel.asking(), name, arguments)
        commit = vhost.declare_queue(
            name,
            durable=durable,
            exclusive_owner=owner,
            auto_delete=method.auto_delete,
            arguments=arguments,
            declared_by=channel.connection.user_name,
        )
        await decided(commit)
        if not commit.refused:
            queue = vhost.queue(name)
            await vhost.placed(queue)
            return queue


async def _declare_reply_queue(channel: Channel, name: str, nowait: bool) -> None:
    """The pseudo queues of direct reply-to: declaring one checks that its consumer exists."""
    if name != REPLY_TO_NAME and not await channel.connection.node.replies.alive(name):
        raise no_queue(name, channel.vhost.name)
    channel.last_queue = name
    if not nowait:
        channel.reply(_declare_ok(name, 0, 1))


def _declare_ok(name: str, messages: int, consumers: int) -> commands.Queue.DeclareOk:
    return make(
        commands.Queue.DeclareOk, queue=name, message_count=messages, consumer_count=consumers
    )


async def _binding(
    channel: Channel, method: commands.Queue.Bind | commands.Queue.Unbind
) -> Binding:
    destination = clean_name(named_queue(channel, method.queue))
    routing_key = method.routing_key
    if not method.queue and not routing_key:
        routing_key = destination
    source = clean_name(method.exchange)
    check_binding(channel.asking(), "queue", destination, source, routing_key)
    arguments: Any = method.arguments
    turns = channel.connection.node.turns
    return await binding_in_turns(turns, source, "queue", destination, routing_key, arguments)

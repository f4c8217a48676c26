"""basic.*, except publish (amqp_semantics.md section 5)."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from warren.amqp.channel import Channel
from warren.amqp.consumer import ChannelConsumer
from warren.amqp.methods import make
from warren.amqp.queue_methods import named_queue
from warren.amqp.reply_consumer import ReplyConsumer
from warren.amqp.settling import check_returnable
from warren.amqp.verdict import Verdict
from warren.core.errors import NotAllowed, PreconditionFailed, Unsupported
from warren.core.field import Table
from warren.core.messages.message import Message
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue import Queue
from warren.core.queues.queue_arguments import PRIORITY, check_consumer
from warren.core.queues.queue_type import CLASSIC, STREAM
from warren.core.scheduling.waiting import Waiting
from warren.core.vhosts.reply_to import REPLY_TO_NAME


def qos(channel: Channel, method: commands.Basic.Qos) -> None:
    if method.prefetch_size:
        raise Unsupported(f"prefetch_size!=0 ({method.prefetch_size})")
    channel.reply(make(commands.Basic.QosOk))
    if method.global_:
        channel.set_limit(method.prefetch_count)
    else:
        # As in RabbitMQ, this also removes the limit of the whole channel.
        channel.prefetch = method.prefetch_count
        channel.set_limit(0)


async def consume(channel: Channel, method: commands.Basic.Consume) -> None:
    tag = method.consumer_tag or f"amq.ctag-{channel.connection.node.new_token()}"
    name = named_queue(channel, method.queue)
    # The tag of a reply consumer may be that of another consumer, too.
    if tag in channel.consumers:
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    if name == REPLY_TO_NAME:
        _consume_replies(channel, tag, method)
        return
    channel.check("queue", name, "read")
    queue = channel.vhost.queue(name)
    queue.check_access(channel.connection)
    arguments: Any = method.arguments
    kind = queue.settings.type
    check_consumer(name, channel.vhost.name, kind, arguments)
    described = f"queue '{name}' in vhost '{channel.vhost.name}'"
    if kind is STREAM and not channel.prefetch:
        raise PreconditionFailed(f"consumer prefetch count is not set for '{described}'")
    if channel.limit is not None and kind is not CLASSIC:
        raise Unsupported(f"{described} does not support global qos")
    if kind is STREAM and method.no_ack:
        raise Unsupported(f"automatic acknowledgement not supported by stream queues {described}")
    consumer = ChannelConsumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        priority=_priority(arguments),
        prefetch=channel.prefetch,
        arguments=arguments,
    )
    consumer.blocked = channel.initially_blocked()
    await queue.subscribe(consumer)
    channel.add_consumer(consumer)
    if not method.no_ack:
        channel.timeout.watch(channel)
    if not method.nowait:
        channel.reply(make(commands.Basic.ConsumeOk, consumer_tag=tag))
    # The queue may have moved meanwhile; then it is another object.
    consumer.queue.deliver()


def cancel(channel: Channel, method: commands.Basic.Cancel) -> None:
    tag = method.consumer_tag or ""
    connection = channel.connection
    if channel.reply_consumer is not None and channel.reply_consumer.tag == tag:
        channel.reply_consumer.end()
        channel.reply_consumer = None
    elif (consumer := channel.remove_consumer(tag)) is not None:
        with connection.held.leaving(connection.node.metadata, connection.output) as left:
            event = consumer.queue.remove_consumer(consumer)
            left += [event] if event is not None else []
    if not method.nowait:
        channel.reply(make(commands.Basic.CancelOk, consumer_tag=tag))


def cancel_ok(_channel: Channel, _method: commands.Basic.CancelOk) -> None:
    """The broker's own basic.cancel asks for no answer, but some clients give one."""


def get(channel: Channel, method: commands.Basic.Get) -> Waiting[None] | None:
    name = named_queue(channel, method.queue)
    channel.check("queue", name, "read")
    queue = channel.vhost.queue(name)
    queue.check_access(channel.connection)
    if not isinstance(queue, LocalQueue) or queue.is_withheld:
        return _get_later(channel, queue, method.no_ack)
    message = queue.get(method.no_ack, channel.traced_as())
    if message is None and queue.is_withheld:
        return _get_later(channel, queue, method.no_ack)
    _answer_get(channel, queue, method.no_ack, message, len(queue))
    return None


async def _get_later(channel: Channel, queue: Queue, no_ack: bool) -> None:
    message, left, at = await queue.get_one(no_ack, channel.traced_as())
    _answer_get(channel, at, no_ack, message, left)


def _answer_get(
    channel: Channel, queue: Queue, no_ack: bool, message: Message | None, left: int
) -> None:
    if message is None:
        channel.got_nothing += 1
        channel.reply(make(commands.Basic.GetEmpty))
        return
    delivery_tag = channel.fetched(message, queue, no_ack)
    get_ok = make(
        commands.Basic.GetOk,
        delivery_tag=delivery_tag,
        redelivered=message.redelivered,
        exchange=message.envelope.exchange,
        routing_key=message.envelope.routing_key,
        message_count=left,
    )
    channel.write_content(get_ok, queue.envelope_got(message, no_ack), message.body)


def ack(channel: Channel, method: commands.Basic.Ack) -> None:
    channel.ack(method.delivery_tag or 0, method.multiple)


def nack(channel: Channel, method: commands.Basic.Nack) -> None:
    _check_taken_back(channel, method.delivery_tag or 0, method.multiple)
    verdict = Verdict.REQUEUE if method.requeue else Verdict.REJECT
    channel.judge(method.delivery_tag or 0, method.multiple, verdict)


def reject(channel: Channel, method: commands.Basic.Reject) -> None:
    _check_taken_back(channel, method.delivery_tag or 0, False)
    verdict = Verdict.REQUEUE if method.requeue else Verdict.REJECT
    channel.judge(method.delivery_tag or 0, False, verdict)


def recover(channel: Channel, method: commands.Basic.Recover) -> Waiting[None] | None:
    _check_recover(method.requeue)
    check_returnable(channel, channel.unacked, "basic.recover")
    # As in RabbitMQ, the answer comes first, and the redeliveries follow.
    channel.reply(make(commands.Basic.RecoverOk))
    return channel.requeue_all()


def recover_async(channel: Channel, method: commands.Basic.RecoverAsync) -> Waiting[None] | None:
    _check_recover(method.requeue)
    check_returnable(channel, channel.unacked, "basic.recover")
    return channel.requeue_all()


def _check_taken_back(channel: Channel, last: int, multiple: bool) -> None:
    """Raise `Unsupported` for a verdict about messages of a stream, which takes no messages
    back."""
    if channel.has_streams:
        tags = [tag for tag in channel.unacked if tag <= (last or tag)] if multiple else [last]
        check_returnable(channel, tags, "basic.nack and basic.reject")


def _check_recover(requeue: bool) -> None:
    if not requeue:
        raise Unsupported("requeue=false")


def _consume_replies(channel: Channel, tag: str, method: commands.Basic.Consume) -> None:
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise PreconditionFailed("reply consumer already set")
    channel.reply_consumer = ReplyConsumer(channel, tag, channel.connection.node)
    if not method.nowait:
        channel.reply(make(commands.Basic.ConsumeOk, consumer_tag=tag))


def _priority(arguments: Table) -> int:
    """The consumer's x-priority, which has been checked before."""
    priority = arguments.get(PRIORITY)
    number: int = 0 if priority is None else priority.value
    return number

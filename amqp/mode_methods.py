"""channel.*, confirm.*, tx.* and access.request: the life of a channel and its mode."""

from __future__ import annotations

from pamqp import commands

from warren.amqp.channel import Channel
from warren.amqp.confirms import ChannelConfirms
from warren.amqp.errors import ChannelError
from warren.amqp.leaving import end_all
from warren.amqp.methods import AccessRequest, AccessRequestOk, make
from warren.amqp.transaction import Transaction
from warren.core.errors import PreconditionFailed, Unsupported

GRANTED_TICKET = 1


def access_request(channel: Channel, _: AccessRequest) -> None:
    channel.reply(make(AccessRequestOk, ticket=GRANTED_TICKET))


def channel_open(_channel: Channel, _method: commands.Channel.Open) -> None:
    raise ChannelError("second 'channel.open' seen")


def channel_flow(channel: Channel, method: commands.Channel.Flow) -> None:
    if not method.active:
        raise Unsupported("active=false")
    channel.reply(make(commands.Channel.FlowOk, active=True))


def channel_close(channel: Channel, _: commands.Channel.Close) -> None:
    connection = channel.connection
    connection.output.append(channel.report_confirms())
    node = connection.node
    with connection.held.leaving(node.metadata, connection.output) as left:
        left += end_all([channel], node.turns)
    connection.channel_closed(channel.number)
    channel.reply(make(commands.Channel.CloseOk))


def confirm_select(channel: Channel, method: commands.Confirm.Select) -> None:
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = ChannelConfirms(channel.confirm_news)
    if not method.nowait:
        channel.reply(make(commands.Confirm.SelectOk))


def tx_select(channel: Channel, _: commands.Tx.Select) -> None:
    if channel.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel)
    channel.reply(make(commands.Tx.SelectOk))


async def tx_commit(channel: Channel, _: commands.Tx.Commit) -> None:
    await _transaction(channel).commit()
    channel.reply(make(commands.Tx.CommitOk))


def tx_rollback(channel: Channel, _: commands.Tx.Rollback) -> None:
    _transaction(channel).rollback()
    channel.reply(make(commands.Tx.RollbackOk))


def _transaction(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    return channel.transaction

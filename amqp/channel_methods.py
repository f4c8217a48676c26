"""The methods of channels, and the function that serves each; `connection_methods.py` has those of
channel 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pamqp import commands

from warren.amqp import basic_methods as basic
from warren.amqp import exchange_methods as exchange
from warren.amqp import mode_methods as mode
from warren.amqp import queue_methods as queue
from warren.amqp.channel import Channel
from warren.amqp.methods import AccessRequest, Method
from warren.core.errors import CommandInvalid
from warren.core.scheduling.waiting import Waiting

Handler: TypeAlias = Callable[[Channel, Any], Waiting[None] | None]
"""If serving the method has to wait, the handler returns a coroutine: the channel is read on when
it has ended."""

HANDLERS: Mapping[type[Method], Handler] = {
    AccessRequest: mode.access_request,
    commands.Channel.Open: mode.channel_open,
    commands.Channel.Flow: mode.channel_flow,
    commands.Channel.Close: mode.channel_close,
    commands.Confirm.Select: mode.confirm_select,
    commands.Tx.Select: mode.tx_select,
    commands.Tx.Commit: mode.tx_commit,
    commands.Tx.Rollback: mode.tx_rollback,
    commands.Exchange.Declare: exchange.declare,
    commands.Exchange.Delete: exchange.delete,
    commands.Exchange.Bind: exchange.bind,
    commands.Exchange.Unbind: exchange.unbind,
    commands.Queue.Declare: queue.declare,
    commands.Queue.Bind: queue.bind,
    commands.Queue.Unbind: queue.unbind,
    commands.Queue.Purge: queue.purge,
    commands.Queue.Delete: queue.delete,
    commands.Basic.Qos: basic.qos,
    commands.Basic.Consume: basic.consume,
    commands.Basic.Cancel: basic.cancel,
    commands.Basic.CancelOk: basic.cancel_ok,
    commands.Basic.Get: basic.get,
    commands.Basic.Ack: basic.ack,
    commands.Basic.Nack: basic.nack,
    commands.Basic.Reject: basic.reject,
    commands.Basic.Recover: basic.recover,
    commands.Basic.RecoverAsync: basic.recover_async,
}

REJECTING = frozenset((commands.Basic.Nack, commands.Basic.Reject))
"""The methods by which messages die; several in a row are followed by one burial."""


def serve(channel: Channel, method: Method) -> Waiting[None] | None:
    """Serve a method of a channel, other than basic.publish.

    If that has to wait, returns the coroutine to run before anything else is served. Raises
    `CommandInvalid` for methods that the broker does not have.
    """
    handle = HANDLERS.get(type(method))
    if handle is None:
        raise CommandInvalid("unimplemented method")
    if type(method) not in REJECTING:
        # A client that asks for a dead letter after it has rejected the message shall find it.
        channel.vhost.burials.bury_now()
    return handle(channel, method)

"""Where a job sends a message, and why a message stays in its queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from warren.client.content_header import MalformedContent
from warren.core.access.access_control import AccessControl, Kind, User
from warren.core.errors import AccessRefused
from warren.core.exchanges.exchange import Exchange
from warren.core.field import Field, long, longstr, to_text
from warren.core.messages.message import Envelope, Message
from warren.core.node import Node
from warren.core.queues.queue import Queue
from warren.core.vhosts.dead_letter import carbon_copies
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.messages.plan import Action, JobPlan
from warren.shovel.redrive import Back, LeftBehind, back


class Stays(Exception):
    """The message stays in its queue; the text says why."""


class MessageTarget(NamedTuple):
    """The queues that get a message, its envelope there, and the exchange that routes it."""

    queues: Sequence[Queue]
    envelope: Envelope
    exchange: Exchange | None = None


Find = Callable[[Message], MessageTarget]
"""Finds the target of a message. Raises `Stays`."""


REPLAYED = "x-replayed"
"""The header of a replayed message: the stream or queue it comes from, and its position there."""


def targets(node: Node, queue: Queue, plan: JobPlan, user: User | None) -> Find:
    """The function that finds targets for this plan. A message goes only where this user may
    publish it; None is the command line, which may publish anywhere."""
    find = _targets(node, queue, plan, user)
    if plan.action is not Action.REPLAY:
        return find

    def find_replayed(message: Message) -> MessageTarget:
        header = message.envelope.header
        mark = {
            "stream" if queue.is_stream else "queue": longstr(queue.name),
            "offset" if queue.is_stream else "position": long(message.position),
        }
        headers = {**node.codec.headers(header), REPLAYED: Field("F", mark)}
        marked = replace(
            message.envelope, header=node.codec.with_headers(header, headers), stored=None
        )
        return find(Message(marked, message.body, message.position))

    return find_replayed


def _targets(node: Node, queue: Queue, plan: JobPlan, user: User | None) -> Find:
    vhost = node.vhosts[queue.vhost_name]
    rights = _Rights(node.access, vhost.name, user)
    if plan.action is Action.REDRIVE:
        return _Redrive(node, vhost, plan, rights).find
    if plan.to_exchange is not None:
        exchange, key = plan.to_exchange, plan.routing_key

        def find(message: Message) -> MessageTarget:
            envelope = _addressed(message.envelope, exchange, key)
            rights.check_publish(envelope)
            return _routed(vhost, envelope)

        return find
    name = queue.name if plan.to_queue is None else plan.to_queue
    return lambda message: _to_queue(vhost, name, message.envelope)


class _Rights:
    """Checks what a user may write to. Its methods raise `Stays` if the user may not."""

    def __init__(self, access: AccessControl, vhost: str, user: User | None) -> None:
        self._access = access
        self._vhost = vhost
        self._user = user

    def check_queue(self, name: str) -> None:
        if self._user is not None:
            self._check("queue", name, self._user)

    def check_publish(self, envelope: Envelope) -> None:
        """Check the exchange, and each routing key."""
        if self._user is None:
            return
        exchange = envelope.exchange
        self._check("exchange", exchange, self._user)
        try:
            for key in envelope.routing_keys:
                self._access.check_topic(self._user, self._vhost, exchange, key, "write")
        except AccessRefused as refused:
            raise Stays(refused.text) from refused

    def _check(self, kind: Kind, name: str, user: User) -> None:
        try:
            self._access.check_resource(user, self._vhost, kind, name, "write")
        except AccessRefused as refused:
            raise Stays(refused.text) from refused


def _to_queue(vhost: VirtualHost, name: str, envelope: Envelope) -> MessageTarget:
    target = vhost.queues.get(name)
    if target is None:
        raise Stays(f"there is no queue '{name}'")
    return MessageTarget((target,), envelope)


def _addressed(envelope: Envelope, exchange: str, routing_key: str | None) -> Envelope:
    copies = envelope.copies if routing_key is None else ()
    key = envelope.routing_key if routing_key is None else routing_key
    return replace(
        envelope, exchange=exchange, routing_key=key, copies=copies, address=b"", stored=None
    )


def _routed(vhost: VirtualHost, envelope: Envelope) -> MessageTarget:
    exchange = vhost.exchanges.get(envelope.exchange)
    if exchange is None:
        raise Stays(f"there is no exchange '{envelope.exchange}'")
    keys = envelope.routing_keys
    queues = vhost.queues_for(exchange, keys, envelope.header)
    if not queues:
        raise Stays("no queue takes it")
    return MessageTarget(queues, envelope, exchange)


class _Redrive:
    """Finds where dead letters came from."""

    def __init__(self, node: Node, vhost: VirtualHost, plan: JobPlan, rights: _Rights) -> None:
        self._node = node
        self._vhost = vhost
        self._plan = plan
        self._rights = rights

    def find(self, message: Message) -> MessageTarget:
        try:
            address, header = back(message.envelope.header, self._plan.back_to, self._plan.death)
        except LeftBehind as left:
            raise Stays(str(left)) from left
        except MalformedContent as malformed:
            raise Stays("its properties are malformed") from malformed
        exchange, key = to_text(address.exchange), to_text(address.routing_key)
        copies = carbon_copies(self._node.codec.headers(header), "CC")
        envelope = replace(
            message.envelope,
            exchange=exchange,
            routing_key=key,
            header=header,
            copies=copies,
            address=b"",
            stored=None,
        )
        if self._plan.back_to is Back.QUEUE:
            self._rights.check_queue(key)
        else:
            self._rights.check_publish(envelope)
        return _routed(self._vhost, envelope)

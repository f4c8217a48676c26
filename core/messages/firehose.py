"""The firehose: copies of every publish and delivery of a virtual host to amq.rabbitmq.trace.

Off unless an operator asks for it; not kept over a restart (amqp_semantics.md section 11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from warren.core.field import Field, Table, cut_to_short_string, longstr, signed_int
from warren.core.messages.message import Envelope
from warren.core.messages.message_observer import MessageObserver, TracedClient, TracedQueue
from warren.core.ports import ContentCodec
from warren.core.scheduling.waiting import Waiting, run

TRACE_EXCHANGE = "amq.rabbitmq.trace"


class Publisher(Protocol):
    """The virtual host, as the firehose uses it."""

    name: str

    def publish(
        self, envelope: Envelope, body: bytes, routing_keys: Sequence[str]
    ) -> Waiting[None]: ...


class Firehose(MessageObserver):
    """Traces one virtual host."""

    def __init__(self, vhost: Publisher, node_name: str, codec: ContentCodec) -> None:
        self._vhost = vhost
        self._node_name = node_name
        self._codec = codec

    def published(
        self,
        publisher: TracedClient,
        envelope: Envelope,
        body: bytes,
        queues: Sequence[TracedQueue],
    ) -> None:
        """A client published this, and it reached these queues."""
        keys = envelope.routing_keys
        headers = self._headers(envelope, keys, publisher)
        headers["routed_queues"] = Field("A", [longstr(queue.name) for queue in queues])
        self._copy(f"publish.{envelope.exchange}", headers, body)

    def delivered(
        self,
        queue: TracedQueue,
        recipient: TracedClient,
        envelope: Envelope,
        body: bytes,
        redelivered: bool,
        no_ack: bool,
    ) -> None:
        """A client was handed this from the queue. As with RabbitMQ, the node of the client traces
        that, wherever the queue is."""
        if envelope.exchange == TRACE_EXCHANGE or recipient.is_elsewhere:
            return
        headers = self._headers(envelope, (envelope.routing_key,), recipient)
        headers["redelivered"] = signed_int(redelivered)
        self._copy(f"deliver.{queue.name}", headers, body)

    def _headers(self, envelope: Envelope, keys: Sequence[str], client: TracedClient) -> Table:
        return {
            "exchange_name": longstr(envelope.exchange),
            "routing_keys": Field("A", [longstr(key) for key in keys]),
            "properties": Field("F", _signed(self._codec.as_table(envelope.header))),
            "node": longstr(self._node_name),
            "vhost": longstr(self._vhost.name),
            "connection": longstr(client.connection),
            "channel": signed_int(client.channel),
            "user": longstr(client.user),
        }

    def _copy(self, routing_key: str, headers: Table, body: bytes) -> None:
        header = self._codec.content_header(len(body), headers)
        routing_key = cut_to_short_string(routing_key)
        envelope = Envelope(TRACE_EXCHANGE, routing_key, header, False, 0, None)
        copying = self._vhost.publish(envelope, body, (routing_key,))
        run(copying, lambda result: result())


def _signed(properties: Table) -> Table:
    """The properties with numbers as RabbitMQ traces them: Java's client knows no type `B`."""
    return {
        name: field if field.kind in "SF" else signed_int(field.value)
        for name, field in properties.items()
    }

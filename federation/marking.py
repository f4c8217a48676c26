"""Writes the way of a message through a federation into its headers.

`x-received-from` is an array with a table for each broker that the message came from, the newest
first. A message of a queue has one table for each queue it was in, with the number of its visits
there; its headers also keep the exchange and routing key with which it was published first.
Everything else in a message stays as it is, except that `user_id` is removed unless the upstream is
trusted with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from warren.client.content_header import with_properties
from warren.client.events import Delivered
from warren.core.exchanges.federation_hops import (
    CLUSTER_NAME,
    RECEIVED_FROM,
    VHOST,
    HopBroker,
    tables_of,
    text_of,
)
from warren.core.field import Field, Table, long, longstr
from warren.core.ports import ContentCodec

URI = "uri"
EXCHANGE = "exchange"
QUEUE = "queue"
REDELIVERED = "redelivered"
VISIT_COUNT = "visit-count"
ORIGINAL_EXCHANGE = "x-original-exchange"
ORIGINAL_ROUTING_KEY = "x-original-routing-key"
ORIGINAL_CC = "x-original-cc"
CC = "CC"

EncodeTable: TypeAlias = Callable[[Table], bytes]
"""The octets of a table, with their length. Raises ValueError for an invalid table."""


class Marker(NamedTuple):
    """Reads and writes content headers. `keeps_user`: `user_id` stays."""

    codec: ContentCodec
    encode_table: EncodeTable
    keeps_user: bool

    def of_exchange(self, message: Delivered, uri: str, exchange: str, broker: HopBroker) -> bytes:
        """The content header of a message that came from this exchange. Raises ValueError."""
        headers = self.codec.headers(message.header)
        entry = {
            URI: longstr(uri),
            EXCHANGE: longstr(exchange),
            REDELIVERED: Field("t", message.redelivered),
            CLUSTER_NAME: longstr(broker.cluster),
            VHOST: longstr(broker.vhost),
        }
        return self._written(message.header, _received(headers, entry, _earlier(headers)))

    def of_queue(self, message: Delivered, uri: str, queue: str) -> bytes:
        """The content header of a message that came from this queue. Raises ValueError."""
        headers = self.codec.headers(message.header)
        visits = 0
        others = []
        for former in _earlier(headers):
            if (text_of(former.get(URI)), text_of(former.get(QUEUE))) == (uri, queue):
                count = former.get(VISIT_COUNT)
                visits = count.value if count is not None and count.kind == "l" else 0
            else:
                others.append(former)
        entry = {
            URI: longstr(uri),
            QUEUE: longstr(queue),
            REDELIVERED: Field("t", message.redelivered),
            VISIT_COUNT: long(visits + 1),
        }
        first = ORIGINAL_EXCHANGE not in headers
        headers = _received(headers, entry, others)
        if first:
            headers[ORIGINAL_EXCHANGE] = Field("S", message.exchange)
            headers[ORIGINAL_ROUTING_KEY] = Field("S", message.routing_key)
        # The message is for one queue here, and further routing keys would bring it to others.
        if CC in headers:
            headers[ORIGINAL_CC] = headers.pop(CC)
        return self._written(message.header, headers)

    def _written(self, header: bytes, headers: Table) -> bytes:
        changed: dict[str, bytes | None] = {"headers": self.encode_table(headers)}
        if not self.keeps_user:
            changed["user_id"] = None
        return with_properties(header, changed)


def _earlier(headers: Table) -> list[Table]:
    return tables_of(headers.get(RECEIVED_FROM))


def _received(headers: Table, entry: Table, earlier: list[Table]) -> Table:
    tables = [Field("F", table) for table in (entry, *earlier)]
    return {**headers, RECEIVED_FROM: Field("A", tables)}

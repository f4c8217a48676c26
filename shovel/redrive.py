"""Finds where a dead letter came from, so that a shovel with `dest-redrive` can send it back.

`x-death` has a table for each queue in which a message died and each reason, the last death first
(amqp_semantics.md section 4). The table names the queue, and the exchange and the routing keys with
which the message was published before it came there. A message goes back to the queue or to the
exchange. It stays where it is if its `x-death` does not name that queue or exchange, or if the
queue or exchange refuses it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from warren.client.content_header import (
    Fields,
    array_items,
    array_value,
    array_values,
    header_fields,
    longstr_octets,
    longstr_value,
    table_fields,
    table_octets,
    with_properties,
)
from warren.core.field import to_text

DEATHS = b"x-death"
CARBON_COPIES = b"CC"
DELIVERIES = b"x-delivery-count"


class Back(Enum):
    """A dead letter goes back to the queue in which it died, or to the exchange before it."""

    QUEUE = "queue"
    EXCHANGE = "exchange"


class DecidingDeath(Enum):
    """Which death decides where a message that died several times goes back to."""

    LAST = "last"
    FIRST = "first"


class LeftBehind(Exception):
    """The message cannot go back; the text says why."""


class WayBack(NamedTuple):
    exchange: bytes
    routing_key: bytes


def back(header: bytes, to: Back, which: DecidingDeath) -> tuple[WayBack, bytes]:
    """The address to which the message with this content header goes back, and the header to send.

    The new header lacks the count of deliveries, so that it begins anew. For a message that goes
    back to an exchange, `CC` has its further routing keys again. The rest is the same. Raises
    `LeftBehind` and `MalformedContent`.
    """
    fields = header_fields(header)
    death = _death(fields, which)
    changed = fields.with_field(DELIVERIES, None)
    if to is Back.QUEUE:
        address = WayBack(b"", _text(death, b"queue"))
    else:
        first, *others = _routing_keys(death)
        address = WayBack(_text(death, b"exchange"), first)
        if others and fields.get(CARBON_COPIES) is None:
            texts = [to_text(key) for key in others]
            copies = b"".join([longstr_value(text) for text in texts])
            changed = changed.with_field(CARBON_COPIES, array_value(copies))
    if changed == fields:
        return address, header
    return address, with_properties(header, {"headers": table_octets(changed)})


def _death(fields: Fields, which: DecidingDeath) -> Fields:
    items = array_items(fields.get(DEATHS) or b"")
    tables = [table_fields(value) for value in array_values(items)] if items else []
    deaths = [table for table in tables if table is not None]
    if not deaths:
        raise LeftBehind("it has no x-death that says where it came from")
    return deaths[0] if which is DecidingDeath.LAST else _first(fields, deaths)


def _first(fields: Fields, deaths: list[Fields]) -> Fields:
    """The death that `x-first-death-queue` and `-reason` name, or else the last of the list.

    The list is no help where a message died in a circle: the queue in which it died first comes to
    the front when it dies there again.
    """
    queue, reason = fields.get(b"x-first-death-queue"), fields.get(b"x-first-death-reason")
    if queue is not None:
        for death in deaths:
            if death.get(b"queue") == queue and reason in (None, death.get(b"reason")):
                return death
    return deaths[-1]


def _text(death: Fields, name: bytes) -> bytes:
    octets = longstr_octets(death.get(name) or b"")
    if octets is None or len(octets) > 255:
        raise LeftBehind(f"its x-death does not say the {name.decode()} it came from")
    return octets


def _routing_keys(death: Fields) -> list[bytes]:
    items = array_items(death.get(b"routing-keys") or b"")
    found = [longstr_octets(value) for value in array_values(items)] if items else []
    keys = [key for key in found if key is not None and len(key) <= 255]
    if not keys:
        raise LeftBehind("its x-death does not say the routing key it was published with")
    return keys

"""The methods of AMQP 0-9-1 and RabbitMQ's extensions to it, as bytes and back.

A method is known by its name in the specification (`queue.declare-ok`) and its fields by theirs,
with `_` for `-`. Fields that a test leaves out are written as zero, empty or false.
"""

import struct
from dataclasses import dataclass, field
from typing import Any

from warren.compat_tests.field_table import (
    Reader,
    as_bytes,
    encode_longstr,
    encode_shortstr,
    encode_table,
)

# name: (class id, method id, fields in order)
SPECIFICATION = """
connection.start         10 10  version_major:octet version_minor:octet server_properties:table \
                                mechanisms:longstr locales:longstr
connection.start-ok      10 11  client_properties:table mechanism:shortstr response:longstr \
                                locale:shortstr
connection.secure        10 20  challenge:longstr
connection.secure-ok     10 21  response:longstr
connection.tune          10 30  channel_max:short frame_max:long heartbeat:short
connection.tune-ok       10 31  channel_max:short frame_max:long heartbeat:short
connection.open          10 40  virtual_host:shortstr reserved_1:shortstr reserved_2:bit
connection.open-ok       10 41  known_hosts:shortstr
connection.close         10 50  reply_code:short reply_text:shortstr class_id:short method_id:short
connection.close-ok      10 51
connection.blocked       10 60  reason:shortstr
connection.unblocked     10 61
connection.update-secret 10 70  new_secret:longstr reason:shortstr
connection.update-secret-ok 10 71
channel.open             20 10  reserved_1:shortstr
channel.open-ok          20 11  reserved_1:longstr
channel.flow             20 20  active:bit
channel.flow-ok          20 21  active:bit
channel.close            20 40  reply_code:short reply_text:shortstr class_id:short method_id:short
channel.close-ok         20 41
access.request           30 10  realm:shortstr exclusive:bit passive:bit active:bit write:bit \
                                read:bit
access.request-ok        30 11  ticket:short
exchange.declare         40 10  ticket:short exchange:shortstr type:shortstr passive:bit \
                                durable:bit auto_delete:bit internal:bit nowait:bit arguments:table
exchange.declare-ok      40 11
exchange.delete          40 20  ticket:short exchange:shortstr if_unused:bit nowait:bit
exchange.delete-ok       40 21
exchange.bind            40 30  ticket:short destination:shortstr source:shortstr \
                                routing_key:shortstr nowait:bit arguments:table
exchange.bind-ok         40 31
exchange.unbind          40 40  ticket:short destination:shortstr source:shortstr \
                                routing_key:shortstr nowait:bit arguments:table
exchange.unbind-ok       40 51
queue.declare            50 10  ticket:short queue:shortstr passive:bit durable:bit exclusive:bit \
                                auto_delete:bit nowait:bit arguments:table
queue.declare-ok         50 11  queue:shortstr message_count:long consumer_count:long
queue.bind               50 20  ticket:short queue:shortstr exchange:shortstr routing_key:shortstr \
                                nowait:bit arguments:table
queue.bind-ok            50 21
queue.purge              50 30  ticket:short queue:shortstr nowait:bit
queue.purge-ok           50 31  message_count:long
queue.delete             50 40  ticket:short queue:shortstr if_unused:bit if_empty:bit nowait:bit
queue.delete-ok          50 41  message_count:long
queue.unbind             50 50  ticket:short queue:shortstr exchange:shortstr routing_key:shortstr \
                                arguments:table
queue.unbind-ok          50 51
basic.qos                60 10  prefetch_size:long prefetch_count:short global:bit
basic.qos-ok             60 11
basic.consume            60 20  ticket:short queue:shortstr consumer_tag:shortstr no_local:bit \
                                no_ack:bit exclusive:bit nowait:bit arguments:table
basic.consume-ok         60 21  consumer_tag:shortstr
basic.cancel             60 30  consumer_tag:shortstr nowait:bit
basic.cancel-ok          60 31  consumer_tag:shortstr
basic.publish            60 40  ticket:short exchange:shortstr routing_key:shortstr mandatory:bit \
                                immediate:bit
basic.return             60 50  reply_code:short reply_text:shortstr exchange:shortstr \
                                routing_key:shortstr
basic.deliver            60 60  consumer_tag:shortstr delivery_tag:longlong redelivered:bit \
                                exchange:shortstr routing_key:shortstr
basic.get                60 70  ticket:short queue:shortstr no_ack:bit
basic.get-ok             60 71  delivery_tag:longlong redelivered:bit exchange:shortstr \
                                routing_key:shortstr message_count:long
basic.get-empty          60 72  cluster_id:shortstr
basic.ack                60 80  delivery_tag:longlong multiple:bit
basic.reject             60 90  delivery_tag:longlong requeue:bit
basic.recover-async      60 100 requeue:bit
basic.recover            60 110 requeue:bit
basic.recover-ok         60 111
basic.nack               60 120 delivery_tag:longlong multiple:bit requeue:bit
basic.credit             60 200 consumer_tag:shortstr credit:long drain:bit
confirm.select           85 10  nowait:bit
confirm.select-ok        85 11
tx.select                90 10
tx.select-ok             90 11
tx.commit                90 20
tx.commit-ok             90 21
tx.rollback              90 30
tx.rollback-ok           90 31
"""

NUMBERS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}
CONTENT_METHODS = frozenset({"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"})

# Properties of class basic in the order of their flag bits, the highest bit first.
PROPERTIES: dict[str, str] = {
    "content_type": "shortstr",
    "content_encoding": "shortstr",
    "headers": "table",
    "delivery_mode": "octet",
    "priority": "octet",
    "correlation_id": "shortstr",
    "reply_to": "shortstr",
    "expiration": "shortstr",
    "message_id": "shortstr",
    "timestamp": "longlong",
    "type": "shortstr",
    "user_id": "shortstr",
    "app_id": "shortstr",
    "cluster_id": "shortstr",
}


@dataclass(frozen=True)
class Signature:
    class_id: int
    method_id: int
    fields: dict[str, str]


@dataclass
class Method:
    """A method that arrived, and the content that came with it if it carries one."""

    name: str
    channel: int
    fields: dict[str, Any]
    properties: dict[str, Any] = field(default_factory=dict)
    property_bytes: bytes = b""
    body: bytes = b""

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def headers(self) -> dict[str, Any]:
        """The headers property; empty when the message has none."""
        headers: dict[str, Any] = self.properties.get("headers", {})
        return headers

    @property
    def typed_headers(self) -> dict[str, Any]:
        """The headers property with every value as `Typed`."""
        headers: dict[str, Any] = decode_properties(self.property_bytes, True).get("headers", {})
        return headers

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.fields.items())
        body = f" with body {self.body!r}" if self.name in CONTENT_METHODS else ""
        return f"{self.name}({shown}) on channel {self.channel}{body}"


def read_specification(text: str) -> dict[str, Signature]:
    methods: dict[str, Signature] = {}
    for line in text.strip().splitlines():
        name, class_id, method_id, *fields = line.split()
        pairs = dict(part.split(":") for part in fields)
        methods[name] = Signature(int(class_id), int(method_id), pairs)
    return methods


METHODS = read_specification(SPECIFICATION)
NAMES = {(method.class_id, method.method_id): name for name, method in METHODS.items()}


def encode_method(name: str, fields: dict[str, Any]) -> bytes:
    """The payload of a method frame."""
    signature = METHODS[name]
    unknown = fields.keys() - signature.fields.keys()
    if unknown:
        raise TypeError(f"{name} has no field {sorted(unknown)}")
    out = bytearray(struct.pack(">HH", signature.class_id, signature.method_id))
    bits: list[bool] = []
    for key, kind in signature.fields.items():
        value = fields.get(key)
        if kind == "bit":
            bits.append(bool(value))
            continue
        out += pack_bits(bits)
        bits.clear()
        out += encode_field(kind, value)
    return bytes(out + pack_bits(bits))


def pack_bits(bits: list[bool]) -> bytes:
    """Neighbouring bits share one octet, the first one lowest."""
    return bytes([sum(bit << place for place, bit in enumerate(bits))]) if bits else b""


def encode_field(kind: str, value: Any) -> bytes:
    if kind in NUMBERS:
        return struct.pack(NUMBERS[kind], value or 0)
    if kind == "shortstr":
        return encode_shortstr(value or "")
    if kind == "longstr":
        return encode_longstr(as_bytes(value or b""))
    return encode_table(value or {})


def decode_method(channel: int, payload: bytes) -> Method:
    reader = Reader(payload)
    class_id, method_id = reader.number(">H"), reader.number(">H")
    name = NAMES.get((class_id, method_id))
    if name is None:
        raise ValueError(f"the broker sent an unknown method {class_id}/{method_id}")
    fields: dict[str, Any] = {}
    octet, place = 0, 8
    for key, kind in METHODS[name].fields.items():
        if kind != "bit":
            place = 8
            fields[key] = decode_field(reader, kind)
            continue
        if place == 8:
            octet, place = reader.number(">B"), 0
        fields[key] = bool(octet >> place & 1)
        place += 1
    if reader.rest:
        raise ValueError(f"{reader.rest} bytes are left after the fields of {name}")
    return Method(name, channel, fields)


def decode_field(reader: Reader, kind: str, typed: bool = False) -> Any:
    if kind in NUMBERS:
        return reader.number(NUMBERS[kind])
    if kind == "shortstr":
        return reader.shortstr()
    if kind == "longstr":
        return reader.longstr()
    return reader.table(typed)


def encode_header(properties: dict[str, Any], body_size: int, class_id: int = 60) -> bytes:
    """The payload of a content header frame; `headers` may hold `Typed` values."""
    unknown = properties.keys() - PROPERTIES.keys()
    if unknown:
        raise TypeError(f"class basic has no property {sorted(unknown)}")
    flags, values = 0, b""
    for place, (key, kind) in enumerate(PROPERTIES.items()):
        if key in properties:
            flags |= 1 << 15 - place
            values += encode_field(kind, properties[key])
    return struct.pack(">HHQH", class_id, 0, body_size, flags) + values


def decode_properties(data: bytes, typed: bool = False) -> dict[str, Any]:
    """Flags and values of a content header, that is its payload from the twelfth byte on."""
    reader = Reader(data)
    flags = reader.number(">H")
    return {
        key: decode_field(reader, kind, typed)
        for place, (key, kind) in enumerate(PROPERTIES.items())
        if flags >> 15 - place & 1
    }

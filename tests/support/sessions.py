"""Sessions for fuzzing: mostly legal frames, drawn from a pool, and what can be done to them.

All chance comes from the `Random` given, so that a seed is a session. The frames are made once:
a session costs little more than choosing them.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from itertools import pairwise
from random import Random
from typing import Any

from pamqp import commands
from pipe import Frame, method_frame, publish_frames

from warren.amqp.frames import METHOD
from warren.amqp.methods import METHODS, make
from warren.core.field import Field, Table, long, longstr

QUEUES = ("q0", "q1", "q2", "q3", "")
EXCHANGES = ("x0", "x1", "x2", "amq.fanout", "amq.headers", "amq.topic", "", "nowhere")
KEYS = ("q0", "q1", "a.b", "#", "a.*", "", "k" * 255, "amq.rabbitmq.reply-to", "é.ü")
TYPES = ("direct", "fanout", "topic", "headers", "x-consistent-hash", "x-random", "x-none")
POOL_SIZE = 3000

_EXTREMES = (0, 1, 2, 127, 128, 255, 4095, 4096, 65535, 1 << 31, (1 << 32) - 1, (1 << 63), -1)


def random_field(random: Random, depth: int = 0) -> Field:
    kind = random.choice("SSSxtbBsuIillfdTDFAV" if depth < 3 else "Slt")
    if kind in "Sx":
        return Field(kind, random.choice((b"", b"v", b"q0", b"\xff\xfe", random.randbytes(20))))
    if kind == "t":
        return Field(kind, random.random() < 0.5)
    if kind in "fd":
        return Field(kind, random.choice((0.0, -1.5, float("inf"), float("nan"))))
    if kind == "D":
        return Field(kind, (random.randrange(256), random.randrange(1 << 32)))
    if kind == "F":
        return Field(kind, random_table(random, depth + 1))
    if kind == "A":
        return Field(kind, [random_field(random, depth + 1) for _ in range(random.randrange(4))])
    if kind == "V":
        return Field(kind, None)
    low, high = {
        "b": (-128, 127), "B": (0, 255), "s": (-32768, 32767), "u": (0, 65535),
        "I": (-(1 << 31), (1 << 31) - 1), "i": (0, (1 << 32) - 1), "l": (-(1 << 63), (1 << 63) - 1),
        "T": (0, (1 << 64) - 1),
    }[kind]  # fmt: skip
    return Field(kind, random.choice((low, high, 0, 1, random.randint(low, high))))


def random_table(random: Random, depth: int = 0) -> Table:
    names = ("a", "x-match", "x-death", "CC", "BCC", "x-max-length", "\udcff", "n" * 255)
    return {random.choice(names): random_field(random, depth) for _ in range(random.randrange(4))}


def queue_arguments(random: Random) -> Table:
    """Arguments a queue takes, and now and then something else."""
    arguments: Table = {}
    for name, choices in (
        ("x-message-ttl", (0, 1, 50, 60000)),
        ("x-max-length", (0, 1, 5)),
        ("x-max-length-bytes", (0, 10, 500)),
        ("x-max-priority", (0, 1, 5)),
        ("x-expires", (1, 100, 60000)),
    ):
        if random.random() < 0.2:
            arguments[name] = long(random.choice(choices))
    if random.random() < 0.3:
        arguments["x-dead-letter-exchange"] = longstr(random.choice(EXCHANGES))
        if random.random() < 0.7:
            key = random.choice((*KEYS, "long" * 100))
            arguments["x-dead-letter-routing-key"] = longstr(key)
    if random.random() < 0.2:
        overflow = random.choice(("drop-head", "reject-publish", "reject-publish-dlx"))
        arguments["x-overflow"] = longstr(overflow)
    if random.random() < 0.1:
        arguments["x-single-active-consumer"] = Field("t", True)
    if random.random() < 0.1:
        arguments.update(random_table(random))
    return arguments


def message_headers(random: Random) -> Table | None:
    if random.random() < 0.6:
        return None
    table = random_table(random)
    if random.random() < 0.9:
        table.pop("CC", None)
        table.pop("BCC", None)
    if random.random() < 0.3:
        table[random.choice(("CC", "BCC"))] = Field("A", [longstr(random.choice(KEYS))])
    if random.random() < 0.2:
        death = {
            "queue": longstr(random.choice(QUEUES)),
            "reason": longstr(random.choice(("rejected", "expired", "maxlen"))),
            "count": long(random.choice((1, (1 << 63) - 1, -5))),
        }
        table["x-death"] = Field("A", [Field("F", death), random_field(random)])
    return table


def random_publish(random: Random, channel: int) -> bytes:
    """A publish, which is refused once in a while."""
    odd = random.random() < 0.05
    properties: dict[str, Any] = {"headers": message_headers(random)}
    if random.random() < 0.3:
        properties["delivery_mode"] = 3 if odd else random.choice((1, 2))
    if random.random() < 0.3:
        properties["priority"] = random.choice((0, 1, 9, 255))
    if random.random() < 0.3:
        properties["expiration"] = random.choice(
            ("x", "-1", "9" * 30) if odd else ("0", "1", "50", "100000")
        )
    if random.random() < 0.2:
        properties["correlation_id"] = "id"
    if random.random() < 0.1:
        properties["reply_to"] = random.choice(("amq.rabbitmq.reply-to", "q0", "q0", "q0"))
    return publish_frames(
        channel,
        "nowhere"
        if odd and random.random() < 0.5
        else random.choice(("", "", "", "x0", "amq.fanout", "amq.topic")),
        random.choice(("q0", "q0", "q1", *KEYS)),
        random.randbytes(random.choice((0, 1, 5, 5, 5, 100, 4088, 4089, 9000))),
        mandatory=random.random() < 0.3,
        **properties,
    )


def random_method(random: Random, channel: int) -> bytes:
    """A method a client sends, with arguments that are mostly sensible."""

    def flag(share: float = 0.5) -> bool:
        return random.random() < share

    c = commands
    queue = random.choice(("q0", "q0", "q1", "q1", *QUEUES))
    exchange = random.choice(EXCHANGES if flag(0.1) else ("x0", "x0", "amq.fanout", "amq.topic"))
    tag = random.choice(("c0", "c1", "c2", ""))
    delivery_tag = random.choice((0, 1, 2, 3))
    choices: tuple[tuple[int, type[Any], dict[str, Any]], ...] = (
        (2, c.Queue.Declare, {
            "queue": queue, "durable": flag(), "exclusive": flag(0.2), "passive": flag(0.3),
            "auto_delete": flag(0.3), "nowait": flag(0.3), "arguments": queue_arguments(random),
        }),
        (3, c.Queue.Bind, {
            "queue": queue, "exchange": exchange, "routing_key": random.choice((*KEYS, "10")),
            "nowait": flag(), "arguments": {} if flag(0.8) else random_table(random),
        }),
        (1, c.Queue.Unbind, {"queue": queue, "exchange": exchange}),
        (1, c.Queue.Purge, {"queue": queue, "nowait": flag()}),
        (1, c.Queue.Delete, {"queue": queue, "if_unused": flag(), "if_empty": flag()}),
        (1, c.Exchange.Declare, {
            "exchange": exchange, "exchange_type": random.choice(TYPES), "durable": flag(),
            "auto_delete": flag(), "internal": flag(0.2), "passive": flag(0.1),
            "arguments": {} if flag(0.6) else {"alternate-exchange": longstr(exchange)},
        }),
        (2, c.Exchange.Bind, {
            "source": exchange, "destination": random.choice(("x0", "amq.fanout", "amq.topic")),
            "routing_key": "#",
        }),
        (1, c.Exchange.Unbind, {"source": exchange, "destination": "amq.fanout"}),
        (1, c.Exchange.Delete, {"exchange": random.choice(("x0", exchange)), "if_unused": flag()}),
        (6, c.Basic.Consume, {
            "queue": random.choice((queue, queue, "amq.rabbitmq.reply-to")),
            "consumer_tag": tag if flag(0.1) else "", "no_ack": flag(), "exclusive": flag(0.1),
            "nowait": flag(), "arguments": {} if flag() else {"x-priority": long(flag())},
        }),
        (3, c.Basic.Cancel, {"consumer_tag": tag}),
        (6, c.Basic.Get, {"queue": queue, "no_ack": flag()}),
        (2, c.Basic.Ack, {"delivery_tag": delivery_tag, "multiple": flag()}),
        (2, c.Basic.Nack, {"delivery_tag": delivery_tag, "multiple": flag(), "requeue": flag()}),
        (1, c.Basic.Reject, {"delivery_tag": delivery_tag, "requeue": flag()}),
        (3, c.Basic.Recover, {"requeue": flag(0.98)}),
        (6, c.Basic.Qos, {"prefetch_count": random.choice((0, 1, 2, 10)), "global_": flag()}),
        (1, c.Confirm.Select, {}),
        (1, c.Tx.Select, {}),
        (4, c.Tx.Commit, {}),
        (4, c.Tx.Rollback, {}),
        (1, c.Channel.Close, {}),
        (1, c.Channel.Flow, {"active": flag(0.95)}),
    )  # fmt: skip
    _, kind, arguments = random.choices(choices, [weight for weight, _, _ in choices])[0]
    if kind in (c.Tx.Commit, c.Tx.Rollback, c.Tx.Select) and flag(0.95):
        channel = 3
    return method_frame(channel, kind, **arguments)


def any_method(random: Random, channel: int) -> bytes:
    """Any method of AMQP, the broker's own too, with default arguments."""
    kind = random.choice(list(METHODS.values()))
    return method_frame(channel, kind) if make(kind) is not None else b""


def make_pool(random: Random, size: int = POOL_SIZE) -> list[bytes]:
    """Frames to choose from; a publish counts as one."""
    pool = []
    for _ in range(size):
        channel = random.choice((1, 1, 1, 2, 2, 3))
        kind = random.random()
        if kind < 0.4:
            pool.append(random_publish(random, channel))
        elif kind < 0.995:
            pool.append(random_method(random, channel))
        else:
            pool.append(any_method(random, random.choice((0, channel))))
    return pool


def make_openings(random: Random, size: int = 300) -> list[bytes]:
    """What sessions start with: without queues, bindings and consumers little happens."""
    return [_opening(random) for _ in range(size)]


def _opening(random: Random) -> bytes:
    c = commands
    kind = random.choice(TYPES[:-1])
    alternate: Table = {}
    if random.random() < 0.3:
        alternate["alternate-exchange"] = longstr("amq.fanout")
    frames = [
        method_frame(2, c.Confirm.Select, nowait=True),
        method_frame(1, c.Exchange.Delete, exchange="x0", nowait=True),
        method_frame(
            1, c.Exchange.Declare, exchange="x0", exchange_type=kind, nowait=True,
            durable=random.random() < 0.3, auto_delete=random.random() < 0.3, arguments=alternate,
        ),
    ]  # fmt: skip
    if random.random() < 0.5:
        frames.append(method_frame(3, c.Tx.Select))
    for name in ("q0", "q1"):
        frames += [
            method_frame(1, c.Queue.Delete, queue=name, nowait=True),
            method_frame(
                1, c.Queue.Declare, queue=name, nowait=True, durable=random.random() < 0.3,
                auto_delete=random.random() < 0.2, arguments=queue_arguments(random),
            ),
            method_frame(
                1, c.Queue.Bind, queue=name, exchange=random.choice(("x0", "amq.fanout")),
                routing_key="1", nowait=True,
            ),
        ]  # fmt: skip
    for channel in (1, 2, 3):
        if random.random() < 0.5:
            count, whole = random.choice((0, 1, 2, 5)), random.random() < 0.3
            frames.append(method_frame(channel, c.Basic.Qos, prefetch_count=count, global_=whole))
        if random.random() < 0.5:
            frames.append(
                method_frame(
                    channel, c.Basic.Consume, queue=random.choice(("q0", "q1")),
                    consumer_tag="c0", no_ack=random.random() < 0.3, nowait=True,
                )
            )  # fmt: skip
    return b"".join(frames)


def mutated(random: Random, octets: bytes) -> bytes:
    """The octets with one thing wrong."""
    if len(octets) < 8:
        return random.randbytes(10)
    at = random.randrange(len(octets))
    match random.randrange(10):
        case 0:
            return octets[:at] + bytes((octets[at] ^ 1 << random.randrange(8),)) + octets[at + 1 :]
        case 1:
            return octets[:at] + bytes((random.randrange(256),)) + octets[at + 1 :]
        case 2:
            return octets[:at]
        case 3:
            return octets[:at] + random.randbytes(random.randrange(1, 9)) + octets[at:]
        case 4:
            end = min(len(octets), at + random.randrange(1, 9))
            return octets[:at] + octets[end:]
        case 5:
            size = struct.pack(">I", random.choice(_EXTREMES) & 0xFFFFFFFF)
            return octets[:at] + size + octets[at + 4 :]
        case 6:
            kind = random.choice((0, 1, 2, 3, 4, 8, 255))
            return bytes((kind,)) + octets[1:]
        case 7:
            channel = struct.pack(">H", random.choice((0, 1, 2, 3, 9, 65535)))
            return octets[:1] + channel + octets[3:]
        case 8:
            # A shorter payload in a frame that is well-formed otherwise.
            return Frame(octets[0], octets[2], octets[7 : 7 + at // 2]).octets
        case _:
            kind, channel = random.choice((1, 1, 2, 3, 8)), random.randrange(3)
            payload = random.randbytes(random.randrange(40))
            if kind == 1 and random.random() < 0.8:
                payload = struct.pack(">I", random.choice(list(METHODS))) + payload
            return octets + Frame(kind, channel, payload).octets


def random_session(random: Random, pool: list[bytes], openings: list[bytes]) -> list[bytes]:
    """What one peer says after the handshake, in parts between which it may listen."""
    parts = [random.choice(pool) for _ in range(random.randrange(1, 25))]
    if random.random() < 0.3:
        # The same publish again and again, which the connection recognises by its octets.
        at = random.randrange(len(parts))
        parts[at:at] = [random_publish(random, random.choice((1, 2)))] * random.randrange(2, 6)
    for _ in range(random.choice((0, 0, 1, 1, 2))):
        at = random.randrange(len(parts))
        parts[at] = mutated(random, parts[at])
    if random.random() < 0.9:
        parts.insert(0, random.choice(openings))
    if random.random() < 0.5:
        parts = pieces(random, b"".join(parts))
    return parts


def pieces(random: Random, octets: bytes) -> list[bytes]:
    """The octets as reads of a socket might cut them."""
    cuts = sorted(random.randrange(len(octets) + 1) for _ in range(random.choice((1, 3, 10))))
    bounds = [0, *cuts, len(octets)]
    return [octets[a:b] for a, b in pairwise(bounds) if a < b]


_CHANNEL_CLOSE = struct.pack(">HH", 20, 40)
_DELIVER = struct.pack(">HH", 60, 60)
_GET_OK = struct.pack(">HH", 60, 71)
_ACK = struct.pack(">HH", 60, 80)
_NACK = struct.pack(">HH", 60, 120)


_REOPENED: defaultdict[int, bytes] = defaultdict(
    bytes,
    {
        channel: method_frame(channel, commands.Channel.Open)
        + method_frame(channel, mode)
        + method_frame(channel, commands.Basic.Consume, queue=queue, consumer_tag="c0", nowait=True)
        for channel, mode, queue in (
            (1, commands.Confirm.Select, "q0"),
            (2, commands.Confirm.Select, "q1"),
            (3, commands.Tx.Select, "q0"),
        )
    },
)


def reactions(random: Random, frames: list[Frame]) -> bytes:
    """What a peer says to what it was told: a closed channel is opened again, and of what is
    delivered some is acknowledged."""
    said = []
    for kind, channel, payload in frames:
        if kind != METHOD:
            continue
        index = payload[:4]
        if index == _CHANNEL_CLOSE:
            said.append(method_frame(channel, commands.Channel.CloseOk))
            said.append(_REOPENED[channel])
        elif index in (_DELIVER, _GET_OK) and random.random() < 0.3:
            at = 5 + payload[4] if index == _DELIVER else 4
            tag = payload[at : at + 8]
            settled = _ACK if random.random() < 0.5 else _NACK
            said.append(
                Frame(METHOD, channel, settled + tag + bytes((random.randrange(4),))).octets
            )
    return b"".join(said)

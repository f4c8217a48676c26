"""Sessions for fuzzing: mostly legal frames, drawn from a pool, and what can be done to them.

All chance comes from the `Random` given, so that a seed is a session. The frames are made once:
a session costs little more than choosing them.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from pamqp import commands
from pipe import Frame, method_frame, publish_frames

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
    properties: dict[str, Any] = {"headers": message_headers(random)}
    if random.random() < 0.3:
        properties["delivery_mode"] = random.choice((1, 2, 2, 3))
    if random.random() < 0.3:
        properties["priority"] = random.choice((0, 1, 9, 255))
    if random.random() < 0.3:
        properties["expiration"] = random.choice(("0", "1", "50", "100000", "x", "-1", "9" * 30))
    if random.random() < 0.2:
        properties["correlation_id"] = "id"
    if random.random() < 0.2:
        properties["reply_to"] = random.choice(("amq.rabbitmq.reply-to", "q0"))
    return publish_frames(
        channel,
        random.choice(("", "", "", *EXCHANGES)),
        random.choice(KEYS),
        random.randbytes(random.choice((0, 1, 5, 5, 5, 100, 4088, 4089, 9000))),
        mandatory=random.random() < 0.3,
        **properties,
    )


def random_method(random: Random, channel: int) -> bytes:
    """A method a client sends, with arguments that are mostly sensible."""
    c = commands
    flag = lambda share=0.5: random.random() < share  # noqa: E731
    queue, exchange = random.choice(QUEUES), random.choice(EXCHANGES)
    tag = random.choice(("c0", "c1", "c2", ""))
    delivery_tag = random.choice((0, 1, 1, 2, 3, 4, 5, 9, 100, (1 << 64) - 1))
    kind, arguments = random.choice(
        (
            (c.Queue.Declare, {
                "queue": queue, "durable": flag(), "exclusive": flag(0.2), "passive": flag(0.1),
                "auto_delete": flag(0.3), "nowait": flag(0.3), "arguments": queue_arguments(random),
            }),
            (c.Queue.Bind, {
                "queue": queue, "exchange": exchange, "routing_key": random.choice((*KEYS, "10")),
                "nowait": flag(), "arguments": {} if flag(0.8) else random_table(random),
            }),
            (c.Queue.Unbind, {"queue": queue, "exchange": exchange}),
            (c.Queue.Purge, {"queue": queue, "nowait": flag()}),
            (c.Queue.Delete, {"queue": queue, "if_unused": flag(), "if_empty": flag()}),
            (c.Exchange.Declare, {
                "exchange": exchange, "exchange_type": random.choice(TYPES), "durable": flag(),
                "auto_delete": flag(), "internal": flag(0.2), "passive": flag(0.1),
                "arguments": {} if flag(0.6) else {"alternate-exchange": longstr(exchange)},
            }),
            (c.Exchange.Bind, {
                "source": exchange, "destination": random.choice(EXCHANGES), "routing_key": "#",
            }),
            (c.Exchange.Unbind, {"source": exchange, "destination": random.choice(EXCHANGES)}),
            (c.Exchange.Delete, {"exchange": exchange, "if_unused": flag()}),
            (c.Basic.Consume, {
                "queue": random.choice((*QUEUES, "amq.rabbitmq.reply-to")), "consumer_tag": tag,
                "no_ack": flag(), "exclusive": flag(0.1), "nowait": flag(),
                "arguments": {} if flag(0.8) else {"x-priority": long(random.choice((-1, 5)))},
            }),
            (c.Basic.Cancel, {"consumer_tag": tag}),
            (c.Basic.Get, {"queue": queue, "no_ack": flag()}),
            (c.Basic.Ack, {"delivery_tag": delivery_tag, "multiple": flag()}),
            (c.Basic.Nack, {
                "delivery_tag": delivery_tag, "multiple": flag(), "requeue": flag(),
            }),
            (c.Basic.Reject, {"delivery_tag": delivery_tag, "requeue": flag()}),
            (c.Basic.Recover, {"requeue": flag(0.9)}),
            (c.Basic.Qos, {"prefetch_count": random.choice((0, 1, 2, 10)), "global_": flag()}),
            (c.Confirm.Select, {}), (c.Tx.Select, {}), (c.Tx.Commit, {}), (c.Tx.Rollback, {}),
            (c.Channel.Open, {}), (c.Channel.CloseOk, {}), (c.Channel.CloseOk, {}),
            (c.Channel.Close, {}), (c.Channel.Flow, {"active": flag(0.9)}),
        )
    )  # fmt: skip
    return method_frame(channel, kind, **arguments)


def any_method(random: Random, channel: int) -> bytes:
    """Any method of AMQP, the broker's own too, with default arguments."""
    kind = random.choice(list(METHODS.values()))
    return method_frame(channel, kind) if make(kind) is not None else b""


def make_pool(random: Random, size: int = POOL_SIZE) -> list[bytes]:
    """Frames to choose from; a publish counts as one."""
    pool = []
    for _ in range(size):
        channel = random.choice((1, 1, 1, 1, 2, 2, 3))
        kind = random.random()
        if kind < 0.4:
            pool.append(random_publish(random, channel))
        elif kind < 0.97:
            pool.append(random_method(random, channel))
        else:
            pool.append(any_method(random, random.choice((0, channel))))
    return pool


def opening(random: Random) -> bytes:
    """Frames that most sessions start with: without queues and consumers little happens."""
    durable = random.random() < 0.3
    frames = [
        method_frame(1, commands.Queue.Declare, queue=name, durable=durable, nowait=True)
        for name in ("q0", "q1")
    ]
    if random.random() < 0.5:
        frames.append(method_frame(1, commands.Basic.Consume, queue="q0", no_ack=False))
    if random.random() < 0.2:
        frames.append(method_frame(2, commands.Confirm.Select))
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


def random_session(random: Random, pool: list[bytes]) -> bytes:
    """The octets of one peer after the handshake."""
    parts = [random.choice(pool) for _ in range(random.randrange(1, 25))]
    if random.random() < 0.3:
        # The same publish again and again, which the connection recognises by its octets.
        at = random.randrange(len(parts))
        parts[at:at] = [random_publish(random, random.choice((1, 2)))] * random.randrange(2, 6)
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        at = random.randrange(len(parts))
        parts[at] = mutated(random, parts[at])
    if random.random() < 0.8:
        parts.insert(0, opening(random))
    return b"".join(parts)


def pieces(random: Random, octets: bytes) -> list[bytes]:
    """The octets as reads of a socket might cut them."""
    if random.random() < 0.3:
        return [octets]
    cuts = sorted(random.randrange(len(octets) + 1) for _ in range(random.choice((1, 3, 10))))
    bounds = [0, *cuts, len(octets)]
    return [octets[a:b] for a, b in zip(bounds, bounds[1:], strict=False) if a < b]

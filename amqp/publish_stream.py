"""Publishes that come with all their content, one behind the other: the path most messages take.

A publish is three frames: the method, the content header, the body. If all of it is in the buffer
and it is an ordinary publish, it is recognised by its octets, without decoding a method:

- the octets of the method frame name the route, which was found when they came first; of a frame
  that differs from the last one in its routing key only, the key alone is looked up, so keys of a
  topic exchange may all be different;
- the content header is stepped through once for the properties that publishing needs; a header that
  equals the last one in all octets that decide these is not stepped through again;
- to a headers exchange, the headers that its bindings ask for are decoded, and lead to the queues;
- then the body is cut out, or put together where it comes in several frames, and the publish is
  gathered with those before it.

The publishes gathered go to the queues when no further publish can be taken, or when there are
enough of them (`gathered_publishes.py`). So a queue and its consumers get many messages at a time,
which costs less for each.

All other publishes are left alone, before any part of them is carried out, and go the general way
(`Connection`, `Channel.publish`), which answers them properly: publishes that are incomplete, not
allowed, malformed or too large; those with CC, BCC or a direct reply address; and publishes that an
observer must see one by one, or that come during an alarm.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache

from warren.amqp.channel import Channel
from warren.amqp.channel_owner import ChannelOwner
from warren.amqp.frames import BODY, FRAME_END, HEAD, HEADER, METHOD, OVERHEAD
from warren.amqp.gathered_publishes import GatheredPublishes, Gathering
from warren.amqp.properties import EXPIRATION_AT, EXPIRING, PERSISTENT, PRIORITY, UNUSUAL, ordinary
from warren.amqp.publishing import QUEUES_AT_ONCE, Route
from warren.core.access.quotas import VhostQuotas
from warren.core.errors import BrokerError
from warren.core.messages.message import Envelope
from warren.core.messages.stock import Stock
from warren.core.queues.queue import Queue
from warren.core.scheduling.turns import TURN_US, Unfinished

DECIDED_MAX = 128
"""Octets of a header that are compared with those of the next one. Headers that are decided by more
octets, such as those with the headers table of a task, are hardly ever the same."""

PUBLISH_MIN = 40
"""A lower limit of the octets of a publish: its three frames take more."""

PIECE_MIN = 1024
"""Octets of each frame of a body but the last. Bodies in smaller frames cost more for their frames,
and go the general way, which counts them."""

_METHOD_HEAD = struct.Struct(">BHII")
"""Type, channel and payload size of a method frame; class and method."""

_EXCHANGE_AT = 13
"""The offset of the exchange in the method frame of a publish."""

_CONTENT_HEAD = struct.Struct(">BHIIQH")
"""Type, channel, payload size of a content header frame; class and weight, body size, first
flags."""

_CONTENT_MIN = _CONTENT_HEAD.size + 1 + OVERHEAD + 1
"""The octets of a content header frame without properties and a body frame with one octet."""

_BODY_SIZE = struct.Struct(">Q")
_BODY_SIZE_AT = 11
_DECIDING_AT = 19
_FLAGS_AT = 12
"""Offsets of body size and flags in the frame of a content header, and of flags in its payload."""

_NOTHING_BEGINS_SO = b"\xff"
"""The value of `start` while there is no header to compare with: no frame has this type."""

_BASIC_PUBLISH = 60 << 16 | 40
_BASIC = 60 << 16
_HEADER_MIN = 14


def serve_publishes(connection: ChannelOwner[Channel], data: bytes, pos: int, end: int) -> int:
    """Serve publishes from `pos` on; returns the offset of the first that is not served.

    It may stop because the turn is over. If it returns `pos`, the general way has to serve the next
    frame.
    """
    routes = connection.routes
    assert routes is not None
    if connection.node.alarms.raised:
        return pos
    known = routes.known()
    quotas, observed = routes.vhost.quotas, routes.vhost.observation.is_needed
    user = routes.user_octets
    unpack_head, unpack_size = _CONTENT_HEAD.unpack_from, _BODY_SIZE.unpack_from
    frame_room = connection.frame_max - OVERHEAD
    gathering = Gathering()
    batch: GatheredPublishes | None = None
    like: _Like | None = None
    start, deciding = _NOTHING_BEGINS_SO, b""
    to_body, persistent, priority = 0, False, 0
    expiration_ms: int | None = None
    while True:
        another = like.key_of(data, pos, end) if like is not None else None
        if another is not None:
            method, routing_key, queues = another
            address = method[_EXCHANGE_AT:-2]
        else:
            recognised = _recognise(connection, data, pos, end, known)
            if recognised is None:
                break
            method, channel, route = recognised
            queues = route.queues or ()
            number, body_heads = channel.number, channel.body_heads
            body_max = min(frame_room, channel.body_size_max)
            exchange, routing_key = route.exchange_name, route.routing_key
            address = route.address
            by_key = None if quotas else route.by_key
            like = _Like(method, by_key, queues if observed else None) if by_key else None
            by_headers = route.by_headers
            start = start if by_headers is None else _NOTHING_BEGINS_SO
        if batch is None or another is None or queues is not batch.queues:
            batch = gathering.batch_for(channel, route, queues, expiration_ms)
            if batch is None:
                return pos
            if quotas is not None and not _has_room(quotas, route, end - pos):
                break
        header_at, last_header = len(method), b""
        room, envelopes, bodies = batch.room, batch.envelopes, batch.bodies
        while data.startswith(method, pos):
            at = pos + header_at
            is_like = data.startswith(start, at) and data.startswith(deciding, at + _DECIDING_AT)
            if is_like:
                (body_size,) = unpack_size(data, at + _BODY_SIZE_AT)
            elif end - at < _CONTENT_MIN:
                break
            else:
                kind, its_number, size, class_and_weight, body_size, flags = unpack_head(data, at)
                if (
                    kind != HEADER
                    or its_number != number
                    or class_and_weight != _BASIC
                    or not _HEADER_MIN <= size <= frame_room
                ):
                    break
                to_body = size + 2 * OVERHEAD - 1
            body_at = at + to_body
            stop = body_at + body_size
            if (
                stop >= end
                or not 0 < body_size <= body_max
                or data[stop] != FRAME_END
                or not data.startswith(body_heads[body_size], body_at - OVERHEAD)
            ):
                found_body = _body_in_frames(channel, data, body_at - OVERHEAD, end, body_size)
                if found_body is None:
                    break
                stop, body = found_body
            header = data[at + OVERHEAD - 1 : body_at - OVERHEAD]
            if not is_like:
                found, decided = ordinary(header, flags, user)
                if found == UNUSUAL:
                    break
                priority = found & PRIORITY
                if found < EXPIRING:
                    persistent, expiration_ms = found >= PERSISTENT, None
                else:
                    persistent, expiration_ms = found & PERSISTENT > 0, (found >> EXPIRATION_AT) - 1
                if by_headers is not None or expiration_ms != batch.expiration_ms:
                    queues = batch.queues if by_headers is None else by_headers(header)
                    batch = gathering.batch_for(channel, route, queues, expiration_ms)
                    if batch is None:
                        return pos
                    if not 0 < len(batch.queues) <= QUEUES_AT_ONCE:
                        break
                    room, envelopes, bodies = batch.room, batch.envelopes, batch.bodies
                if decided <= DECIDED_MAX:
                    start = data[at : at + _BODY_SIZE_AT]
                    deciding = header[_FLAGS_AT:decided]
                else:
                    start = _NOTHING_BEGINS_SO
            if header != last_header or stop - body_at != body_size:
                envelope = Envelope(
                    exchange, routing_key, header, persistent, priority, expiration_ms, (), address
                )
                last_header = header
                envelopes.append(envelope)
                bodies.append(data[body_at:stop] if stop - body_at == body_size else body)
                pos = stop + 1
            else:
                # A client that sends the same header twice may send it many times.
                pos = _take_alike(data, pos, end, body_at - pos, body_size, bodies, room)
                envelopes += [envelope] * (len(bodies) - len(envelopes))
            if len(bodies) >= room:
                if not gathering.hand_over():
                    return pos
                envelopes, bodies = batch.envelopes, batch.bodies
        else:
            continue
        break
    gathering.hand_over()
    return pos


def _body_in_frames(
    channel: Channel, data: bytes, at: int, end: int, body_size: int
) -> tuple[int, bytes] | None:
    """Read a body that does not come in exactly one frame: it is empty, or in several frames.

    The frame of the content header ends at `at`. Returns the offset at which the publish ends, and
    the body. Returns None if the publish is incomplete, has to be refused, or comes in frames that
    are too small to be read here.
    """
    frame_room = channel.connection.frame_max - OVERHEAD
    if at + body_size >= end or body_size > channel.body_size_max or data[at] != FRAME_END:
        return None
    pieces: list[memoryview] = []
    octets, left = memoryview(data), body_size
    while left:
        begin = at + 1 + HEAD.size
        if begin >= end:
            return None
        kind, number, size = HEAD.unpack_from(data, at + 1)
        at = begin + size
        if not min(left, PIECE_MIN) <= size <= min(left, frame_room):
            return None
        if kind != BODY or number != channel.number or at >= end or data[at] != FRAME_END:
            return None
        pieces.append(octets[begin:at])
        left -= size
    return at, b"".join(pieces)


def _take_alike(
    data: bytes, pos: int, end: int, head_size: int, body_size: int, bodies: list[bytes], room: int
) -> int:
    """Take the bodies of publishes from `pos` on that are the same but for the body; return the
    offset behind them."""
    head = data[pos : pos + head_size]
    while len(bodies) < room and data.startswith(head, pos):
        body_at = pos + head_size
        stop = body_at + body_size
        if stop >= end or data[stop] != FRAME_END:
            break
        bodies.append(data[body_at:stop])
        pos = stop + 1
    return pos


def _recognise(
    connection: ChannelOwner[Channel], data: bytes, pos: int, end: int, known: Mapping[bytes, Route]
) -> tuple[bytes, Channel, Route] | None:
    """The method frame at `pos`, its channel and its route; None unless it begins a publish that
    may be served here."""
    if end - pos < _METHOD_HEAD.size:
        return None
    kind, number, size, index = _METHOD_HEAD.unpack_from(data, pos)
    stop = pos + OVERHEAD - 1 + size
    if index != _BASIC_PUBLISH or kind != METHOD or stop >= end or data[stop] != FRAME_END:
        return None
    channel = connection.served.get(number)
    if channel is None or not channel.takes_publishes:
        return None
    assert connection.routes is not None
    method = data[pos : stop + 1]
    route = known.get(method)
    if route is None:
        if connection.node.turns.left_us < -TURN_US:
            # Routes that cost this much must not be found in one turn for all that is gathered.
            return None
        try:
            route = connection.routes.resolve(method)
        except (BrokerError, Unfinished):
            # The error is raised again by the general way, which answers it or waits.
            return None
    if (
        not (route.queues or (route.by_headers and not connection.routes.vhost.quotas))
        or route.is_reply
        or (route.is_observed and not connection.routes.vhost.observation.takes_batches)
        or len(route.queues or ()) > QUEUES_AT_ONCE
    ):
        return None
    return method, channel, route


class _Like:
    """Recognises method frames that differ in the routing key only, and finds the queues of the
    key: any, or `only` those."""

    __slots__ = (
        "_before_key",
        "_by_key",
        "_channel",
        "_fixed",
        "_key_at",
        "_only",
        "_tail",
        "_unpack",
    )

    def __init__(
        self,
        method: bytes,
        by_key: Callable[[str], tuple[Queue, ...] | None],
        only: tuple[Queue, ...] | None,
    ) -> None:
        key_octets_at = _EXCHANGE_AT + 1 + method[_EXCHANGE_AT]
        self._by_key = by_key
        self._only = only
        self._unpack = _until_key(method[_EXCHANGE_AT])
        self._channel, size, self._before_key, key_octets = self._unpack(method)
        self._fixed = size - key_octets
        self._key_at = key_octets_at + 1
        self._tail = method[-2:]

    def key_of(
        self, data: bytes, pos: int, end: int
    ) -> tuple[bytes, str, tuple[Queue, ...]] | None:
        """The method frame at `pos`, its routing key and the queues for that; None if it is not
        such a frame, or the queues are none or too many."""
        if end - pos < PUBLISH_MIN + self._fixed:
            return None
        channel, size, before_key, key_octets = self._unpack(data, pos)
        stop = pos + size + OVERHEAD
        if (
            before_key != self._before_key
            or size - key_octets != self._fixed
            or channel != self._channel
            or stop > end
        ):
            return None
        method = data[pos:stop]
        if not method.endswith(self._tail):
            return None
        try:
            routing_key = method[self._key_at : -2].decode("utf-8", "surrogateescape")
            queues = self._by_key(routing_key)
        except Unfinished:
            return None
        if not queues or len(queues) > QUEUES_AT_ONCE or self._only not in (None, queues):
            return None
        return method, routing_key, queues


@cache
def _until_key(exchange_octets: int) -> Callable[..., tuple[bytes, int, bytes, int]]:
    """A function that unpacks a method frame up to the routing key: type and channel, size, the
    octets from class to exchange, and the length of the key."""
    return struct.Struct(f">3sI{7 + exchange_octets}sB").unpack_from


def _has_room(quotas: VhostQuotas, route: Route, octets: int) -> bool:
    """Whether the quotas have room for as many publishes as that many octets may contain. Publishes
    to other queues count once they are handed over."""
    assert route.queues
    most = Stock(octets // PUBLISH_MIN, octets)
    return quotas.has_room(dict.fromkeys(route.queues, most))

"""A client of a simulated cluster that does several things at once and waits for nothing.

It keeps account of what it was told: which publishes were confirmed, what it was handed and what it
said of that. What must hold of every single answer is asserted here; what must hold of all of them
together is checked by `cluster_checks.py`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pamqp import commands
from pipe import BODY, HEADER, METHOD, Client, Frame

from warren.core.field import Table

if TYPE_CHECKING:
    from cluster_history import History

BASIC = commands.Basic
CONFIRM, PLAIN, TX, CONSUME, GET, ADMIN = "confirm", "plain", "tx", "consume", "get", "admin"
KINDS = (CONFIRM, PLAIN, TX, CONSUME, GET, ADMIN)

EXPECTED_CLOSES = (403, 404, 405, 406)


class Publish:
    """One message, and what became of it as clients see it."""

    def __init__(self, number: int, queue: str, line: str, persistent: bool, at: float) -> None:
        self.number = number
        self.queue = queue
        # Whose publishes to this queue stay in order.
        self.line = line
        self.persistent = persistent
        # Whether it is to be on disk all the same.
        self.is_kept = persistent
        self.published_at = at
        self.confirmed_at: float | None = None
        self.refused = False
        self.returned = False
        # Why it need not be there any more.
        self.excused = ""
        self.received_at: float | None = None
        # When a leader gave it to a consumer as new the last time, and whether it came as new.
        self.as_new_at: float | None = None
        self.came_as_new = False
        self.acked_at: float | None = None
        self.is_gone = False
        # Its channel has not committed it.
        self.uncommitted = False
        # A leader had no room for it; when.
        self.turned_away_at: float | None = None
        # It went to a consumer that could not take it, and lost its turn.
        self.was_given_back = False
        # When it is to enter its queue, if it is delayed until then.
        self.due_at: float | None = None

    @property
    def first_delivery_is_late(self) -> bool:
        """Whether what comes as new now was on its way before anybody else had the message: the
        node of its consumer stood still, and the leader has taken the message back meanwhile."""
        before = self.received_at
        was_sent = self.as_new_at is not None and before is not None and self.as_new_at <= before
        return was_sent and not self.came_as_new

    def __repr__(self) -> str:
        return (
            f"<message {self.number} for {self.queue} by {self.line},"
            f" published {self.published_at:.3f}, confirmed {self.confirmed_at},"
            f" received {self.received_at}, acked {self.acked_at}"
            f"{', persistent' if self.persistent else ''} {self.excused}>"
        )


class Held:
    """A delivery that was not acknowledged yet."""

    def __init__(self, publish: Publish, at: float) -> None:
        self.publish = publish
        self.at = at


class ClientChannel:
    """One channel of a client, used for one kind of thing."""

    def __init__(self, session: Session, number: int, kind: str) -> None:
        self.session = session
        self.number = number
        self.kind = kind
        self.is_open = True
        self.line = f"{session.name}/{number}"
        # What the next answers are to.
        self.awaited: deque[tuple[str, Callable[[Any], None] | None]] = deque()
        self.awaited_since = 0.0
        # When it began to wait, and when it was answered last.
        self.waiting_since = 0.0
        self.answered_at = 0.0
        self.seq = 0
        self.unsettled: dict[int, Publish] = {}
        self.uncommitted: list[Publish] = []
        self.held: dict[int, Held] = {}
        self.consumers: dict[str, str] = {}
        self.received: dict[str, int] = {}
        # Queue, when it was subscribed, and whether it asked to be cancelled at a failover.
        self.subscribed: dict[str, tuple[str, float, bool]] = {}
        self.no_ack: set[str] = set()
        self.last: dict[tuple[str, str], int] = {}
        self._content: tuple[Any, bytes, int, bytes] | None = None

    # Doing

    def sends(self, kind: Any, **arguments: Any) -> None:
        self.session.client.sends(kind, self.number, **arguments)

    def asks(
        self, kind: Any, answer: Callable[[Any], None] | None = None, **arguments: Any
    ) -> None:
        now = self.session.history.now
        if not self.awaited:
            self.waiting_since = now
        self.awaited.append((kind.name, answer))
        self.awaited_since = now
        self.sends(kind, **arguments)

    def publishes(self, publish: Publish, exchange: str = "", **properties: Any) -> None:
        if self.kind == CONFIRM:
            self.seq += 1
            self.unsettled[self.seq] = publish
        elif self.kind == TX:
            self.uncommitted.append(publish)
            publish.uncommitted = True
        self.session.client.publishes(
            publish.queue,
            b"%d" % publish.number,
            self.number,
            exchange=exchange,
            mandatory=True,
            delivery_mode=2 if publish.persistent else 1,
            **properties,
        )

    def commits(self) -> None:
        publishes, self.uncommitted = self.uncommitted, []
        for publish in publishes:
            publish.uncommitted = False

        def committed(_: Any) -> None:
            for publish in publishes:
                if not publish.returned:
                    publish.confirmed_at = self.session.history.now

        self.asks(commands.Tx.Commit, committed)

    def consumes(
        self, queue: str, tag: str, arguments: Table, exclusive: bool, no_ack: bool = False
    ) -> None:
        if no_ack:
            self.no_ack.add(tag)

        def consuming(_: Any) -> None:
            self.consumers[tag] = queue
            wants_cancel = "x-cancel-on-ha-failover" in arguments
            self.subscribed[tag] = (queue, self.session.history.now, wants_cancel)
            self.received[tag] = 0

        self.asks(
            BASIC.Consume,
            consuming,
            queue=queue,
            consumer_tag=tag,
            arguments=arguments,
            exclusive=exclusive,
            no_ack=no_ack,
        )

    def cancels(self, tag: str) -> None:
        def cancelled(_: Any) -> None:
            self.consumers.pop(tag, None)

        self.asks(BASIC.Cancel, cancelled, consumer_tag=tag)

    def acks(self, tag: int, multiple: bool) -> None:
        for one in [one for one in self.held if one == tag or (multiple and one < tag)]:
            self.session.history.acked(self.held.pop(one))
        self.session.client.acks(tag, self.number, multiple)

    def nacks(self, tag: int, multiple: bool) -> None:
        for one in [one for one in self.held if one == tag or (multiple and one < tag)]:
            del self.held[one]
        self.session.client.nacks(tag, self.number, multiple)

    def rejects(self, tag: int) -> None:
        """For good: it is dead-lettered, or gone."""
        publish = self.held.pop(tag).publish
        publish.excused = publish.excused or "it was rejected"
        self.sends(BASIC.Reject, delivery_tag=tag, requeue=False)

    # Being told

    def frame(self, frame: Frame) -> None:
        if frame.kind == METHOD:
            method = frame.method
            if isinstance(method, (BASIC.Deliver, BASIC.GetOk, BASIC.Return)):
                self._content = (method, b"", -1, b"")
            else:
                self._told(method)
            return
        assert self._content is not None, frame
        method, header, left, body = self._content
        if frame.kind == HEADER:
            (left,) = struct.unpack_from(">Q", frame.payload, 4)
            header = frame.payload
        else:
            assert frame.kind == BODY
            body += frame.payload
        self._content = (method, header, left, body)
        if len(body) == left:
            self._content = None
            self._message(method, body)

    def _message(self, method: Any, body: bytes) -> None:
        history = self.session.history
        publish = history.publishes.get(int(body))
        assert publish is not None, f"{body!r} was never published"
        if isinstance(method, BASIC.Return):
            assert publish.confirmed_at is None, f"returned after the confirm: {publish}"
            publish.returned = True
            return
        if isinstance(method, BASIC.GetOk):
            _, answer = self._answered(BASIC.Get.name)
            assert answer is None
        else:
            assert method.consumer_tag in self.received or any(
                name == BASIC.Consume.name for name, _ in self.awaited
            ), f"{method.consumer_tag} was handed {publish}, and is no consumer"
            self.received[method.consumer_tag] = self.received.get(method.consumer_tag, 0) + 1
            if not method.redelivered:
                self._check_order(method.consumer_tag, publish)
        history.received(publish, method.redelivered, self)
        if isinstance(method, BASIC.Deliver) and method.consumer_tag in self.no_ack:
            history.acked(Held(publish, history.now))
            return
        self.held[method.delivery_tag] = Held(publish, history.now)

    def _check_order(self, tag: str, publish: Publish) -> None:
        """E4: first deliveries of one channel's publishes come in their order."""
        # Who leads next need not have heard of a purge, nor of what was handed out after it.
        was_purged = publish.excused == commands.Queue.Purge.name
        has_turn = not (publish.was_given_back or was_purged) and publish.due_at is None
        is_first = publish.received_at is None and has_turn
        if is_first and publish.queue not in self.session.history.unordered:
            key = (f"{tag} {publish.queue}", publish.line)
            last = self.last.get(key, -1)
            assert publish.number > last, f"E4: {publish} came after {last}"
            self.last[key] = publish.number

    def _told(self, method: Any) -> None:
        if isinstance(method, (BASIC.Ack, BASIC.Nack)):
            self._settled(method)
        elif isinstance(method, BASIC.Cancel):
            self.consumers.pop(method.consumer_tag, None)
            self.session.history.seen["consumer cancelled by the broker"] += 1
            if method.consumer_tag in self.subscribed:
                self.session.history.cancelled(*self.subscribed[method.consumer_tag])
        elif isinstance(method, commands.Channel.Close):
            assert method.reply_code in EXPECTED_CLOSES, method.reply_text
            self.session.history.seen[f"channel closed: {method.reply_code}"] += 1
            self.sends(commands.Channel.CloseOk)
            self.ended()
        else:
            name, answer = self._answered(None)
            wanted = "Basic.GetEmpty" if name == BASIC.Get.name else f"{name}Ok"
            assert method.name == wanted, f"{method.name} answers {name}"
            if answer is not None:
                answer(method)

    def _answered(self, name: str | None) -> tuple[str, Callable[[Any], None] | None]:
        assert self.awaited, f"nobody asked, for {name}"
        asked, answer = self.awaited.popleft()
        self.answered_at = self.session.history.now
        assert name is None or asked == name, (asked, name)
        return asked, answer

    def has_waited_since(self, at: float) -> bool:
        """Whether it hears only now of what it may have been handed before that: its node passes
        nothing on while a method waits to be answered."""
        return self.waiting_since <= at and self.answered_at == self.session.history.now

    def _settled(self, method: Any) -> None:
        """E5, E6."""
        tag = method.delivery_tag
        if method.multiple:
            tags = [one for one in self.unsettled if one <= tag or not tag]
            assert tags, f"E6: {method.name} of all up to {tag} settles nothing"
        else:
            tags = [tag]
        for one in tags:
            publish = self.unsettled.pop(one, None)
            assert publish is not None, f"E5: {one} is settled twice"
            if isinstance(method, BASIC.Nack):
                publish.refused = True
            elif not publish.returned:
                publish.confirmed_at = self.session.history.now
                self.session.history.confirmed(publish)

    def closes(self) -> None:
        """What it holds goes back."""
        self.sends(commands.Channel.Close, reply_code=200, class_id=0, method_id=0)
        self.ended()

    def ended(self) -> None:
        self.is_open = False
        self.awaited.clear()
        self.held.clear()
        self.consumers.clear()


class Session:
    """A connection."""

    def __init__(self, history: History, name: str, node: str) -> None:
        self.history = history
        self.name = name
        self.node = node
        self.incarnation = history.cluster[node].incarnation
        self.client: Client = history.cluster[node].connects()
        self.channels: dict[int, ClientChannel] = {}
        self.channels_opened = 0
        self.is_over = False
        self._current: dict[str, ClientChannel] = {}
        for kind in KINDS:
            self.opens(kind)

    def opens(self, kind: str) -> ClientChannel:
        self.channels_opened += 1
        channel = ClientChannel(self, self.channels_opened, kind)
        self.channels[channel.number] = self._current[kind] = channel
        channel.asks(commands.Channel.Open)
        if kind == CONFIRM:
            channel.asks(commands.Confirm.Select)
        elif kind == TX:
            channel.asks(commands.Tx.Select)
        return channel

    def channel(self, kind: str) -> ClientChannel:
        """The channel for this kind of thing; a new one where the broker has closed it."""
        channel = self._current[kind]
        return channel if channel.is_open else self.opens(kind)

    def poll(self) -> None:
        """Look at what has come."""
        if self.is_over:
            return
        for frame in self.client.frames():
            self.history.note(self.name, tuple(frame))
            if not frame.channel and "Cannot declare quorum" in frame.method.reply_text:
                # Too few nodes are up.
                self.history.seen["declaration refused"] += 1
                self.vanishes()
                return
            assert frame.channel, f"the connection is told {frame}"
            channel = self.channels[frame.channel]
            if channel.is_open:
                channel.frame(frame)
            elif frame.kind == METHOD and isinstance(frame.method, commands.Channel.Close):
                self.client.sends(commands.Channel.CloseOk, channel.number)

    def is_waiting(self) -> list[str]:
        """What it was not answered yet."""
        return [
            f"{self.name} at {self.node}: {name} since {channel.awaited_since:.3f}"
            for channel in self.channels.values()
            if channel.is_open
            for name, _ in channel.awaited
        ] + [
            f"{self.name} at {self.node}: confirm of {publish}"
            for channel in self.channels.values()
            if channel.is_open
            for publish in channel.unsettled.values()
        ]

    def vanishes(self) -> None:
        """The client is gone without a word."""
        self.is_over = True
        self.client.vanishes()
        for channel in self.channels.values():
            channel.ended()

    def dies_with_node(self) -> None:
        self.is_over = True
        for channel in self.channels.values():
            channel.ended()

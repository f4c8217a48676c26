"""The client of most tests: a raw connection with channels, and short forms of common calls.

`RawClient` is a `RawConnection` that opens channels. `RawChannel` is one of them: `send` sends a
method, `call` also waits for its reply, and the other methods use these two.
"""

import time
from collections.abc import Iterator
from typing import Any

from warren.compat_tests.broker import Broker
from warren.compat_tests.field_table import Table
from warren.compat_tests.methods import Method, encode_header, encode_method
from warren.compat_tests.raw_connection import (
    BODY,
    HEADER,
    METHOD,
    PATIENCE_S,
    RawConnection,
    Silence,
    Surprise,
    check_close,
    frame_bytes,
)

# The time to wait for something that must not come, after round trips that should have brought it.
QUIET_S = 0.05


class RawClient(RawConnection):
    """A connection that hands out channels, each on the next free number unless one is given."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._numbers: Iterator[int] = iter(range(1, 2048))

    def channel(self, number: int | None = None) -> "RawChannel":
        """Opens a channel."""
        channel = RawChannel(self, next(self._numbers) if number is None else number)
        channel.call("channel.open")
        return channel


class RawChannel:
    """One channel of a client."""

    def __init__(self, client: RawClient, number: int) -> None:
        self.client = client
        self.number = number
        self._confirmed: set[int] = set()

    def send(self, name: str, **fields: Any) -> None:
        self.client.send_method(self.number, name, **fields)

    def call(self, name: str, **fields: Any) -> Method:
        """Sends a method and returns its reply, which must be the next method on this channel."""
        self.send(name, **fields)
        return self.expect(f"{name}-ok")

    def expect(self, name: str, timeout_s: float = PATIENCE_S) -> Method:
        return self.client.expect(name, self.number, timeout_s)

    def next_method(self, timeout_s: float = PATIENCE_S) -> Method:
        return self.client.next_method(self.number, timeout_s)

    def expect_close(
        self, code: int, explanation: str | None, offender: tuple[int, int] | None = None
    ) -> Method:
        """Waits for a channel.close with this code and text, and answers it; then the channel's
        number is free."""
        method = self.expect("channel.close")
        check_close(method, code, explanation, offender)
        self.send("channel.close-ok")
        return method

    def refused(self, code: int, explanation: str | None, name: str, **fields: Any) -> Method:
        """Sends a method for which the broker must close the channel; opens the channel again."""
        self.send(name, **fields)
        method = self.expect_close(code, explanation)
        self.call("channel.open")
        return method

    def ping(self) -> None:
        """A round trip without effect: afterwards the broker has handled all that was sent on this
        channel."""
        self.call("channel.flow", active=True)

    def expect_silence(self, queue: str | None = None) -> None:
        """Checks that nothing comes on this channel, not even after round trips to queue and
        channel."""
        if queue is not None:
            self.declare(queue, passive=True)
        self.ping()
        try:
            method = self.next_method(QUIET_S)
        except Silence:
            return
        raise Surprise(f"wanted silence on channel {self.number}, got {method}")

    def close(self) -> None:
        self.call("channel.close", reply_code=200, reply_text="bye")

    # Short forms

    def declare(self, queue: str = "", **fields: Any) -> Method:
        return self.call("queue.declare", queue=queue, **fields)

    def own_queue(self, **arguments: Any) -> str:
        """Declares a new exclusive queue, named by the broker; `x_max_length` becomes the argument
        `x-max-length`."""
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        name: str = self.declare("", exclusive=True, arguments=table)["queue"]
        return name

    def declare_exchange(self, exchange: str, type: str = "direct", **fields: Any) -> Method:
        return self.call("exchange.declare", exchange=exchange, type=type, **fields)

    def bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table | None = None
    ) -> Method:
        return self.call(
            "queue.bind",
            queue=queue,
            exchange=exchange,
            routing_key=routing_key,
            arguments=arguments or {},
        )

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Table | None = None
    ) -> Method:
        return self.call(
            "exchange.bind",
            destination=destination,
            source=source,
            routing_key=routing_key,
            arguments=arguments or {},
        )

    def publish(
        self,
        body: bytes,
        routing_key: str | bytes = "",
        exchange: str | bytes = "",
        mandatory: bool = False,
        **properties: Any,
    ) -> None:
        """Publishes a message, in as many frames as the negotiated frame size requires."""
        piece = self.client.frame_max - 8
        frames = [
            frame_bytes(
                METHOD,
                self.number,
                encode_method(
                    "basic.publish",
                    {"exchange": exchange, "routing_key": routing_key, "mandatory": mandatory},
                ),
            ),
            frame_bytes(HEADER, self.number, encode_header(properties, len(body))),
        ]
        for start in range(0, len(body), piece):
            frames.append(frame_bytes(BODY, self.number, body[start : start + piece]))
        self.client.send_bytes(b"".join(frames))

    def consume(self, queue: str, tag: str = "", **fields: Any) -> str:
        """Starts a consumer and returns its tag."""
        reply = self.call("basic.consume", queue=queue, consumer_tag=tag, **fields)
        name: str = reply["consumer_tag"]
        return name

    def delivery(self, body: bytes | None = None) -> Method:
        """Waits for the next basic.deliver, which must have this body if one is given."""
        method = self.expect("basic.deliver")
        if body is not None and method.body != body:
            raise Surprise(f"wanted a delivery of {body!r}, got {method}")
        return method

    def get(self, queue: str, no_ack: bool = True) -> Method | None:
        """The message at the head of the queue, or None when the queue is empty."""
        self.send("basic.get", queue=queue, no_ack=no_ack)
        method = self.next_method()
        if method.name not in ("basic.get-ok", "basic.get-empty"):
            raise Surprise(f"wanted an answer to basic.get, got {method}")
        return method if method.name == "basic.get-ok" else None

    def got(self, queue: str, body: bytes | None = None, no_ack: bool = True) -> Method:
        """Like `get`, for a queue that must have a message."""
        method = self.get(queue, no_ack)
        if method is None:
            raise Surprise(f"wanted a message from {queue}, but it is empty")
        if body is not None and method.body != body:
            raise Surprise(f"wanted the message {body!r} from {queue}, got {method}")
        return method

    def bodies(self, queue: str) -> list[bytes]:
        """Empties the queue and returns the bodies in order."""
        bodies: list[bytes] = []
        while (method := self.get(queue)) is not None:
            bodies.append(method.body)
        return bodies

    def arriving(self, queue: str, count: int) -> list[Method]:
        """Fetches `count` messages, and waits for those that another queue or a timer has still to
        send."""
        deadline = time.monotonic() + PATIENCE_S
        messages: list[Method] = []
        while len(messages) < count:
            method = self.get(queue)
            if method is not None:
                messages.append(method)
            elif time.monotonic() > deadline:
                raise Surprise(f"wanted {count} messages in {queue}, got {len(messages)}")
            else:
                time.sleep(0.01)
        return messages

    def ready(self, queue: str) -> int:
        """The number of ready messages in the queue."""
        count: int = self.declare(queue, passive=True)["message_count"]
        return count

    def consumers(self, queue: str) -> int:
        count: int = self.declare(queue, passive=True)["consumer_count"]
        return count

    def becomes_ready(self, queue: str, count: int) -> None:
        """Waits until the queue has this number of ready messages."""
        deadline = time.monotonic() + PATIENCE_S
        while (ready := self.ready(queue)) != count:
            if time.monotonic() > deadline:
                raise Surprise(f"wanted {count} ready messages in {queue}, got {ready}")
            time.sleep(0.01)

    def ack(self, delivery_tag: int, multiple: bool = False) -> None:
        self.send("basic.ack", delivery_tag=delivery_tag, multiple=multiple)

    def nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        self.send("basic.nack", delivery_tag=delivery_tag, multiple=multiple, requeue=requeue)

    def reject(self, delivery_tag: int, requeue: bool = True) -> None:
        self.send("basic.reject", delivery_tag=delivery_tag, requeue=requeue)

    def queue_exists(self, queue: str) -> bool:
        """Whether a passive declare finds the queue; the channel stays usable."""
        self.send("queue.declare", queue=queue, passive=True)
        return self._found()

    def exchange_exists(self, exchange: str) -> bool:
        self.send("exchange.declare", exchange=exchange, passive=True)
        return self._found()

    def _found(self) -> bool:
        method = self.next_method()
        if method.name in ("queue.declare-ok", "exchange.declare-ok"):
            return True
        if method.name != "channel.close" or method["reply_code"] != 404:
            raise Surprise(f"wanted declare-ok or a 404, got {method}")
        self.send("channel.close-ok")
        self.call("channel.open")
        return False

    def confirms(self, count: int) -> list[tuple[str, int]]:
        """Waits for the confirms of `count` publishes. Returns pairs of `ack` or `nack` and number,
        one for each message that `multiple` covers.

        A number that was confirmed before may be covered by `multiple` again, but not named again.
        """
        settled: list[tuple[str, int]] = []
        while len(settled) < count:
            method = self.next_method()
            if method.name not in ("basic.ack", "basic.nack"):
                raise Surprise(f"wanted a confirm, got {method}")
            last = method["delivery_tag"]
            if last in self._confirmed:
                raise Surprise(f"{method} settles a number again")
            verdict = method.name.removeprefix("basic.")
            covered = range(1, last + 1) if method["multiple"] else range(last, last + 1)
            new = [number for number in covered if number not in self._confirmed]
            self._confirmed.update(new)
            settled += [(verdict, number) for number in new]
        return settled

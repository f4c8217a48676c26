"""A publisher on a socket: sends encoded rows, and knows when the broker has confirmed all of them.

The rules are in `publisher_protocol`; this module has the socket, the clock and the limit on
unconfirmed messages. `publish` waits until there is room, and reads confirms while it writes, so
neither side can wait for the other to read first.

Between two calls of `publish` the caller does other work, perhaps for minutes. A thread keeps the
connection alive meanwhile: it sends heartbeats, and reads the broker's octets.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from warren.client.handshake import Login
from warren.spark_export.errors import PublishFailed
from warren.spark_export.sink.encoded_rows import EncodedRows
from warren.spark_export.sink.publisher_protocol import (
    Patience,
    PublisherProtocol,
    SinkPhase,
)
from warren.spark_export.sink.sink_options import BrokerAddress, SinkOptions

WRITE_BYTES: Final = 128 << 10
"""Octets passed to the socket at once: enough that a system call costs little per message."""
READ_BYTES: Final = 64 << 10
GOODBYE_S: Final = 3.0
"""The time to wait for the answer to connection.close, when everything else is done."""
KEEP_ALIVES_PER_HEARTBEAT: Final = 4


class AmqpPublisher:
    """One connection with one channel, ready when constructed; a context manager.

    All methods raise `PublishFailed`.
    """

    def __init__(self, options: SinkOptions, *, purpose: str = "Spark") -> None:
        address = options.address
        self._address = address
        self._max_in_flight = options.max_in_flight if options.confirms else None
        self._outgoing = memoryview(b"")
        self._are_publishes = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._keep_alive: threading.Thread | None = None
        self._socket = _connect(address, options.connect_timeout_s)
        self._poll = select.poll()
        self._protocol = PublisherProtocol(
            Login(address.username, address.password, address.vhost, purpose),
            Patience(options.confirm_timeout_s, options.connect_timeout_s, options.heartbeat_s),
            confirms=options.confirms,
            now=time.monotonic(),
        )
        try:
            self._run_until(lambda: self._protocol.ready)
        except BaseException:
            self.close()
            raise
        if self._protocol.heartbeat_s:
            self._keep_alive = threading.Thread(
                target=self._keep_connection_alive, name="warren-sink-heartbeat", daemon=True
            )
            self._keep_alive.start()

    @property
    def frame_max(self) -> int:
        """The longest frame that the broker takes, in octets."""
        return self._protocol.frame_max

    @property
    def unconfirmed(self) -> int:
        return self._protocol.unconfirmed

    def publish(self, rows: EncodedRows) -> None:
        """Send all rows; on return the last ones may not be confirmed yet."""
        with self._lock:
            first, count = 0, len(rows)
            while first < count:
                self._run_until(self._may_publish)
                end = self._fitting(rows, first)
                self._protocol.published(rows, first, end, time.monotonic())
                self._outgoing = rows.view(first, end)
                self._are_publishes = True
                self._run_until(lambda: not self._outgoing)
                first = end

    def finish(self) -> None:
        """Wait until everything is confirmed, or without confirms until the broker has dealt with
        everything, and close the connection."""
        with self._lock:
            self._run_until(lambda: not self._protocol.unconfirmed)
            self._protocol.close(time.monotonic())
            self._run_until(
                lambda: self._protocol.phase in (SinkPhase.AWAITING_CLOSE_OK, SinkPhase.CLOSED)
            )
        self.close()

    def close(self) -> None:
        """Close the connection, properly if the broker answers; messages in flight may arrive or
        not. Never raises, may be called again."""
        self._ended.set()
        if self._keep_alive is not None:
            self._keep_alive.join()
        with self._lock:
            if self._socket.fileno() < 0:
                return
            try:
                self._say_goodbye()
            finally:
                self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Portions

    def _may_publish(self) -> bool:
        """Whether there is enough room: a write after every confirm would have one message each."""
        if self._outgoing or self._protocol.blocked is not None:
            return False
        if self._max_in_flight is None:
            return True
        return self._protocol.unconfirmed <= self._max_in_flight // 2

    def _fitting(self, rows: EncodedRows, first: int) -> int:
        """The end of the rows to send next: up to `WRITE_BYTES` and the room, one row at least."""
        octets_end = int(rows.offsets[first]) + WRITE_BYTES
        end = max(first + 1, bisect_right(rows.offsets, octets_end) - 1)
        if self._max_in_flight is not None:
            end = min(end, first + self._max_in_flight - self._protocol.unconfirmed)
        return min(end, len(rows))

    # Reading and writing

    def _run_until(self, done: Callable[[], bool]) -> None:
        """Write and read until `done`. Raises `PublishFailed` after a failure, even if it is
        done."""
        while True:
            self._exchange()
            if self._protocol.failure is not None:
                raise PublishFailed(f"{self._address}: {self._protocol.failure}")
            if done():
                return
            self._wait(self._protocol.deadline())

    def _exchange(self) -> None:
        """Write and read as much as possible without waiting."""
        self._protocol.tick(time.monotonic())
        # Read first: the octets may ask for an answer.
        self._read()
        try:
            self._write()
        except OSError as error:
            # The broker's last words explain more than the end of the connection.
            self._read_the_rest(error.strerror or str(error))

    def _write(self) -> None:
        while True:
            if not self._outgoing:
                self._outgoing = memoryview(self._protocol.data_to_send())
                self._are_publishes = False
                if not self._outgoing:
                    return
            try:
                written = self._socket.send(self._outgoing)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self._outgoing = self._outgoing[written:]
            if self._are_publishes:
                self._protocol.progressed(time.monotonic())
            else:
                self._protocol.sent(time.monotonic())

    def _read(self) -> None:
        while self._protocol.phase is not SinkPhase.CLOSED:
            try:
                data = self._socket.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self._protocol.receive_eof(error.strerror or str(error))
                return
            if not data:
                self._protocol.receive_eof("the broker closed the socket")
                return
            self._protocol.receive_data(data, time.monotonic())

    def _read_the_rest(self, reason: str) -> None:
        """Read the last octets of a connection that takes no more."""
        self._outgoing = memoryview(b"")
        self._read()
        self._protocol.receive_eof(reason)

    def _wait(self, deadline: float | None) -> None:
        """Wait until the socket can be read, or written if there is output, or until the
        deadline."""
        events = select.POLLIN | (select.POLLOUT if self._outgoing else 0)
        self._poll.register(self._socket, events)
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return
        wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        # Rounded up; otherwise the last millisecond would be spent in a loop.
        self._poll.poll(None if wait_s is None else int(wait_s * 1000) + 1)

    def _say_goodbye(self) -> None:
        until = time.monotonic() + GOODBYE_S
        self._protocol.close(time.monotonic())
        # Output under way is sent to its end: the rest of a frame, and perhaps a close-ok.
        self._exchange()
        while self._protocol.phase is not SinkPhase.CLOSED and time.monotonic() < until:
            self._wait(until)
            self._exchange()

    def _keep_connection_alive(self) -> None:
        pause_s = self._protocol.heartbeat_s / KEEP_ALIVES_PER_HEARTBEAT
        while not self._ended.wait(pause_s):
            # The thread that holds the lock exchanges octets itself.
            if self._lock.acquire(blocking=False):
                try:
                    if self._ended.is_set() or self._protocol.phase is SinkPhase.CLOSED:
                        return
                    self._exchange()
                finally:
                    self._lock.release()


def _connect(address: BrokerAddress, timeout_s: float) -> socket.socket:
    """A non-blocking socket, with TLS set up if it is used. Raises `PublishFailed`."""
    try:
        connection = socket.create_connection((address.host, address.port), timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                context = ssl.create_default_context(cafile=address.ca_file)
                if address.cert_file is not None:
                    context.load_cert_chain(address.cert_file, address.key_file)
                connection = context.wrap_socket(connection, server_hostname=address.host)
            connection.setblocking(False)
        except BaseException:
            connection.close()
            raise
    except (OSError, ValueError) as error:
        raise PublishFailed(f"{address}: no connection: {error}") from error
    return connection

"""Heartbeats (amqp_semantics.md section 1.5).

We send a heartbeat after each half interval in which nothing else was sent. A peer is given up
after two whole intervals in which nothing came from it, except intervals in which we do not read.
"""

from __future__ import annotations

from collections.abc import Callable

from warren.core.ports import Clock, Timer

SILENT_CHECKS_MAX = 2


class Heartbeat:
    """The two monitors of a connection, for sending and for receiving.

    The connection sets `heard` and `sent` when octets come and go. `send` writes a heartbeat frame;
    `is_reading` says whether the connection is being read; `give_up` ends it.
    """

    __slots__ = (
        "_clock",
        "_give_up",
        "_interval_s",
        "_is_reading",
        "_receiving",
        "_send",
        "_sending",
        "_silent_checks",
        "heard",
        "sent",
    )

    def __init__(
        self,
        clock: Clock,
        send: Callable[[], None],
        is_reading: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self.heard = False
        self.sent = False
        self._clock = clock
        self._send = send
        self._is_reading = is_reading
        self._give_up = give_up
        self._interval_s = 0
        self._silent_checks = 0
        self._sending: Timer | None = None
        self._receiving: Timer | None = None

    def start(self, interval_s: int) -> None:
        """Begin with the negotiated interval; 0 means no heartbeats in either direction."""
        self._interval_s = interval_s
        if interval_s:
            # The replies of the handshake do not count: the first heartbeat goes out in any case.
            self._sending = self._clock.call_later(interval_s / 2, self._send_first)
            self._receiving = self._clock.call_later(interval_s, self._check_heard)

    def stop(self) -> None:
        """End both monitors for good, and let go of the connection."""
        for timer in (self._sending, self._receiving):
            if timer is not None:
                timer.cancel()
        self._sending = self._receiving = None
        self._send = self._give_up = _nothing
        self._is_reading = bool

    def _send_first(self) -> None:
        self.sent = False
        self._send_if_idle()

    def _send_if_idle(self) -> None:
        if not self.sent:
            self._send()
        self.sent = False
        self._sending = self._clock.call_later(self._interval_s / 2, self._send_if_idle)

    def _check_heard(self) -> None:
        silent = not self.heard and self._is_reading()
        self._silent_checks = self._silent_checks + 1 if silent else 0
        self.heard = False
        if self._silent_checks >= SILENT_CHECKS_MAX:
            self._give_up()
            return
        self._receiving = self._clock.call_later(self._interval_s, self._check_heard)


def _nothing() -> None:
    """Stands in for a callback that is no longer wanted."""

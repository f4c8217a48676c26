"""A consumer's answers to its deliveries, and how long it works on each."""

from __future__ import annotations

import struct

from warren.amqp.frames import FRAME_END, METHOD
from warren.mgmt.perf.publication import CHANNEL

_ANSWER = struct.Struct(">BHIHHQBB")
_ANSWER_BYTES = 13
_BASIC_CLASS = 60
_ACK = 80
_NACK = 120
_MULTIPLE = 1
_REQUEUE = 2


def ack_frame(tag: int, multiple: bool) -> bytes:
    return _ANSWER.pack(
        METHOD, CHANNEL, _ANSWER_BYTES, _BASIC_CLASS, _ACK, tag, multiple, FRAME_END
    )


def requeue_frame(tag: int) -> bytes:
    """A basic.nack of one message that puts it back in its queue."""
    return _ANSWER.pack(
        METHOD, CHANNEL, _ANSWER_BYTES, _BASIC_CLASS, _NACK, tag, _REQUEUE, FRAME_END
    )


class PerfSettlement:
    """Sends one basic.ack per `every` messages, and returns each `requeue_every`-th message.

    The broker gets one ack per `every` messages even when they arrive together: the number of acks
    is part of the load. With `requeue_every` 0 no message is returned.
    """

    __slots__ = ("_every", "_requeue_every", "_seen", "_settled", "requeued")

    def __init__(self, every: int, requeue_every: int = 0) -> None:
        self._every = every
        self._requeue_every = requeue_every
        self._seen = 0
        self._settled = 0
        self.requeued = 0
        """Messages returned to the queue so far."""

    def settle(self, last_tag: int) -> bytes:
        """The frames that are due once deliveries up to `last_tag` have been worked on."""
        assert last_tag >= self._seen, (last_tag, self._seen)
        frames = self._give_back(last_tag) if self._requeue_every else self._ack(last_tag)
        self._seen = last_tag
        return b"".join(frames)

    def settle_rest(self) -> bytes:
        """The ack for the remaining messages at the end of a run."""
        if self._settled == self._seen:
            return b""
        self._settled = self._seen
        return ack_frame(self._seen, True)

    def _ack(self, last_tag: int) -> list[bytes]:
        every = self._every
        multiple = every > 1
        tags = range(self._settled + every, last_tag + 1, every)
        if tags:
            self._settled = tags[-1]
        return [ack_frame(tag, multiple) for tag in tags]

    def _give_back(self, last_tag: int) -> list[bytes]:
        frames: list[bytes] = []
        for tag in range(self._seen + 1, last_tag + 1):
            if tag % self._requeue_every == 0:
                if self._settled < tag - 1:
                    frames.append(ack_frame(tag - 1, True))
                frames.append(requeue_frame(tag))
                self._settled = tag
                self.requeued += 1
            elif tag - self._settled >= self._every:
                frames.append(ack_frame(tag, self._every > 1))
                self._settled = tag
        return frames


class Work:
    """Works on deliveries one after the other, each for `delay_ns`."""

    __slots__ = ("_delay_ns", "_done", "_next_ns", "last")

    def __init__(self, delay_ns: int) -> None:
        assert delay_ns > 0, delay_ns
        self._delay_ns = delay_ns
        self.last = 0
        """The last tag that arrived."""
        self._done = 0
        self._next_ns = 0

    @property
    def waiting(self) -> int:
        return self.last - self._done

    def arrived(self, last_tag: int, now_ns: int) -> None:
        """Note that deliveries up to `last_tag` have arrived."""
        if not self.waiting:
            self._next_ns = now_ns + self._delay_ns
        self.last = last_tag

    def finished(self, now_ns: int) -> int:
        """The last tag that has been worked on by now."""
        if self.waiting and now_ns >= self._next_ns:
            count = min(self.waiting, (now_ns - self._next_ns) // self._delay_ns + 1)
            self._done += count
            self._next_ns += count * self._delay_ns
        return self._done

    def wait_ns(self, now_ns: int) -> int | None:
        """Nanoseconds until the next delivery is finished; None if none is waiting."""
        return max(0, self._next_ns - now_ns) if self.waiting else None

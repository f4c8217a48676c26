"""The observers of the messages of a virtual host, and the queues that report to them: all queues
report to the firehose, and those to the life trace that have had a message which is followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warren.core.messages.firehose import Firehose
from warren.core.messages.message_observer import MessageObserver, Observers, TracedQueue
from warren.core.queues.queue import Queue
from warren.core.tracing.life_trace import LifeTrace


class Topology:
    """Counts the changes of what a publish resolves to."""

    __slots__ = ("generation",)

    def __init__(self) -> None:
        self.generation = 0


class Observation(Observers):
    """The observers of one virtual host, which has these queues, by name."""

    def __init__(self, queues: Mapping[str, Queue], topology: Topology) -> None:
        super().__init__()
        self.firehose: Firehose | None = None
        # The recorder of the lives of messages, while a rule selects any.
        self.life: LifeTrace | None = None
        self._queues = queues
        self._topology = topology

    def trace_with(self, firehose: Firehose | None) -> None:
        """Start or stop copying every publish and delivery to amq.rabbitmq.trace."""
        self.firehose = firehose
        self._observers_changed()
        for queue in self._queues.values():
            queue.trace_with(self._observer_of(queue.name))

    def record_lives(self, life: LifeTrace | None) -> None:
        """Start or stop recording the lives of messages, or do so by other rules."""
        names = set(self.life.watched if self.life is not None else ())
        self.life = life
        if life is not None:
            life.watch = self._watch
            names |= life.watched
        self._observers_changed()
        for name in names & self._queues.keys():
            self._queues[name].trace_with(self._observer_of(name))

    def observes(self, user: str, queues: Sequence[Queue] | None) -> bool:
        """Whether the user's publishes to these queues may be reported to an observer; `queues` is
        None if they are not known yet."""
        if self.firehose is not None:
            return True
        return self.life is not None and self.life.may_select(user, queues)

    def queue_is_here(self, queue: Queue) -> None:
        """Have a queue report that has come, or that another object stands for now."""
        if self.is_needed:
            queue.trace_with(self._observer_of(queue.name))

    def queue_is_gone(self, queue: Queue) -> None:
        if self.life is not None:
            self.life.watched.discard(queue.name)

    def _observers_changed(self) -> None:
        self.tell(self.firehose, self.life)
        # Routes know whether what goes their way is observed.
        self._topology.generation += 1

    def _observer_of(self, queue: str) -> MessageObserver | None:
        watched = self.life is not None and queue in self.life.watched
        return self if watched or self.firehose is not None else None

    def _watch(self, queue: TracedQueue) -> None:
        """Have a queue report here, before it gets a message whose life is recorded."""
        queue.trace_with(self)

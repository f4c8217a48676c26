"""Runs one shovel: session after session until all messages are moved.

The number in `delete-after` counts messages over all sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from warren.client.connection import BrokerTarget, ChannelFailed, ConnectionFailed
from warren.core.log_line import log_event, log_fault
from warren.core.ports import Clock
from warren.shovel.attempts import Attempts
from warren.shovel.definition import Definition
from warren.shovel.flow import FlowProgress, SessionEnded
from warren.shovel.marking import marking
from warren.shovel.session import ShovelEnds, ShovelSession
from warren.shovel.status import ShovelState, ShovelStatus
from warren.shovel.uri import Uri

log = logging.getLogger("warren.shovel")


class ShovelWorker:
    """The worker of one shovel. `target` returns how to reach a broker by its URI; `finished` is
    called when all messages are moved."""

    def __init__(
        self,
        name: str,
        vhost: str,
        definition: Definition,
        *,
        target: Callable[[Uri], BrokerTarget],
        cluster_name: Callable[[], str],
        clock: Clock,
        random: Random,
        finished: Callable[[], None],
    ) -> None:
        self.name = name
        self.vhost = vhost
        self.definition = definition
        self.status = ShovelStatus(ShovelState.STARTING, clock.wall_time())
        self._target = target
        self._cluster_name = cluster_name
        self._clock = clock
        self._random = random
        self._finished = finished
        self._remaining: int | None = None
        if isinstance(definition.delete_after, int):
            self._remaining = definition.delete_after
        self._attempts = Attempts(
            self._move_all,
            failed=self._failed,
            again=self._starts_again,
            delay_s=definition.reconnect_delay_s,
            clock=clock,
        )

    def start(self) -> None:
        self._attempts.start()

    async def stop(self) -> None:
        """Stop the shovel; unacked messages go back to the source."""
        await self._attempts.stop()

    # Reports of the session

    def counted(self, messages: int) -> None:
        self._remaining = messages

    def running(self, source_uri: str, dest_uri: str) -> None:
        status = self.status
        status.source_uri, status.dest_uri = source_uri, dest_uri
        status.become(ShovelState.RUNNING, self._clock.wall_time())
        log_event(
            log,
            logging.INFO,
            "shovel_running",
            shovel=self.name,
            vhost=self.vhost,
            source=source_uri,
            destination=dest_uri,
        )

    def progressed(self, progress: FlowProgress) -> None:
        status = self.status
        status.moved += progress.moved
        status.pending, status.waiting_for = progress.pending, progress.waiting_for
        status.left, status.left_because = progress.left, progress.left_because
        if self._remaining is not None:
            self._remaining -= progress.moved

    # The attempts

    async def _move_all(self) -> None:
        await self._session()
        log_event(
            log,
            logging.INFO,
            "shovel_finished",
            shovel=self.name,
            vhost=self.vhost,
            moved=self.status.moved,
            **self._left(),
        )
        self._finished()

    def _left(self) -> dict[str, Any]:
        status = self.status
        return {"left": status.left, "because": status.left_because} if status.left else {}

    def _starts_again(self) -> None:
        self.status.become(ShovelState.STARTING, self._clock.wall_time(), self.status.reason)

    async def _session(self) -> None:
        definition = self.definition
        session = ShovelSession(
            definition,
            self,
            remaining=self._remaining,
            marking=lambda source_uri, dest_uri: marking(
                definition, self.name, self.vhost, self._cluster_name(), source_uri, dest_uri
            ),
            wall_time=self._clock.wall_time,
        )
        source, destination = definition.source.uris, definition.destination.uris
        await session.run(ShovelEnds(self._shuffled(source), self._shuffled(destination)))

    def _shuffled(self, uris: Sequence[Uri]) -> list[BrokerTarget]:
        return [self._target(uri) for uri in self._random.sample(uris, len(uris))]

    def _failed(self, error: Exception) -> None:
        status = self.status
        status.pending, status.waiting_for = 0, ""
        state = ShovelState.TERMINATED
        if isinstance(error, ConnectionFailed) and status.state is ShovelState.STARTING:
            state = ShovelState.STARTING
        reason = str(error)
        if not isinstance(error, ConnectionFailed | ChannelFailed | SessionEnded | ValueError):
            log_fault(log, "shovel_fault", shovel=self.name, vhost=self.vhost)
            reason = "internal error"
        if reason != status.reason:
            # Each reason is logged once: a broker may be unreachable for a whole night.
            log_event(
                log,
                logging.WARNING,
                "shovel_failed",
                shovel=self.name,
                vhost=self.vhost,
                state=state.value,
                reason=reason,
            )
        status.become(state, self._clock.wall_time(), reason)

"""Runs one shovel: session after session, with a delay between failures, until all is moved.

The first failure after a time without one is tried again at once, later ones after the delay. What
`delete-after` counts is counted over all sessions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

from warren.client.connection import ChannelFailed, ConnectionFailed, Target
from warren.core.log_line import log_event, log_fault
from warren.core.ports import Clock
from warren.shovel.definition import Definition
from warren.shovel.marking import marking
from warren.shovel.session import Ends, Session, SessionEnded
from warren.shovel.status import State, Status
from warren.shovel.uri import Uri

log = logging.getLogger("warren.shovel")

STOP_S = 2.0
"""How long a shovel that stops may take to say goodbye to one of its brokers."""


class Worker:
    """`target` says how a broker is reached, `finished` is told when all is moved."""

    def __init__(
        self,
        name: str,
        vhost: str,
        definition: Definition,
        *,
        target: Callable[[Uri], Target],
        cluster_name: Callable[[], str],
        clock: Clock,
        random: Random,
        finished: Callable[[], None],
    ) -> None:
        self.name = name
        self.vhost = vhost
        self.definition = definition
        self.status = Status(State.STARTING, clock.wall_time())
        self._target = target
        self._cluster_name = cluster_name
        self._clock = clock
        self._random = random
        self._finished = finished
        self._remaining: int | None = None
        if isinstance(definition.delete_after, int):
            self._remaining = definition.delete_after
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """What is not acked goes back to the source."""
        task, self._task = self._task, None
        if task is None:
            return
        while not task.done():
            # Again where one of the brokers does not answer.
            task.cancel()
            await asyncio.wait((task,), timeout=STOP_S)

    # What the session says

    def counted(self, messages: int) -> None:
        self._remaining = messages

    def running(self, source_uri: str, dest_uri: str) -> None:
        status = self.status
        status.source_uri, status.dest_uri = source_uri, dest_uri
        status.become(State.RUNNING, self._clock.wall_time())
        log_event(
            log,
            logging.INFO,
            "shovel_running",
            shovel=self.name,
            vhost=self.vhost,
            source=source_uri,
            destination=dest_uri,
        )

    def progressed(self, moved: int, pending: int, waiting_for: str) -> None:
        status = self.status
        status.moved += moved
        status.pending, status.waiting_for = pending, waiting_for
        if self._remaining is not None:
            self._remaining -= moved

    # The loop

    async def _run(self) -> None:
        failures = 0
        delay_s = self.definition.reconnect_delay_s
        while True:
            began = self._clock.now()
            try:
                await self._session()
            except Exception as error:
                self._failed(error)
            else:
                log_event(
                    log,
                    logging.INFO,
                    "shovel_finished",
                    shovel=self.name,
                    vhost=self.vhost,
                    moved=self.status.moved,
                )
                self._finished()
                return
            if delay_s is None:
                return
            lasted_s = self._clock.now() - began
            failures = 1 if lasted_s > delay_s else failures + 1
            if failures > 1:
                await asyncio.sleep(delay_s)
            self.status.become(State.STARTING, self._clock.wall_time(), self.status.reason)

    async def _session(self) -> None:
        definition = self.definition
        session = Session(
            definition,
            self,
            remaining=self._remaining,
            marking=lambda source_uri, dest_uri: marking(
                definition, self.name, self.vhost, self._cluster_name(), source_uri, dest_uri
            ),
            wall_time=self._clock.wall_time,
        )
        source, destination = definition.source.uris, definition.destination.uris
        await session.run(Ends(self._shuffled(source), self._shuffled(destination)))

    def _shuffled(self, uris: Sequence[Uri]) -> list[Target]:
        return [self._target(uri) for uri in self._random.sample(uris, len(uris))]

    def _failed(self, error: Exception) -> None:
        status = self.status
        status.pending, status.waiting_for = 0, ""
        state = State.TERMINATED
        if isinstance(error, ConnectionFailed) and status.state is State.STARTING:
            state = State.STARTING
        reason = str(error)
        if not isinstance(error, ConnectionFailed | ChannelFailed | SessionEnded | ValueError):
            log_fault(log, "shovel_fault", shovel=self.name, vhost=self.vhost)
            reason = "internal error"
        if reason != status.reason:
            # A broker that is away for a night is worth one line.
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

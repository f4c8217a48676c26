"""One link: runs session after session, with a delay between failures, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from warren.client.connection import BrokerTarget, ChannelFailed, ConnectionFailed
from warren.core.log_line import log_event, log_fault
from warren.core.ports import Clock
from warren.federation.exchange_session import HELPER_TYPE, PLAIN_HELPER_TYPE, HelperTypeUnknown
from warren.federation.session import LinkEnds, LinkObserver
from warren.federation.status import LinkState, LinkStatus, WantedLink
from warren.shovel.attempts import Attempts
from warren.shovel.flow import FlowProgress, SessionEnded
from warren.shovel.uri import Uri

log = logging.getLogger("warren.federation")

CLEAN_UP_S = 10.0
"""The time that cleaning up at an upstream may take when the federation ends; a node that stops
waits for it."""


class LinkSession(Protocol):
    """One pair of connections, of an exchange or of a queue."""

    def look_again(self) -> None: ...

    async def run(self, ends: LinkEnds) -> None: ...


class Cleaning(LinkSession, Protocol):
    """A session that makes objects at the upstream and can delete them."""

    async def clean_up(self, targets: Sequence[BrokerTarget]) -> None: ...


class NewSession(Protocol):
    def __call__(self, observer: LinkObserver, helper_type: str) -> LinkSession: ...


class FederationLink:
    """One link. `target` returns how to reach an upstream by URI; `here` is how to reach this
    node."""

    def __init__(
        self,
        wanted: WantedLink,
        *,
        new_session: NewSession,
        target: Callable[[Uri], BrokerTarget],
        here: BrokerTarget,
        clock: Clock,
        random: Random,
    ) -> None:
        self.wanted = wanted
        self.status = LinkStatus(clock.wall_time())
        self._new_session = new_session
        self._target = target
        self._here = here
        self._clock = clock
        self._random = random
        self.helper_type = HELPER_TYPE
        self._session: LinkSession | None = None
        self._attempts = Attempts(
            self._get_messages,
            failed=self._failed,
            again=self._starts_again,
            delay_s=wanted.upstream.reconnect_delay_s,
            clock=clock,
        )

    def start(self) -> None:
        self._attempts.start()

    async def stop(self) -> None:
        """Stop the link; unacked messages go back to the upstream."""
        await self._attempts.stop()

    async def clean_up(self, session: Cleaning) -> None:
        """The federation has ended: delete what the link made at the upstream, if possible."""
        try:
            async with asyncio.timeout(CLEAN_UP_S):
                await session.clean_up(self._targets())
        except TimeoutError:
            self._left_behind(f"not done in {CLEAN_UP_S:g} s")
        except Exception as error:
            self._left_behind(self._reason(error))

    def _left_behind(self, reason: str) -> None:
        log_event(log, logging.WARNING, "federation_left_behind", **self._names(), reason=reason)

    def look_again(self) -> None:
        """Check again: bindings of the exchange, or consumers of the queue, may have changed."""
        if self._session is not None:
            self._session.look_again()

    # Reports of the session

    def running(self, uri: str) -> None:
        self.status.uri = uri
        self.status.become(LinkState.RUNNING, self._clock.wall_time())
        log_event(log, logging.INFO, "federation_link_running", **self._names(), uri=uri)

    def progressed(self, progress: FlowProgress) -> None:
        status = self.status
        status.received += progress.moved
        status.pending, status.waiting_for = progress.pending, progress.waiting_for

    # The attempts

    async def _get_messages(self) -> None:
        self._session = self._new_session(self, self.helper_type)
        try:
            await self._session.run(LinkEnds(self._targets(), self._here))
        except HelperTypeUnknown:
            self.helper_type = PLAIN_HELPER_TYPE
            raise
        finally:
            self._session = None

    def _targets(self) -> list[BrokerTarget]:
        uris = self.wanted.upstream.uris
        return [self._target(uri) for uri in self._random.sample(uris, len(uris))]

    def _starts_again(self) -> None:
        self.status.become(LinkState.STARTING, self._clock.wall_time(), self.status.error)

    def _failed(self, error: Exception) -> None:
        status = self.status
        status.pending, status.waiting_for = 0, ""
        state = LinkState.SHUTDOWN if status.state is LinkState.RUNNING else LinkState.ERROR
        reason = self._reason(error)
        if reason != status.error:
            # Each reason is logged once: a broker may be unreachable for a whole night.
            log_event(
                log,
                logging.WARNING,
                "federation_link_failed",
                **self._names(),
                state=state.value,
                reason=reason,
            )
        status.become(state, self._clock.wall_time(), reason)

    def _reason(self, error: Exception) -> str:
        told = (ConnectionFailed, ChannelFailed, SessionEnded, HelperTypeUnknown, ValueError)
        if isinstance(error, told):
            return str(error)
        log_fault(log, "federation_fault", **self._names())
        return "internal error"

    def _names(self) -> dict[str, str]:
        wanted = self.wanted
        return {"upstream": wanted.upstream.name, "vhost": wanted.vhost, wanted.kind: wanted.name}

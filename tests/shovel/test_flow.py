"""The stream of messages between two connections, where one has ended before it begins."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import uvloop

from warren.client.connection import ConnectionFailed
from warren.client.events import ConnectionEnded
from warren.shovel.flow import Flow, FlowProgress, SessionEnded
from warren.shovel.transfer import AckMode, Transfer

log = logging.getLogger("warren.test")


class EndedConnection:
    def __init__(self, failure: ConnectionFailed | None) -> None:
        self.failure = failure


@pytest.mark.parametrize("which", [0, 1])
def test_connection_that_ended_while_the_other_was_set_up_ends_the_flow(which: int) -> None:
    async def work() -> None:
        told: list[FlowProgress] = []
        flow = Flow(told.append, log)
        ends: list[Any] = [EndedConnection(None), EndedConnection(None)]
        ends[which].failure = ConnectionFailed(320, "the broker goes away")
        # Nobody has asked for messages yet, so that this is told to nobody.
        flow.received(ends[which], [ConnectionEnded(320, "the broker goes away")])
        transfer = Transfer(AckMode.ON_CONFIRM, in_order=True, limit=None)
        flow.begin(ends[0], ends[1], transfer, lambda message: None)
        with pytest.raises(SessionEnded, match="the broker goes away"):
            async with asyncio.timeout(30):
                await flow.finish()

    uvloop.run(work())

"""What the log says of connections to the HTTP API."""

from __future__ import annotations

import asyncio
import logging

import pytest
import uvloop

from warren.mgmt.http.server import protocol_log


def test_an_answer_to_a_connection_that_has_ended_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def write_after_the_end() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, "127.0.0.1", port
        )
        transport.abort()
        await asyncio.sleep(0.05)
        server.close()
        transport.write(b"an answer")

    with caplog.at_level(logging.ERROR):
        try:
            uvloop.run(write_after_the_end())
        except RuntimeError:
            protocol_log.exception("Unhandled exception")
        else:
            pytest.fail("uvloop has written to a connection that has ended")
        assert not caplog.records
        try:
            raise RuntimeError("a fault of a handler")
        except RuntimeError:
            protocol_log.exception("Unhandled exception")
    assert [record.message for record in caplog.records] == ["Unhandled exception"]

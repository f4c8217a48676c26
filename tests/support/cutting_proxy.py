"""A TCP proxy between a node and etcd that loses, delays and cuts as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Self


class CuttingProxy:
    """Forwards to a port of this host.

    `lose_request` and `lose_answer` are the chances that a connection is cut instead of passing
    on what has just come. `refuse` cuts every new connection; `cut` those that there are; those
    that there are when `silence` is called pass nothing on any more, and do not end.
    """

    def __init__(self, target_port: int, seed: int = 0) -> None:
        self.lose_request = 0.0
        self.lose_answer = 0.0
        self.refuse = False
        self.lost_answers = 0
        self.connections = 0
        self._target_port = target_port
        self._random = Random(seed)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: set[int] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.refuse = True
        self.cut()
        await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        """Cut the connections there are."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    def silence(self) -> None:
        """The connections there are pass nothing on any more."""
        self._silent.update(range(self.connections + 1))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            etcd_reader, etcd_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            return
        if self.refuse:
            etcd_writer.transport.abort()
            return
        self._open |= {writer, etcd_writer}
        ends = (
            self._pass_on(number, reader, etcd_writer, lambda: self.lose_request),
            self._pass_on(number, etcd_reader, writer, lambda: self.lose_answer, answers=True),
        )
        tasks = [asyncio.ensure_future(end) for end in ends]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, etcd_writer):
            each.transport.abort()
            self._open.discard(each)
        await asyncio.wait(tasks)

    async def _pass_on(
        self,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        chance: Callable[[], float],
        *,
        answers: bool = False,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self._random.random() < chance():
                    self.lost_answers += answers
                    return
                if number not in self._silent:
                    writer.write(data)
                    await writer.drain()

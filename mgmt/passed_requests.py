"""Answers the requests that other nodes of a cluster pass on, for this node alone.

The node that was asked first has authenticated the user; each node checks the rights again, by the
shared definitions. `peers.py` asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import msgspec
from aiohttp import web

from warren.core.access.access_control import User
from warren.core.errors import BrokerError, NotFound
from warren.core.log_line import event_line
from warren.core.scheduling.waiting import Event
from warren.mgmt.http.caller import Caller
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import ApiError
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.managed_node import ManagedNode
from warren.mgmt.peers import QUESTION, PeerRefusal, Question
from warren.mirror.definitions.ending import end_tasks
from warren.mirror.messages.calls import Calls

log = logging.getLogger("warren.http")


class _PassedHttp:
    """Stands for the HTTP request in `ApiRequest`, when the request came from another node."""

    def __init__(self, question: Question) -> None:
        self.method = question.method
        self.path = question.path
        self.raw_path = ""
        self.match_info = question.parts
        self.query = question.query
        self.headers = question.headers
        self._body = question.body

    async def read(self) -> bytes:
        return msgspec.json.encode(self._body)


class PassedRequests:
    """Answers other nodes by the handlers of `endpoints`, which are those they may ask for."""

    def __init__(self, managed: ManagedNode, calls: Calls, endpoints: Iterable[Endpoint]) -> None:
        self._managed = managed
        self._endpoints = {endpoint.path: endpoint for endpoint in endpoints}
        self._answers: set[asyncio.Task[Any]] = set()
        self._stopping = False
        calls.serve(QUESTION, self._asked)

    async def stop(self) -> None:
        """Stop answering: an answer may wait for an event that never comes while the node stops."""
        self._stopping = True
        await end_tasks(self._answers)

    async def _asked(self, node: str, *question: Any) -> Any:
        """Answer another node's question in a task of asyncio, which handlers need.

        The caller awaits this method by the broker's own `Waiting`, which cannot run handlers.
        """
        if self._stopping:
            raise NotFound("the node is stopping")
        answered = Event()
        task = asyncio.ensure_future(self._answer(question[0]))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        task.add_done_callback(lambda _: answered.happen())
        await answered
        if task.cancelled():
            raise NotFound("the node is stopping")
        error = task.exception()
        if error is not None and not isinstance(error, BrokerError):
            log.error("%s", event_line("passed_request_failed"), exc_info=error)
            raise NotFound("the node could not answer")
        return task.result()

    async def _answer(self, asked: Any) -> tuple[Any, PeerRefusal | None]:
        try:
            question = msgspec.convert(asked, Question)
        except msgspec.ValidationError as error:
            raise NotFound(f"a question that cannot be read: {error}") from None
        endpoint = self._endpoints.get(question.path)
        handler = endpoint.methods.get(question.method) if endpoint is not None else None
        if endpoint is None or handler is None:
            raise NotFound(f"no node of this version answers '{question.path}'")
        caller = Caller(
            User(question.user, frozenset(question.tags)), question.address, question.local
        )
        http = cast(web.Request, _PassedHttp(question))
        try:
            endpoint.right_for(question.method).check(caller)
            request = ApiRequest(self._managed, caller, http, passed=True)
            return await _whole(await handler(request)), None
        except ApiError as error:
            return None, PeerRefusal(error.status, error.error, error.reason)


async def _whole(answer: Any) -> Any:
    if isinstance(answer, AsyncIterator):
        return [row async for rows in answer for row in rows]
    return answer

"""Asks the other nodes of a cluster for their part of an answer, and answers when they ask.

A question is a request to an endpoint of the API, or to one that only nodes know (`FOR_NODES`),
with the user who made it. A node answers a passed request for itself alone. The node that was asked
first has authenticated the user; each node checks the rights again, by the shared definitions.

A node that does not answer in `ASK_S` is left out, so that lists work while a node is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from aiohttp import web

from warren.core.access.access_control import User
from warren.core.errors import BrokerError, NotFound
from warren.core.log_line import event_line
from warren.core.scheduling.waiting import Event
from warren.mgmt.http.caller import Caller
from warren.mgmt.http.endpoint import Endpoint
from warren.mgmt.http.errors import ApiError, ObjectNotFound
from warren.mgmt.http.request import ApiRequest
from warren.mgmt.waiting import through
from warren.mirror.definitions.ending import end_tasks

if TYPE_CHECKING:
    from warren.cluster import Cluster
    from warren.mgmt.managed_node import ManagedNode

log = logging.getLogger("warren.http")

QUESTION = "management"
ASK_S = 5.0
"""How long another node may take to answer; a user waits for it."""

PAGING = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns")
"""Query parameters that are not passed on: the first node applies them to all rows."""

PASSED_HEADERS = ("X-Vhost", "X-Reason")


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A request as it is sent to another node."""

    method: str
    path: str
    parts: dict[str, str]
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    user: str
    tags: list[str]
    local: bool
    address: str


class Refusal(NamedTuple):
    """An `ApiError` as it is sent back."""

    status: int
    error: str
    reason: Any


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


class Peers:
    """The other nodes of the cluster, to ask them. They may ask this one for `endpoints`."""

    def __init__(
        self, managed: ManagedNode, cluster: Cluster, endpoints: Iterable[Endpoint]
    ) -> None:
        self._managed = managed
        self._cluster = cluster
        self._endpoints = {endpoint.path: endpoint for endpoint in endpoints}
        self._answers: set[asyncio.Task[Any]] = set()
        self._stopping = False
        cluster.calls.serve(QUESTION, self._asked)

    def linked(self) -> list[str]:
        """The other nodes that this node has links to, and so can ask."""
        return sorted(set(self._cluster.running()) - {self._managed.name})

    def up(self) -> list[str]:
        """The nodes that run according to etcd, whether they can be asked or not."""
        return sorted(self._cluster.membership.running())

    def members(self) -> list[str]:
        """All nodes of the cluster, this one included, whether they run or not."""
        return sorted({self._managed.name, *self._cluster.membership.members()})

    def partitioned(self) -> list[str]:
        """The nodes that run according to etcd, and cannot be reached from here."""
        return sorted(set(self.up()) - {self._managed.name, *self.linked()})

    def once(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """One row for each listener: processes of one broker share theirs, so all report them."""
        machine_of = self._cluster.membership.machine_of
        kept: dict[object, dict[str, Any]] = {}
        for row in rows:
            place = machine_of(row["node"]), row.get("protocol"), row.get("ip_address"), row["port"]
            kept.setdefault(place, row)
        return list(kept.values())

    def standing(self, node: str) -> str:
        """The state of another member that has not answered."""
        if node in self.linked():
            return "silent"
        if node in self.up():
            return "unreachable"
        return "paused" if node in self._cluster.paused() else "down"

    # Asking

    async def ask(
        self,
        node: str,
        request: ApiRequest,
        path: str,
        parts: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: Any = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Another node's answer for itself. `query` is added to the query of the request.

        Raises `ApiError` if that node refused, `BrokerError` if it does not answer.
        """
        caller = request.caller
        question = Question(
            method,
            path,
            dict(parts or {}),
            {name: value for name, value in request.http.query.items() if name not in PAGING}
            | dict(query or {}),
            {
                name: request.http.headers[name]
                for name in PASSED_HEADERS
                if name in request.http.headers
            },
            body,
            caller.name,
            sorted(caller.user.tags),
            caller.local,
            caller.address,
        )
        call = self._cluster.calls.ask(node, QUESTION, msgspec.to_builtins(question))

        async def answered() -> Any:
            return await call

        try:
            answer, refusal = await asyncio.wait_for(through(answered()), ASK_S)
        except TimeoutError:
            raise NotFound(f"node '{node}' did not answer in {ASK_S:g} seconds") from None
        if refusal is not None:
            raise ApiError(*Refusal(*refusal))
        return answer

    async def ask_all(
        self,
        request: ApiRequest,
        path: str,
        parts: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: Any = None,
    ) -> dict[str, Any]:
        """The other nodes' answers, by name, without nodes that refuse or do not answer."""
        nodes = self.linked()
        answers = await asyncio.gather(
            *(self.ask(node, request, path, parts, method=method, body=body) for node in nodes),
            return_exceptions=True,
        )
        found = {}
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, ApiError | BrokerError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            found[node] = answer
        return found

    async def rows(self, request: ApiRequest, path: str) -> list[dict[str, Any]]:
        """The rows that the other nodes have of a list."""
        found = await self.ask_all(request, path, dict(request.http.match_info))
        return [row for rows in found.values() for row in rows]

    # Being asked

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

    async def _answer(self, asked: Any) -> tuple[Any, Refusal | None]:
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
            return None, Refusal(error.status, error.error, error.reason)


def peers_of(request: ApiRequest) -> Peers | None:
    """The other nodes to ask; None on a lone node, and for a request that was passed on."""
    return None if request.passed else request.managed.peers


async def from_any(request: ApiRequest, path: str, *, method: str = "GET") -> Any:
    """The answer of the other node that has the object of the path. Raises `ObjectNotFound`.

    The refusal of a node is passed on: the object exists, and the user may not see it.
    """
    peers = peers_of(request)
    refused: ApiError | None = None
    parts = dict(request.http.match_info)
    for node in peers.linked() if peers is not None else ():
        assert peers is not None
        try:
            return await peers.ask(node, request, path, parts, method=method)
        except ApiError as error:
            if error.status != 404:
                refused = error
        except BrokerError:
            continue
    raise refused or ObjectNotFound()


def added(one: Any, other: Any) -> Any:
    """The sum of two nodes' figures: numbers are added, place by place, name by name."""
    match one, other:
        case (None, _) | (_, None):
            return other if one is None else one
        case bool(), _:
            return one
        case int() | float(), int() | float():
            return one + other
        case dict(), dict():
            return {
                name: (
                    one.get(name) if name == "timestamp" else added(one.get(name), other.get(name))
                )
                for name in {**one, **other}
            }
        case list(), list():
            # A node that started later has fewer samples; all lists have the newest first.
            return [added(a, b) for a, b in zip_longest(one, other)]
    return one


async def _whole(answer: Any) -> Any:
    if isinstance(answer, AsyncIterator):
        return [row async for rows in answer for row in rows]
    return answer

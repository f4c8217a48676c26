"""Asks the other nodes of a cluster for their part of an answer.

A question is a request to an endpoint of the API, or to one that only nodes know (`FOR_NODES`),
with the user who made it. `passed_requests.py` answers it at the other node, for that node alone.

A node that does not answer in `ASK_S` is left out, so that lists work while a node is down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from aiohttp import web

from warren.core.errors import BrokerError, NotFound
from warren.mgmt.http.caller import Caller
from warren.mgmt.http.errors import ApiError
from warren.mgmt.waiting import through

if TYPE_CHECKING:
    from warren.cluster import Cluster

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


class PeerRefusal(NamedTuple):
    """An `ApiError` as it is sent back."""

    status: int
    error: str
    reason: Any


class RequestOfUser(Protocol):
    """The part of a request to the API that goes along with a question."""

    @property
    def caller(self) -> Caller: ...

    @property
    def http(self) -> web.Request: ...


class Peers:
    """The other nodes of the cluster that the node `name` is in, to ask them."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self._name = name
        self._cluster = cluster

    def linked(self) -> list[str]:
        """The other nodes that this node has links to, and so can ask."""
        return sorted(set(self._cluster.running()) - {self._name})

    def up(self) -> list[str]:
        """The nodes that run according to etcd, whether they can be asked or not."""
        return sorted(self._cluster.membership.running())

    def members(self) -> list[str]:
        """All nodes of the cluster, this one included, whether they run or not."""
        return sorted({self._name, *self._cluster.membership.members()})

    def beside(self) -> list[str]:
        """The other processes of this node's broker that this node can ask."""
        return [name for name in self.linked() if self._cluster.membership.is_beside(name)]

    def have_one_machine(self) -> bool:
        """Whether all nodes are processes of one broker."""
        return len(set(map(self._cluster.membership.machine_of, self.members()))) == 1

    def partitioned(self) -> list[str]:
        """The nodes that run according to etcd, and cannot be reached from here."""
        return sorted(set(self.up()) - {self._name, *self.linked()})

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
        request: RequestOfUser,
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
            raise ApiError(*PeerRefusal(*refusal))
        return answer

    async def ask_all(
        self,
        request: RequestOfUser,
        path: str,
        parts: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: Any = None,
        query: Mapping[str, str] | None = None,
        of: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """The other nodes' answers, by name, without nodes that refuse or do not answer. All of
        them are asked, or those of `of`."""
        nodes = self.linked() if of is None else of
        asked = partial(self.ask, method=method, body=body, query=query)
        answers = await asyncio.gather(
            *(asked(node, request, path, parts) for node in nodes),
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

    async def rows(self, request: RequestOfUser, path: str) -> list[dict[str, Any]]:
        """The rows that the other nodes have of a list."""
        found = await self.ask_all(request, path, dict(request.http.match_info))
        return [row for rows in found.values() for row in rows]

    async def rows_beside(self, request: RequestOfUser, path: str) -> list[dict[str, Any]]:
        """The rows that the other processes of this node's broker have of a list."""
        found = await self.ask_all(request, path, of=self.beside())
        return [row for rows in found.values() for row in rows]


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

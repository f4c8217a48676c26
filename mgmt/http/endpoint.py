"""An endpoint: its path, a handler for each method, and the right that a caller needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

from warren.mgmt.http.caller import Caller
from warren.mgmt.http.errors import OBJECT_CLOSED, NotAuthorised
from warren.mgmt.http.request import ApiRequest

Handler: TypeAlias = Callable[[ApiRequest], Awaitable[Any]]
"""Answers with JSON (dicts, lists), `HttpReply`, `JsonLines`, or None for status 204.

A long list may be an async iterator of lists of its rows: the answer itself, or a value in it.
"""


class Right(Enum):
    """The right to use an endpoint; handlers check the rights in a virtual host besides."""

    ANYBODY = auto()
    USER = auto()
    MONITOR = auto()
    POLICYMAKER = auto()
    ADMINISTRATOR = auto()
    LOCAL = auto()

    def check(self, caller: Caller) -> None:
        """Raises `NotAuthorised` if the caller does not have the right."""
        if self is Right.ADMINISTRATOR and not caller.is_administrator:
            raise NotAuthorised("Not administrator user")
        if self is Right.MONITOR and not caller.is_monitor:
            raise NotAuthorised("Not monitor user")
        if self is Right.POLICYMAKER and not caller.is_policymaker:
            raise NotAuthorised(OBJECT_CLOSED)
        if self is Right.LOCAL and not caller.local:
            raise NotAuthorised("Only for the command line of this machine")


class HttpReply(NamedTuple):
    """An answer other than JSON with status 200. A body of bytes is sent unchanged."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = {}


class JsonLines(NamedTuple):
    """A long answer, each line of which is the JSON of a row."""

    rows: AsyncIterator[list[dict[str, Any]]]


CREATED = HttpReply(201)
NO_CONTENT = HttpReply(204)


@dataclass(frozen=True)
class Endpoint:
    """A path of the API, and what answers there.

    `path` is below /api, with names in braces. `summary` is for the description of the API.
    """

    path: str
    methods: Mapping[str, Handler]
    right: Right = Right.USER
    summary: str = ""
    rights: Mapping[str, Right] = field(default_factory=dict)
    """The rights of those methods that need another right than `right`."""

    body_bytes_max: int = 1 << 20
    """Limit of a request's body; a longer one is answered 413."""

    def right_for(self, method: str) -> Right:
        return self.rights.get(method, self.right)

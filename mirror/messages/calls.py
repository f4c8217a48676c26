"""Questions from node to node, and their answers.

A question names a method and has arguments as MessagePack. The answer is a value, or an error of
the broker under its own name, so that a client gets the error it would get at the other node. When
the link goes down, every question still open is answered with `NodeDown`, and the other node sends
no answer to it later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

import msgspec

from warren.core import errors
from warren.core.errors import BrokerError, NotFound
from warren.core.scheduling.waiting import Awaited, Event, Waiting, run
from warren.mirror.messages.post import Post, PostKind, Undeliverable

Method: TypeAlias = Callable[..., Waiting[Any]]

ERRORS: Mapping[str, type[BrokerError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BrokerError)
}


class NodeDown(NotFound):
    """The node that was asked cannot be reached."""

    def __init__(self, node: str) -> None:
        super().__init__(f"node '{node}' is down or cannot be reached")
        self.node = node


class Call:
    """A question under way: `await` it for the answer, or the error."""

    __slots__ = ("_abandoned", "_answered", "_error", "_value")

    def __init__(self) -> None:
        self._answered = Event()
        self._abandoned: Callable[[Any], None] | None = None
        self._value: Any = None
        self._error: BrokerError | None = None

    def answer(self, value: Any, error: BrokerError | None = None) -> None:
        if self._abandoned is not None:
            if error is None:
                self._abandoned(value)
            return
        self._value = value
        self._error = error
        self._answered.happen()

    def abandon(self, late: Callable[[Any], None]) -> None:
        """Give up waiting; a value that comes later goes to `late`, an error is dropped."""
        self._abandoned = late

    def __await__(self) -> Generator[Awaited, None, Any]:
        yield from self._answered.__await__()
        if self._error is not None:
            raise self._error
        return self._value


class Calls:
    """Asks other nodes, and answers their questions by registered methods."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._methods: dict[str, Method] = {}
        self._open: dict[str, dict[int, Call]] = {}
        self._asked = 0
        # For each node: how often the link to it was lost.
        self._lost_links: Counter[str] = Counter()
        post.handle(PostKind.REQUEST, self._requested)
        post.handle(PostKind.ANSWER, self._answered)
        post.watch(on_up=lambda node: None, on_down=self._down)

    def serve(self, name: str, method: Method) -> None:
        """Answer this question by the method, which is given the asking node and the arguments."""
        assert name not in self._methods, name
        self._methods[name] = method

    def ask(self, node: str, name: str, *arguments: Any) -> Call:
        """Ask a node; the arguments are values that MessagePack can encode."""
        call = Call()
        self._asked += 1
        question = msgspec.msgpack.encode((self._asked, name, arguments))
        if self._post.send(node, PostKind.REQUEST, question):
            self._open.setdefault(node, {})[self._asked] = call
        else:
            call.answer(None, NodeDown(node))
        return call

    def _requested(self, node: str, payload: bytes) -> None:
        try:
            number, name, arguments = msgspec.msgpack.decode(
                payload, type=tuple[int, str, list[Any]]
            )
        except msgspec.MsgspecError as error:
            raise Undeliverable(f"a question that cannot be read: {error}") from None
        link = self._lost_links[node]
        method = self._methods.get(name)
        if method is None:
            self._reply(node, number, None, NotFound(f"no node of this version answers '{name}'"))
            return

        def finish(result: Callable[[], Any]) -> None:
            try:
                value, refusal = result(), None
            except BrokerError as error:
                value, refusal = None, error
            # A node that asked over an earlier link no longer waits; and if it has been restarted
            # since, another question from it may have this number.
            if self._lost_links[node] == link:
                self._reply(node, number, value, refusal)

        try:
            waiting = method(node, *arguments)
        except TypeError as error:
            raise Undeliverable(f"a question with wrong arguments: {error}") from None
        run(waiting, finish)

    def _reply(self, node: str, number: int, value: Any, error: BrokerError | None) -> None:
        told = None if error is None else (_name(error), error.text)
        self._post.send(node, PostKind.ANSWER, msgspec.msgpack.encode((number, value, told)))

    def _answered(self, node: str, payload: bytes) -> None:
        try:
            number, value, told = msgspec.msgpack.decode(
                payload, type=tuple[int, Any, tuple[str, str] | None]
            )
        except msgspec.MsgspecError as error:
            raise Undeliverable(f"an answer that cannot be read: {error}") from None
        call = self._open.get(node, {}).pop(number, None)
        if call is None:
            # The question was asked over an earlier link, and answered with `NodeDown` since.
            return
        call.answer(value, None if told is None else ERRORS.get(told[0], NotFound)(told[1]))

    def _down(self, node: str) -> None:
        self._lost_links[node] += 1
        for call in self._open.pop(node, {}).values():
            call.answer(None, NodeDown(node))


def _name(error: BrokerError) -> str:
    """The name of the error's class, or of its closest base class that every node knows."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS)

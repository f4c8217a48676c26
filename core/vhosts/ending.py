"""Ends what may be large: queues and exchanges with very many bindings, and very many of them.

A transaction deletes a queue or an exchange with all its bindings; what is so large that others
would have to wait loses most of its bindings before, in transactions of their own. A crash in
between leaves it with fewer bindings and its messages; no client was told that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from warren.core.errors import BrokerError, NotFound
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import Exchange
from warren.core.ports import Commit
from warren.core.queues.queue import Queue
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import taken

BINDINGS_AT_ONCE = 100
"""Bindings deleted in one transaction: two milliseconds."""

LOOKED_AT_ONCE = 5000
LOOKED_PER_US = 5
"""Bindings that are looked at before others have their turn, and how many in a microsecond."""

QUEUES_AT_ONCE = 20
"""Queues deleted in one transaction."""

EXCHANGES_AT_ONCE = 50
"""Exchanges with a binding or two that are deleted in one transaction."""


class Definitions(Protocol):
    """The calls to a virtual host that are one transaction each."""

    def bindings_to(self, kind: str, name: str) -> list[Binding]: ...

    def bind(self, binding: Binding, connection: object) -> Commit: ...

    def delete(
        self,
        *,
        queues: Iterable[Queue] = (),
        exchanges: Iterable[Exchange] = (),
        bindings: Iterable[Binding] = (),
    ) -> Commit: ...


class Ending:
    """Ends queues and exchanges of one virtual host, in turns where they are large."""

    def __init__(self, definitions: Definitions, turns: Turns) -> None:
        self._definitions = definitions
        self._turns = turns

    async def queue(self, queue: Queue, check: Callable[[], None]) -> None:
        """Delete a queue, unless `check` raises, which is called again before it is too late."""

        def delete() -> Commit:
            check()
            return self._definitions.delete(queues=[queue])

        check()
        bindings = self._definitions.bindings_to("queue", queue.name)
        await self._delete(bindings, delete, queue.exclusive_owner)

    async def exchange(self, bindings: Sequence[Binding], delete: Callable[[], Commit]) -> None:
        """Delete an exchange that has these bindings at either side, unless `delete` raises."""
        await self._delete(bindings, delete, None)

    async def _delete(
        self, bindings: Sequence[Binding], delete: Callable[[], Commit], owner: object | None
    ) -> None:
        gone = await self.most_of(bindings)
        try:
            await taken(delete)
        except BrokerError:
            # A client began to use it meanwhile, and it stays what it was.
            for binding in gone:
                # The other end of a binding may have been deleted.
                with suppress(NotFound):
                    await taken(partial(self._definitions.bind, binding, owner))
                await self._turns.pause()
            raise
        self._turns.let_go(gone)

    async def queues(self, queues: list[Queue]) -> None:
        """Delete queues whatever is in them, the first few at once. The list is emptied."""
        for at in range(0, len(queues), QUEUES_AT_ONCE):
            few = queues[at : at + QUEUES_AT_ONCE]
            for queue in few:
                await self.most_of(self._definitions.bindings_to("queue", queue.name))
            await taken(partial(self._definitions.delete, queues=few))
            await self._turns.pause()
        self._turns.let_go(queues)

    async def exchanges(self, exchanges: list[Exchange]) -> None:
        """Delete exchanges, of which `most_of` has taken the bindings. The list is emptied."""
        for at in range(0, len(exchanges), EXCHANGES_AT_ONCE):
            few = exchanges[at : at + EXCHANGES_AT_ONCE]
            await taken(partial(self._definitions.delete, exchanges=few))
            await self._turns.pause()
        self._turns.let_go(exchanges)

    async def most_of(self, bindings: Sequence[Binding]) -> list[Binding]:
        """Delete these bindings if they are many; returns those that went.

        One of each exchange stays, with which an auto-delete exchange would go.
        """
        most: list[Binding] = []
        if len(bindings) < BINDINGS_AT_ONCE:
            return most
        last: set[str] = set()
        for at in range(len(bindings), 0, -LOOKED_AT_ONCE):
            some = bindings[max(0, at - LOOKED_AT_ONCE) : at]
            for binding in reversed(some):
                if binding.source in last:
                    most.append(binding)
                else:
                    last.add(binding.source)
            self._turns.spend(len(some) // LOOKED_PER_US)
            await self._turns.pause()
        most.reverse()
        for at in range(0, len(most), BINDINGS_AT_ONCE):
            few = most[at : at + BINDINGS_AT_ONCE]
            await taken(partial(self._definitions.delete, bindings=few))
            await self._turns.pause()
        return most

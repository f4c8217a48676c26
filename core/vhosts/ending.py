"""Ends what may be large: queues and exchanges with very many bindings, cascades of auto-delete
exchanges, and very many queues.

A transaction deletes a queue, an exchange or a binding with all that goes with it (`Removal`). If
that is so much that others would have to wait, most of it goes before, in transactions of their
own: the bindings without which no exchange is unused, and then the exchanges that will be unused,
those first that are the farthest from what is deleted. A crash in between leaves fewer bindings
and exchanges, none of them without its last binding, and nobody was told that anything is gone.

Nobody on this node can bind an exchange to something else while it is about to go: who asks waits
for the end. In a cluster other nodes can, and such an exchange stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from warren.core.definitions.records import ExchangeRecord
from warren.core.errors import BrokerError
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import Exchange
from warren.core.exchanges.removal import Removal
from warren.core.field import to_plain
from warren.core.ports import Commit
from warren.core.queues.queue import Queue
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import Event, run, taken

Item = TypeVar("Item")

BINDINGS_AT_ONCE = 100
"""Bindings deleted in one transaction: two milliseconds."""

EXCHANGES_AT_ONCE = 20
"""Exchanges deleted in one transaction, each with a binding."""

GATHERED_AT_ONCE = 150
"""Bindings and exchanges that may go in one transaction with what is deleted. More go before."""

GATHERED_PER_US = 2
"""Bindings and exchanges that are looked at in a microsecond, to find what goes."""

QUEUES_AT_ONCE = 20
"""Queues deleted in one transaction."""


class Definitions(Protocol):
    """What a virtual host can do in one transaction."""

    def bind(self, binding: Binding, connection: object) -> Commit: ...

    def delete_bindings(self, bindings: Iterable[Binding]) -> Commit: ...

    def delete_unused(self, exchanges: Iterable[Exchange], removal: Removal) -> Commit: ...

    def restore_exchange(self, name: str, record: ExchangeRecord) -> Commit: ...

    def delete_queues(self, queues: Iterable[Queue]) -> Commit: ...


class Postponed(Event):
    """The commit of a deletion that is too large for one transaction. What can go before it goes;
    when that is done the deletion has to be asked for again, as when another node was faster.

    Implements `core.ports.Commit`. `bindings` and `exchanges` have gone so far, in this order.
    """

    visible = False
    refused = True

    def __init__(self) -> None:
        super().__init__()
        self.bindings: list[Binding] = []
        self.exchanges: list[tuple[str, ExchangeRecord]] = []


class Ending:
    """Ends things of one virtual host, in turns where they are large."""

    def __init__(self, definitions: Definitions, turns: Turns) -> None:
        self._definitions = definitions
        self._turns = turns
        # What goes before deletions that are too large for one transaction.
        self._going: dict[Removal, Postponed] = {}

    async def queue(self, queue: Queue, check: Callable[[], None]) -> None:
        """Delete a queue, unless `check` raises, which is called again before it is too late."""

        def delete() -> Commit:
            check()
            return self._definitions.delete_queues([queue])

        await self._delete(delete, queue.exclusive_owner)

    async def exchange(self, delete: Callable[[], Commit]) -> None:
        """Delete an exchange, unless `delete` raises."""
        await self._delete(delete, None)

    async def queues(self, queues: list[Queue]) -> None:
        """Delete queues whatever is in them, the first few at once. The list is emptied."""
        for at in range(0, len(queues), QUEUES_AT_ONCE):
            few = queues[at : at + QUEUES_AT_ONCE]
            await taken(partial(self._definitions.delete_queues, few))
            await self._turns.pause()
        self._turns.let_go(queues)

    async def bindings(self, bindings: list[Binding]) -> None:
        """Delete bindings. The list is emptied."""
        for few in _slices(bindings, BINDINGS_AT_ONCE):
            await taken(partial(self._definitions.delete_bindings, few))
            await self._turns.pause()
        self._turns.let_go(bindings)

    async def exchanges(self, exchanges: list[Exchange], removal: Removal) -> None:
        """Delete those of these exchanges that have no bindings but those that the removal deletes.
        The list is emptied."""
        for few in _slices(exchanges, EXCHANGES_AT_ONCE):
            await taken(partial(self._definitions.delete_unused, few, removal))
            await self._turns.pause()
        self._turns.let_go(exchanges)

    async def _delete(self, delete: Callable[[], Commit], owner: object | None) -> None:
        gone: list[Postponed] = []

        def attempt() -> Commit:
            commit = delete()
            if isinstance(commit, Postponed):
                gone.append(commit)
            return commit

        try:
            await taken(attempt)
        except BrokerError:
            # Somebody began to use it meanwhile, and it stays what it was.
            for before in reversed(gone):
                await self._restore(before, owner)
            raise
        for before in gone:
            self._turns.let_go(before.bindings)
            self._turns.let_go(before.exchanges)

    async def _restore(self, gone: Postponed, owner: object | None) -> None:
        """Declare and bind anew what was deleted. Messages that were delayed, and histories, do not
        come back."""
        for name, record in reversed(gone.exchanges):
            await taken(partial(self._definitions.restore_exchange, name, record))
            await self._turns.pause()
        for binding in gone.bindings:
            # The other end of a binding may have been deleted, or declared as something else.
            with suppress(BrokerError):
                await taken(partial(self._definitions.bind, binding, owner))
            await self._turns.pause()

    # What goes before

    def before(self, removal: Removal) -> Postponed:
        """Begin to delete what can go before the rest of a large removal, which is gathered on."""
        postponed = self._going[removal] = Postponed()

        def finish(result: Callable[[], None]) -> None:
            del self._going[removal]
            result()
            postponed.happen()

        run(self._before(removal, postponed), finish)
        return postponed

    def until_gone(self, exchange: str) -> Postponed | None:
        """What somebody has to wait for who wants to bind something to this exchange, because it is
        about to go."""
        for removal, postponed in self._going.items():
            if exchange in removal.exchanges:
                return postponed
        return None

    async def _before(self, removal: Removal, gone: Postponed) -> None:
        await self._turns.pause()
        while not removal.gather(GATHERED_AT_ONCE):
            self._turns.spend(GATHERED_AT_ONCE // GATHERED_PER_US)
            await self._turns.pause()
        surplus, unused = await self._surplus(removal), removal.unused
        assert surplus or unused, "the deletion that waits for this would wait for ever"
        for few in _slices(surplus, BINDINGS_AT_ONCE):
            gone.bindings += few
            await taken(partial(self._definitions.delete_bindings, few))
            await self._turns.pause()
        unused.reverse()
        for going in _slices(unused, EXCHANGES_AT_ONCE):
            for exchange in going:
                gone.exchanges.append((exchange.name, _record_of(exchange)))
                gone.bindings += exchange.bindings
            await taken(partial(self._definitions.delete_unused, going, removal))
            await self._turns.pause()
        self._turns.let_go(unused)

    async def _surplus(self, removal: Removal) -> list[Binding]:
        """The bindings without which no exchange is unused: all but one of each that goes."""
        surplus: list[Binding] = []
        kept: set[str] = set()
        for few in _slices(list(removal.bindings), GATHERED_AT_ONCE):
            for binding in few:
                if binding.source in removal.exchanges and binding.source not in kept:
                    kept.add(binding.source)
                else:
                    surplus.append(binding)
            self._turns.spend(GATHERED_AT_ONCE // GATHERED_PER_US)
            await self._turns.pause()
        return surplus


def _record_of(exchange: Exchange) -> ExchangeRecord:
    return ExchangeRecord(
        exchange.type,
        exchange.auto_delete,
        exchange.internal,
        to_plain(exchange.arguments),
        exchange.durable,
        exchange.declared_by,
    )


def _slices(items: list[Item], size: int) -> Iterator[list[Item]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]

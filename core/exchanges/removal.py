"""What goes when something goes: a binding with either of its ends, and an auto-delete exchange
with its last binding, however far that cascades (amqp_semantics.md section 3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import Exchange


class Removal:
    """Gathers bindings and exchanges that are to go; touches nothing itself."""

    def __init__(
        self,
        exchanges: Mapping[str, Exchange],
        bindings_to: Callable[[str, str], Iterable[Binding]],
    ) -> None:
        self.bindings: dict[Binding, None] = {}
        self.exchanges: dict[str, Exchange] = {}
        self._there = exchanges
        self._bindings_to = bindings_to
        self._left: dict[str, int] = {}
        self._doomed: deque[Exchange] = deque()

    def of_bindings(self, bindings: Iterable[Binding]) -> None:
        """Gather these bindings, as far as they exist, and the exchanges that go with them."""
        for binding in bindings:
            self._binding(binding)
        self._cascade()

    def of_queue(self, name: str) -> None:
        """Gather the bindings that lead to this queue, and the exchanges that end with them."""
        self.of_bindings(self._bindings_to("queue", name))

    def of_exchange(self, exchange: Exchange) -> None:
        """Gather this exchange, the bindings from it and to it, and all that ends with them."""
        self._doomed.append(exchange)
        self._cascade()

    def _cascade(self) -> None:
        while self._doomed:
            exchange = self._doomed.popleft()
            if exchange.name in self.exchanges:
                continue
            self.exchanges[exchange.name] = exchange
            self.bindings.update(dict.fromkeys(exchange.bindings))
            for binding in self._bindings_to("exchange", exchange.name):
                self._binding(binding)

    def _binding(self, binding: Binding) -> None:
        source = self._there.get(binding.source)
        if source is None or binding in self.bindings or binding not in source.bindings:
            return
        self.bindings[binding] = None
        left = self._left.get(source.name, len(source.bindings)) - 1
        self._left[source.name] = left
        if source.auto_delete and not left:
            self._doomed.append(source)

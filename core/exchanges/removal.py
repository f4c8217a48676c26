"""What goes when something goes: a binding with either of its ends, and an auto-delete exchange
with its last binding, however far that cascades (amqp_semantics.md section 3).

A cascade may be long, so it is gathered in steps. Other clients may bind and delete between two
steps: an exchange goes only if all the bindings that it has when it is looked at go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import Exchange


class Removal:
    """Gathers bindings and exchanges that are to go; touches nothing itself.

    An exchange comes after all that its bindings lead to, in `exchanges`.
    """

    def __init__(
        self,
        exchanges: Mapping[str, Exchange],
        bindings_to: Callable[[str, str], Iterable[Binding]],
    ) -> None:
        self.bindings: dict[Binding, None] = {}
        self.exchanges: dict[str, Exchange] = {}
        self._there = exchanges
        self._bindings_to = bindings_to
        # How many bindings of an exchange go.
        self._going: dict[str, int] = {}
        # The exchanges that were asked for, which go in any case.
        self._wanted: set[str] = set()
        self._candidates: deque[Iterator[Binding]] = deque()
        self._doomed: deque[Exchange] = deque()

    def of_bindings(self, bindings: Iterable[Binding]) -> None:
        """These bindings go, as far as they exist."""
        self._candidates.append(iter(bindings))

    def of_queue(self, name: str) -> None:
        """This queue goes, and with it what leads to it."""
        self.of_bindings(self._bindings_to("queue", name))

    def of_exchange(self, exchange: Exchange) -> None:
        """This exchange goes, with the bindings at either side of it."""
        self._wanted.add(exchange.name)
        self.of_bindings(list(exchange.bindings))
        self._doomed.append(exchange)

    @property
    def unused(self) -> list[Exchange]:
        """The exchanges that go because their last binding does."""
        return [one for name, one in self.exchanges.items() if name not in self._wanted]

    def deletes(self, exchange: Exchange) -> bool:
        """Whether an exchange is there still, and all its bindings are among those that go."""
        there = self._there.get(exchange.name) is exchange
        return there and exchange.bindings <= self.bindings.keys()

    def gather(self, at_most: int) -> bool:
        """Look at so many bindings and exchanges. False if there are more, and it can go on."""
        for _ in range(at_most):
            if self._candidates:
                binding = next(self._candidates[0], None)
                if binding is not None:
                    self._binding(binding)
                else:
                    self._candidates.popleft()
            elif self._doomed:
                self._exchange(self._doomed.popleft())
            else:
                return True
        return False

    def _exchange(self, exchange: Exchange) -> None:
        name = exchange.name
        if name not in self.exchanges and (name in self._wanted or self.deletes(exchange)):
            self.exchanges[name] = exchange
            self.of_bindings(self._bindings_to("exchange", name))

    def _binding(self, binding: Binding) -> None:
        source = self._there.get(binding.source)
        if source is None or binding in self.bindings or binding not in source.bindings:
            return
        self.bindings[binding] = None
        going = self._going[source.name] = self._going.get(source.name, 0) + 1
        if source.auto_delete and going >= len(source.bindings):
            self._doomed.append(source)

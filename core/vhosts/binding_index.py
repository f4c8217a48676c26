"""The bindings of a virtual host, by their keys in the metadata store and by where they lead."""

from __future__ import annotations

from warren.core.exchanges.binding import Binding
from warren.core.ports import Key


class BindingIndex:
    """All bindings but the implicit ones of the default exchange."""

    __slots__ = ("_by_destination", "_by_key")

    def __init__(self) -> None:
        self._by_key: dict[Key, Binding] = {}
        self._by_destination: dict[tuple[str, str], dict[Binding, None]] = {}

    def get(self, key: Key) -> Binding | None:
        return self._by_key.get(key)

    def to(self, kind: str, name: str) -> list[Binding]:
        """The bindings that lead to this queue or exchange."""
        return list(self._by_destination.get((kind, name), ()))

    def add(self, key: Key, binding: Binding) -> None:
        self._by_key[key] = binding
        destination = (binding.destination_kind, binding.destination)
        self._by_destination.setdefault(destination, {})[binding] = None

    def pop(self, key: Key) -> Binding | None:
        """Remove the binding of a key and return it; None when there is none."""
        binding = self._by_key.pop(key, None)
        if binding is None:
            return None
        destination = (binding.destination_kind, binding.destination)
        bindings = self._by_destination[destination]
        del bindings[binding]
        if not bindings:
            del self._by_destination[destination]
        return binding

    def clear(self) -> None:
        self._by_key.clear()
        self._by_destination.clear()

"""The headers of a message while it is routed, decoded twice at most for all exchanges that ask."""

from __future__ import annotations

from collections.abc import Collection

from warren.core.field import Table, to_text
from warren.core.ports import ContentCodec


class MessageHeaders:
    """The headers in the content header of a message.

    Most messages meet one exchange that asks, and only what it asks for is decoded. For the second
    one everything is.
    """

    __slots__ = ("_all", "_codec", "_header", "_was_asked")

    def __init__(self, codec: ContentCodec, header: bytes) -> None:
        self._codec = codec
        self._header = header
        self._was_asked = False
        self._all: Table | None = None

    def __call__(self, names: Collection[bytes]) -> Table:
        """The headers with these names."""
        if not self._was_asked:
            self._was_asked = True
            return self._codec.named_headers(self._header, names)
        if self._all is None:
            self._all = self._codec.headers(self._header)
        found = self._all
        return {name: found[name] for name in map(to_text, names) if name in found}

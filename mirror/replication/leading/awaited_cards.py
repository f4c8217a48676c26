"""The mirrors of a queue that have become whole and are not called in sync yet.

The definition calls a mirror in sync only when the mirror's card is durable: without its card a
copy is of no use after a restart. So the leader asks for the card first, and asks again until it is
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

AskForCard: TypeAlias = Callable[[str, Callable[[bool], None]], None]
"""Ask a mirror to write its card, and call back with whether the card is durable: False if the
mirror cannot be reached, or is not the copy that the leader takes it for."""


class _Awaited:
    """A mirror whose card the leader waits for; `then` is called when the card is durable."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then
        self.is_asked = False


class AwaitedCards:
    """The cards that the leader of one queue waits for."""

    def __init__(self) -> None:
        self._awaited: dict[str, _Awaited] = {}

    def __bool__(self) -> bool:
        return bool(self._awaited)

    def wait_for(self, mirror: str, ask: AskForCard, then: Callable[[], None]) -> None:
        """Ask a mirror that has become whole for its card, and call `then` when that is durable."""
        self._awaited[mirror] = _Awaited(then)
        self._ask_for(mirror, ask)

    def ask_again(self, ask: AskForCard, is_whole: Callable[[str], bool]) -> None:
        """Repeat the questions that were answered with no, if the mirrors are still whole."""
        for mirror, awaited in list(self._awaited.items()):
            if not is_whole(mirror):
                del self._awaited[mirror]
            elif not awaited.is_asked:
                self._ask_for(mirror, ask)

    def _ask_for(self, mirror: str, ask: AskForCard) -> None:
        awaited = self._awaited[mirror]
        awaited.is_asked = True

        def answered(is_durable: bool) -> None:
            if self._awaited.get(mirror) is not awaited:
                # The question was about an earlier copy of that node.
                return
            awaited.is_asked = False
            if is_durable:
                del self._awaited[mirror]
                awaited.then()

        ask(mirror, answered)

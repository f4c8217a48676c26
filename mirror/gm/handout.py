"""Hands out the effects of a member: upcalls to the layer above, the others to the shell.

The layer above may call the member from within an upcall. The new effects are carried out after
those already waiting, so that frames leave in the order in which they were made. The layer above
may also be replaced within an upcall (`become`): it is looked up for each upcall, so the
remaining effects go to the new layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from warren.mirror.carriers.ports import UpperLayer
from warren.mirror.gm.effects import (
    Confirmed,
    Congestion,
    Deliver,
    Effect,
    Joined,
    MembersChanged,
    ShellEffect,
    Stopped,
)


class Handout:
    """The effects of one member that wait to be carried out."""

    def __init__(self, upper: UpperLayer) -> None:
        self._upper = upper
        self._waiting: deque[Effect] = deque()
        self._is_running = False

    def become(self, upper: UpperLayer) -> None:
        """Make the upcalls to another layer, from the next one on."""
        self._upper = upper

    def run(self, effects: Iterable[Effect], shell: Callable[[ShellEffect], None]) -> None:
        """Carry out the effects: now, or after those that are being carried out. `shell` carries
        out what is not for the layer above."""
        self._waiting.extend(effects)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._waiting:
                self._carry_out(self._waiting.popleft(), shell)
        finally:
            self._is_running = False

    def _carry_out(self, effect: Effect, shell: Callable[[ShellEffect], None]) -> None:
        match effect:
            case Deliver(sender, payload):
                self._upper.deliver(sender, payload)
            case Confirmed(tokens):
                self._upper.confirmed(tokens)
            case MembersChanged(births, deaths):
                self._upper.members_changed(births, deaths)
            case Joined(members):
                self._upper.joined(members)
            case Congestion(congested):
                self._upper.congestion(congested)
            case Stopped(reason):
                self._upper.stopped(reason)
            case _:
                shell(effect)

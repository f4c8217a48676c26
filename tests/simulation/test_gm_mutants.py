"""The checks are checked: gm is broken on purpose, and the simulation must notice.

Each mutant differs from gm in one thing that it does for a reason. A history that does not fail
with it would be no proof of anything. That catchups of earlier links are refused is noticed by no
history, for want of one that is bad enough; `test_gm_scenarios.py` has it under GS17.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import gm_history
import pytest

from warren.mirror.carriers.ports import StopReason
from warren.mirror.gm import catch_up
from warren.mirror.gm.base import JOINED
from warren.mirror.gm.circulation import ActivityEffects, Circulation
from warren.mirror.gm.effects import Deliver
from warren.mirror.gm.member import HANDLERS, Member
from warren.mirror.gm.messages import NONE, MemberNews
from warren.mirror.gm.record_access import RecordAccess
from warren.mirror.gm.ring_links import RingLinks
from warren.mirror.gm.view import is_alive

SEEDS_MAX = 3000
Patch = pytest.MonkeyPatch


def skip_every_catchup(patch: Patch) -> None:
    patch.setattr(Member, "_catch_up", lambda self, sender, message: self._links.begin(message))


def miss_publishes_in_catchups(patch: Patch) -> None:
    news = catch_up._news
    patch.setattr(
        catch_up, "_news", lambda state, known: news(state, known)._replace(pubs=(), acked=NONE)
    )


def forget_what_came_round_in_catchups(patch: Patch) -> None:
    returned = catch_up._returned
    patch.setattr(
        catch_up, "_returned", lambda state, known: returned(state, known)._replace(pubs=())
    )


def erase_aliases_early(patch: Patch) -> None:
    patch.setattr(Circulation, "settled", lambda self, members: list(members))


def deliver_twice(patch: Patch) -> None:
    _change_progress(patch, lambda p: p._replace(deliveries=p.deliveries * 2))


def never_pass_on(patch: Patch) -> None:
    _change_progress(patch, lambda p: p._replace(entries=[]))


def drop_some_acks(patch: Patch) -> None:
    def dropped(progress: ActivityEffects) -> ActivityEffects:
        kept = [entry for entry in progress.entries if entry.pubs or entry.acked % 5 != 2]
        return progress._replace(entries=kept)

    _change_progress(patch, dropped)


def _change_progress(patch: Patch, change: Callable[[ActivityEffects], ActivityEffects]) -> None:
    progress = Member._progress
    patch.setattr(Member, "_progress", lambda self, result: progress(self, change(result)))


def confirm_when_flushed(patch: Patch) -> None:
    flush = Member._flush

    def early(self: Any) -> None:
        flush(self)
        self._confirm(self._circulation._confirmed(self._circulation.last_broadcast))

    patch.setattr(Member, "_flush", early)


def forget_confirms_when_alone(patch: Patch) -> None:
    settle = Circulation.settle_alone
    patch.setattr(Circulation, "settle_alone", lambda self: (settle(self), ())[1])


def deliver_the_first_catchup(patch: Patch) -> None:
    load = Circulation.load

    def loaded(self: Any, known: Any) -> None:
        load(self, known)
        self.first = [MemberNews(k.member, 0, k.pending, NONE) for k in known if k.pending]

    enter = Member._enter

    def entered(self: Any, left: Any, catchup: Any, record: Any) -> None:
        enter(self, left, catchup, record)
        for entry in getattr(self._circulation, "first", []):
            self._effects += [Deliver(entry.member, payload) for payload in entry.pubs]

    patch.setattr(Circulation, "load", loaded)
    patch.setattr(Member, "_enter", entered)


def accept_activity_after_a_gap(patch: Patch) -> None:
    patch.setattr(RingLinks, "continues", lambda self, activity: True)


def accept_activity_before_the_catchup(patch: Patch) -> None:
    def continues(self: Any, activity: Any) -> bool:
        self._expected = activity.position + 1
        return True

    patch.setattr(RingLinks, "continues", continues)
    patch.setattr(RingLinks, "is_waiting", False)


def process_later_versions_at_once(patch: Patch) -> None:
    process = Member._process

    def hasty(self: Any, sender: Any, message: Any) -> None:
        # The view's own version is kept, so that nothing is refreshed for a message.
        if self.phase is JOINED and message.version > self._view.version:
            fields = {name: getattr(message, name) for name in message.__struct_fields__}
            message = type(message)(**{**fields, "version": self._view.version})
        process(self, sender, message)

    patch.setattr(Member, "_process", hasty)


def process_while_the_store_is_asked(patch: Patch) -> None:
    turn = Member._turn

    def hasty(self: Any, first: Any = None) -> Any:
        if self._access.is_busy and self.phase is JOINED:
            waiting = list(self._inbox)
            self._inbox.clear()
            for item in waiting:
                message = item.args[1] if len(item.args) > 1 else None
                if type(message).__name__ == "Activity" and message.version <= self._view.version:
                    continue
                self._inbox.append(item)
        return turn(self, first)

    patch.setattr(Member, "_turn", hasty)


def tell_no_former_neighbour(patch: Patch) -> None:
    check = Member._check_neighbours

    def only_present(self: Any, neighbours: set[Any]) -> None:
        check(self, neighbours & {self._view.left, self._view.right})

    patch.setattr(Member, "_check_neighbours", only_present)


def never_ask_for_a_catchup(patch: Patch) -> None:
    patch.setattr(Member, "_answer_neighbour", lambda self, sender, message: None)


def begin_with_anybodys_knowledge(patch: Patch) -> None:
    """As in the reference: let in by one that died, go on with the state of another."""

    def first(self: Any, sender: Any, message: Any) -> None:
        self._access.read(partial(self._enter, sender, message))

    stop = Member._stop

    def stay(self: Any, reason: StopReason) -> None:
        if reason is not StopReason.JOIN_LOST:
            stop(self, reason)

    patch.setattr(Member, "_stop", stay)
    patch.setattr(Member, "_first_catchup", first)
    patch.setattr(Member, "_was_let_in_by", lambda self, left, record: is_alive(record, self.me))


def take_an_unknown_outcome_for_success(patch: Patch) -> None:
    patch.setattr(RecordAccess, "unavailable", RecordAccess.committed)


MUTANTS = [
    accept_activity_after_a_gap,
    accept_activity_before_the_catchup,
    begin_with_anybodys_knowledge,
    confirm_when_flushed,
    deliver_the_first_catchup,
    deliver_twice,
    drop_some_acks,
    erase_aliases_early,
    forget_confirms_when_alone,
    forget_what_came_round_in_catchups,
    miss_publishes_in_catchups,
    never_ask_for_a_catchup,
    never_pass_on,
    process_later_versions_at_once,
    process_while_the_store_is_asked,
    skip_every_catchup,
    take_an_unknown_outcome_for_success,
    tell_no_former_neighbour,
]

FIRST_SEED = {never_ask_for_a_catchup: 650, tell_no_former_neighbour: 2350}
"""Where the first history that notices is late, to save the time of those before it."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_gm_is_noticed(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    # The table holds the functions that the class had before.
    table = {key: getattr(Member, handler.__name__) for key, handler in HANDLERS.items()}
    for key, handler in table.items():
        monkeypatch.setitem(HANDLERS, key, handler)
    for seed in range(FIRST_SEED.get(mutant, 0), SEEDS_MAX):
        try:
            gm_history.run(seed, Counter())
        except Exception as error:
            print(f"{mutant.__name__}: {error}")
            return
    pytest.fail(f"histories up to seed {SEEDS_MAX} did not notice")

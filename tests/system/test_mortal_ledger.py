"""The ledger of `kill_long.py` complains of what a node may not do to messages that die."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from message_ledger import Complaint, Marked, Published
from mortal_ledger import GRAVES, MORTAL, ON_THE_WAY, Found, MortalLedger, mortal_queue

QUEUE = "rejected"
MESSAGE = Marked(next(at for at in range(100) if mortal_queue(at) == QUEUE), 0, True)


def ledger_of(*sent: Marked) -> MortalLedger:
    """What is known when all of these were confirmed."""
    ledger = MortalLedger()
    ledger.life_ended([Published(list(sent), {one.message for one in sent})], {})
    return ledger


def found(old: Sequence[Marked], graves: Sequence[Marked], *, redelivered: bool = True) -> Found:
    nothing: list[tuple[Marked, bool]] = []
    seen = {queue: nothing for queue in (*MORTAL, *ON_THE_WAY)}
    seen[QUEUE] = [(one, redelivered) for one in old]
    return {**seen, GRAVES: [(one, True) for one in graves]}


@pytest.mark.parametrize(("old", "graves"), [([MESSAGE], []), ([], [MESSAGE])])
def test_a_message_is_in_its_queue_or_in_the_graves(
    old: list[Marked], graves: list[Marked]
) -> None:
    ledger_of(MESSAGE).audited(found(old, graves), [])


def test_after_a_crash_it_may_be_in_both() -> None:
    ledger = ledger_of(MESSAGE)
    ledger.crashed()
    ledger.audited(found([MESSAGE], [MESSAGE, MESSAGE]), [])


def test_without_a_crash_it_may_not() -> None:
    with pytest.raises(Complaint, match="too often"):
        ledger_of(MESSAGE).audited(found([MESSAGE], [MESSAGE]), [])


def test_in_both_it_must_count_as_redelivered() -> None:
    ledger = ledger_of(MESSAGE)
    ledger.crashed()
    with pytest.raises(Complaint, match="does not say so"):
        ledger.audited(found([MESSAGE], [MESSAGE], redelivered=False), [])


def test_in_none_it_is_lost() -> None:
    with pytest.raises(Complaint, match="1 messages are lost"):
        ledger_of(MESSAGE).audited(found([], []), [])


def test_a_message_nobody_sent_is_invented() -> None:
    with pytest.raises(Complaint, match="never published"):
        ledger_of().audited(found([], [MESSAGE]), [])


def test_a_drained_message_may_not_come_back() -> None:
    ledger = ledger_of(MESSAGE)
    ledger.audited(found([], [MESSAGE]), [GRAVES])
    ledger.crashed()
    with pytest.raises(Complaint, match="came back"):
        ledger.audited(found([], [MESSAGE]), [])


def test_a_transient_message_survives_no_end() -> None:
    transient = MESSAGE._replace(persistent=False)
    with pytest.raises(Complaint):
        ledger_of(transient).audited(found([transient], []), [])

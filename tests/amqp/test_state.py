"""The table of a connection's states is whole, and it is the only place that knows what follows."""

from __future__ import annotations

import re
from pathlib import Path

import warren.amqp.state
from warren.amqp.connection_methods import HANDLERS
from warren.amqp.state import NEXT, State, Transition

HOUSE = Path(warren.amqp.state.__file__).parent


def test_every_state_is_reached_and_every_state_can_end() -> None:
    reached = {State.AWAITING_HEADER}
    while more := {NEXT[at, step] for at, step in NEXT if at in reached} - reached:
        reached |= more
    assert reached == set(State)
    assert all(NEXT[state, Transition.LOSE] is State.CLOSED for state in State)
    assert all(NEXT[state, Transition.FAIL] is State.FAILED for state in State)


def test_who_has_failed_or_is_closed_goes_nowhere_else() -> None:
    for ended in (State.FAILED, State.CLOSED):
        assert {step for state, step in NEXT if state is ended} == {
            Transition.FAIL,
            Transition.LOSE,
        }
        assert not [method for state, method in HANDLERS if state is ended]


def test_no_connection_is_open_without_a_login() -> None:
    into = {state: {at for (at, _), after in NEXT.items() if after is state} for state in State}
    assert into[State.RUNNING] == {State.AWAITING_OPEN}
    assert into[State.AWAITING_OPEN] == {State.AWAITING_TUNE_OK}
    logged_in = {step for (_, step), after in NEXT.items() if after is State.AWAITING_TUNE_OK}
    assert logged_in == {Transition.LOG_IN}


def test_a_connection_changes_its_state_by_the_table_alone() -> None:
    changes = re.findall(r"self\.state = (.*)", (HOUSE / "connection.py").read_text())
    assert changes == ["State.AWAITING_HEADER", "NEXT[self.state, transition]"]

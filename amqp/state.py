"""The life of a connection as a table: the states, and which follows which.

    AWAITING_HEADER ─protocol header─▶ AWAITING_START_OK ⇄ AWAITING_SECURE_OK
          └▶ AWAITING_TUNE_OK ─▶ AWAITING_OPEN ─▶ RUNNING
    RUNNING ─close from us─▶ CLOSING ─close-ok─▶ CLOSED
    RUNNING ─close from the client─▶ CLOSED
    AWAITING_START_OK, AWAITING_SECURE_OK ─login refused─▶ CLOSING, if the client wants to be told
    AWAITING_OPEN ─anything but open─▶ CLOSING
    any state before AWAITING_OPEN ─anything else─▶ FAILED

A method that `connection_methods.HANDLERS` does not have for a state is an error. Before
AWAITING_OPEN the connection sends nothing more, and the socket is cut after a delay
(amqp_semantics.md section 1.1). From AWAITING_OPEN on the method is a channel error (section 1.10).
FAILED and CLOSED ignore everything and wait for the socket to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class State(Enum):
    AWAITING_HEADER = auto()
    AWAITING_START_OK = auto()
    AWAITING_SECURE_OK = auto()
    AWAITING_TUNE_OK = auto()
    AWAITING_OPEN = auto()
    RUNNING = auto()
    CLOSING = auto()
    CLOSED = auto()
    FAILED = auto()


class Transition(Enum):
    """The events of a connection that change its state."""

    GREET = auto()
    CHALLENGE = auto()
    LOG_IN = auto()
    TUNE = auto()
    OPEN = auto()
    CLOSE = auto()
    CLOSE_OK = auto()
    CLOSE_BY_CLIENT = auto()
    FAIL = auto()
    LOSE = auto()
    """The socket is gone."""


NEXT: Mapping[tuple[State, Transition], State] = {
    (State.AWAITING_HEADER, Transition.GREET): State.AWAITING_START_OK,
    (State.AWAITING_START_OK, Transition.CHALLENGE): State.AWAITING_SECURE_OK,
    (State.AWAITING_START_OK, Transition.LOG_IN): State.AWAITING_TUNE_OK,
    (State.AWAITING_SECURE_OK, Transition.CHALLENGE): State.AWAITING_SECURE_OK,
    (State.AWAITING_SECURE_OK, Transition.LOG_IN): State.AWAITING_TUNE_OK,
    (State.AWAITING_TUNE_OK, Transition.TUNE): State.AWAITING_OPEN,
    (State.AWAITING_OPEN, Transition.OPEN): State.RUNNING,
    (State.AWAITING_START_OK, Transition.CLOSE): State.CLOSING,
    (State.AWAITING_SECURE_OK, Transition.CLOSE): State.CLOSING,
    (State.AWAITING_OPEN, Transition.CLOSE): State.CLOSING,
    (State.RUNNING, Transition.CLOSE): State.CLOSING,
    (State.RUNNING, Transition.CLOSE_BY_CLIENT): State.CLOSED,
    (State.CLOSING, Transition.CLOSE_OK): State.CLOSED,
    **{(state, Transition.FAIL): State.FAILED for state in State},
    **{(state, Transition.LOSE): State.CLOSED for state in State},
}
"""The state after each transition; a transition that is not here is a fault of the broker."""

NAMES: Mapping[State, str] = {State.AWAITING_OPEN: "opening", State.RUNNING: "running"}
"""The states in which connection.close tells the client of its fault, and their names in the text
of that close."""

BEFORE_RUNNING = frozenset(State) - {State.RUNNING, State.CLOSING, State.CLOSED}

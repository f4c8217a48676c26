"""One input of the fuzzer: what a peer says, and what happens meanwhile."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from pipe import Client, start_ok
from sessions import mutated, random_session, reactions
from survivors import Stage

from warren.amqp.frames import PROTOCOL_HEADER


class Script(NamedTuple):
    """What sessions are made of."""

    pool: list[bytes]
    openings: list[bytes]


def play(stage: Stage, random: Random, script: Script) -> None:
    """One input: a peer says its session, alarms and time pass, and the peer is lost."""
    broker = stage.broker
    parts = random_session(random, *script)
    if random.random() < 0.03:
        peer = broker.accepts()
        parts = [mutated(random, PROTOCOL_HEADER + start_ok()), *parts]
    else:
        peer = stage.peer()
    alarm = random.random() < 0.05
    listens = random.random() < 0.7
    for part in parts:
        peer.sends_octets(part)
        if alarm:
            broker.alarm(random.random() < 0.5)
        if listens:
            answer = reactions(random, peer.frames())
            if answer:
                peer.sends_octets(answer)
        if random.random() < 0.1:
            _something_happens(stage, random, peer)
    stage.check_while_connected(peer)
    broker.settle()
    if alarm:
        broker.alarm(False)
    if random.random() < 0.1:
        broker.advance(random.choice((0.01, 0.1, 5, 200)))
    peer.vanishes()
    stage.check_after(peer)


def _something_happens(stage: Stage, random: Random, peer: Client) -> None:
    match random.randrange(5):
        case 0:
            stage.broker.advance(random.choice((0.001, 0.01, 0.1, 1)))
        case 1 if not peer.pipe.ended:
            peer.connection.writable(random.random() < 0.5)
        case _:
            stage.broker.settle()

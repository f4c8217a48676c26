"""Flow control by credit: nothing is lost, nobody is blocked for ever, pressure travels."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warren.core.credit import Credit, CreditMismatch, CreditSpec, Party, Receiver, Sender

SPEC = CreditSpec(initial=Credit(4, 100), more_after=Credit(2, 50))


class Pair:
    """Two parties, and a wire that brings messages and grants when it is told to."""

    def __init__(self, sending: Party, receiving: Party, spec: CreditSpec = SPEC) -> None:
        self.sender = Sender(sending, spec)
        self.receiver = Receiver(receiving, self.grant, spec)
        self.on_the_way: list[int] = []
        self.grants: list[Credit] = []
        self.spec = spec

    def grant(self, grant: Credit) -> None:
        self.grants.append(grant)

    def send(self, octets: int = 1) -> None:
        self.on_the_way.append(octets)
        self.sender.spend(octets)

    def process(self) -> None:
        self.receiver.processed(self.on_the_way.pop(0))

    def bring_grant(self) -> None:
        self.sender.grant(self.grants.pop(0))

    def total(self) -> Credit:
        """Credit, what is on the way and what is owed."""
        messages, octets = self.sender.credit
        messages += len(self.on_the_way) + self.receiver.owed.messages
        octets += sum(self.on_the_way) + self.receiver.owed.octets
        messages += sum(grant.messages for grant in self.grants)
        octets += sum(grant.octets for grant in self.grants)
        return Credit(messages, octets)


class Someone(Party):
    def __init__(self) -> None:
        self.time = 0.0
        self.changes: list[bool] = []
        super().__init__(lambda: self.time, self.changes.append)


def test_a_sender_is_blocked_when_its_messages_are_used_up() -> None:
    publisher, queue = Someone(), Someone()
    pair = Pair(publisher, queue)
    for _ in range(3):
        pair.send()
    assert not publisher.blocked
    pair.send()
    assert publisher.blocked and publisher.changes == [True]
    pair.send()
    assert pair.sender.credit.messages == -1, "what has begun is finished"


def test_a_sender_is_blocked_when_its_bytes_are_used_up() -> None:
    publisher, queue = Someone(), Someone()
    pair = Pair(publisher, queue)
    pair.send(99)
    assert not publisher.blocked
    pair.send(500)
    assert publisher.blocked
    pair.process()
    pair.process()
    while pair.grants:
        pair.bring_grant()
    assert not publisher.blocked and publisher.changes == [True, False]


def test_a_grant_comes_when_enough_is_processed() -> None:
    publisher, queue = Someone(), Someone()
    pair = Pair(publisher, queue)
    pair.send(10)
    pair.send(15)
    pair.process()
    assert pair.grants == [] and pair.receiver.owed == Credit(1, 10)
    pair.process()
    assert pair.grants == [Credit(2, 25)] and pair.receiver.owed == Credit(0, 0)
    pair.send(50)
    pair.process()
    assert pair.grants == [Credit(2, 25), Credit(1, 50)]


def test_a_blocked_party_withholds_its_grants() -> None:
    publisher, queue, store = Someone(), Someone(), Someone()
    upstream, downstream = Pair(publisher, queue), Pair(queue, store)
    for _ in range(4):
        upstream.send()
        downstream.send()
    assert queue.blocked
    for _ in range(4):
        upstream.process()
    assert upstream.grants == [] and publisher.blocked
    for _ in range(2):
        downstream.process()
    downstream.bring_grant()
    assert not queue.blocked
    assert upstream.grants == [Credit(4, 4)], "paid at once when unblocked"


def test_one_blocked_target_is_enough_and_all_must_be_free() -> None:
    channel, fast, slow = Someone(), Someone(), Someone()
    to_fast, to_slow = Pair(channel, fast), Pair(channel, slow)
    for pair in (to_fast, to_slow):
        for _ in range(4):
            pair.send()
    for pair in (to_fast, to_slow):
        assert channel.blocked
        pair.process()
        pair.process()
        pair.bring_grant()
    assert not channel.blocked
    assert channel.changes == [True, False], "told once, however many block"


def test_an_end_that_is_gone_blocks_nobody_and_gets_nothing() -> None:
    publisher, queue, store = Someone(), Someone(), Someone()
    upstream, downstream = Pair(publisher, queue), Pair(queue, store)
    for _ in range(4):
        upstream.send()
        downstream.send()
    for _ in range(4):
        upstream.process()
    upstream.receiver.close()
    downstream.sender.close()
    assert not queue.blocked
    assert upstream.grants == []


def test_a_grant_of_what_was_never_spent_is_refused() -> None:
    sender = Sender(Someone(), SPEC)
    sender.spend(5)
    with pytest.raises(CreditMismatch):
        sender.grant(Credit(2, 5))
    with pytest.raises(CreditMismatch):
        sender.grant(Credit(1, 6))
    assert sender.credit == Credit(3, 95)


def test_flow_is_shown_for_a_while_after_it_ended() -> None:
    publisher, queue = Someone(), Someone()
    pair = Pair(publisher, queue)
    assert not publisher.in_flow(5.0)
    for _ in range(4):
        pair.send()
    assert publisher.in_flow(5.0)
    publisher.time = 10.0
    for _ in range(2):
        pair.process()
    pair.bring_grant()
    publisher.time = 15.0
    assert publisher.in_flow(5.0)
    publisher.time = 15.1
    assert not publisher.in_flow(5.0)


def test_a_grant_that_brings_the_next_block_stops_the_others() -> None:
    """Two publishers wait for one queue; paying the first fills the queue's own target again."""
    second, queue, store = Someone(), Someone(), Someone()
    downstream = Pair(queue, store)

    def send_on(grant: Credit) -> None:
        for _ in range(4):
            downstream.send()

    eager = Receiver(queue, send_on, SPEC)
    patient = Pair(second, queue)
    for _ in range(4):
        downstream.send()
    eager.processed(1, messages=2)
    for _ in range(2):
        patient.send()
        patient.process()
    for _ in range(4):
        downstream.process()
    downstream.bring_grant()
    assert queue.blocked and patient.grants == []


class Chain(RuleBasedStateMachine):
    """Publisher, queue and store in a row, each doing something or nothing at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.parties = [Someone(), Someone(), Someone()]
        self.pairs = [
            Pair(self.parties[0], self.parties[1]),
            Pair(self.parties[1], self.parties[2]),
        ]

    @precondition(lambda self: not self.parties[0].blocked)
    @rule(octets=st.integers(0, 150))
    def publish(self, octets: int) -> None:
        self.pairs[0].send(octets)

    @precondition(lambda self: self.pairs[0].on_the_way)
    @rule()
    def queue_passes_on(self) -> None:
        octets = self.pairs[0].on_the_way[0]
        self.pairs[1].send(octets)
        self.pairs[0].process()

    @precondition(lambda self: self.pairs[1].on_the_way)
    @rule()
    def store_writes(self) -> None:
        self.pairs[1].process()

    @precondition(lambda self: any(pair.grants for pair in self.pairs))
    @rule(which=st.integers(0, 1))
    def a_grant_arrives(self, which: int) -> None:
        if self.pairs[which].grants:
            self.pairs[which].bring_grant()

    @rule()
    def everything_settles(self) -> None:
        """Whoever can do something does it until nobody can."""
        pairs = self.pairs
        while any(pair.on_the_way or pair.grants for pair in pairs):
            if pairs[0].on_the_way:
                self.queue_passes_on()
            if pairs[1].on_the_way:
                self.store_writes()
            for pair in pairs:
                if pair.grants:
                    pair.bring_grant()
        assert not any(party.blocked for party in self.parties)

    @invariant()
    def credit_is_conserved(self) -> None:
        for pair in self.pairs:
            assert pair.total() == pair.spec.initial

    @invariant()
    def whoever_has_no_credit_is_blocked_and_nobody_else(self) -> None:
        for party, pair in zip(self.parties, self.pairs, strict=False):
            messages, octets = pair.sender.credit
            assert party.blocked is (messages <= 0 or octets <= 0)

    @invariant()
    def the_blocked_withhold_and_the_others_do_not(self) -> None:
        for pair, receiving in zip(self.pairs, self.parties[1:], strict=True):
            owed = pair.receiver.owed
            due = owed.messages >= 2 or owed.octets >= 50
            assert not due or receiving.blocked


TestChain = Chain.TestCase
TestChain.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)

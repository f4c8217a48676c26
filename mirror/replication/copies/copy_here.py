"""A mirror of this node: its member of the group, and taking the lead when the leader is gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

import msgspec

from warren.core.definitions.records import QueueRecord
from warren.core.log_line import log_event
from warren.core.ports import Clock, Key
from warren.core.scheduling.waiting import Event
from warren.mirror.carriers.ports import CarrierKind, CarrierMember, MemberId, Members, StopReason
from warren.mirror.messages.post import Undeliverable
from warren.mirror.replication.copies.mirror import Mirror
from warren.mirror.replication.copies.retained_copies import RetainedCopies
from warren.mirror.replication.definition.confirm_rule import ALL
from warren.mirror.replication.definition.former_nodes import former_without, has_only_former_copies
from warren.mirror.replication.definition.promotion import handed_over, leader_down
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.definition.replicas import WHEN_SYNCED, Copies, candidates
from warren.mirror.replication.elections.election import (
    ELECTION_PAUSE_S,
    Answer,
    CandidateCopy,
    Electorate,
    Vote,
    decide,
)
from warren.mirror.replication.elections.election_calls import ElectionCalls
from warren.mirror.replication.elections.leaderless import waits_for
from warren.mirror.replication.elections.whole_copies import WholeCopies
from warren.mirror.replication.levels.mirror_level import BeginAnew, CopyLost

log = logging.getLogger("warren.queue")

NEXT_CANDIDATE_S = 1.0
"""The time for which a mirror waits for each better candidate before it takes the lead."""

LEADER_MAY_COME_S = 10.0
"""The time for which a copy that was found on disk waits for a leader that is not up: the whole
cluster may be starting."""


class CopyEffects(Protocol):
    """The calls of a copy to `CopiesHere`, which has the links and the policies."""

    @property
    def elections(self) -> ElectionCalls:
        """The calls by which copies hold elections."""
        ...

    @property
    def retained(self) -> RetainedCopies:
        """Acknowledged messages that this node retains, of queues that it mirrors."""
        ...

    def promote_when(self, key: Key) -> str:
        """`always` or `when-synced`: which mirrors may lead when the leader has failed."""
        ...

    def drop_copy(self, copy: CopyHere, reason: str, *, keep: bool = False) -> None:
        """Drop this copy; with `keep`, as a former copy for the next one of this node."""
        ...

    def present(self) -> Collection[str]:
        """The nodes that are up for the cluster, whether they can be reached from here or not."""
        ...

    def group_members(self, queue_id: int) -> Collection[str] | None:
        """The nodes in the group of the queue, as far as this node knows; None without a group."""
        ...

    def ask_for_copy(self, node: str, copy: CopyHere, answer: Callable[[bool], None]) -> None:
        """Ask another node whether it has a copy of the queue; if it is away, no answer comes."""
        ...


class CopyHere:
    """The mirror of one queue. It is the `UpperLayer` of its group member."""

    def __init__(
        self,
        key: Key,
        queue_id: int,
        storage_id: int,
        node: str,
        mirror: Mirror,
        clock: Clock,
        definitions: QueueDefinitions,
        effects: CopyEffects,
        carrier: CarrierKind = CarrierKind.GM,
    ) -> None:
        self.key = key
        self.carrier = carrier
        self.queue_id = queue_id
        self.storage_id = storage_id
        self.mirror = mirror
        mirror.retains = effects.retained.of_copy(queue_id)
        self.member: CarrierMember
        # Whether the definition of the queue has named this mirror.
        self.listed = False
        # Whether it waited for nothing at the last look.
        self.at_rest = False
        # The time at which the leader last asked for this mirror.
        self.wanted_at = clock.now()
        self.promoting = False
        # The epoch of the leader that this copy is about to replace, if no better candidate does.
        self._turn: int | None = None
        self._node = node
        self._clock = clock
        self._definitions = definitions
        self._effects = effects
        self._dead: set[str] = set()
        # Whether the group goes on without this node, though its copy is whole.
        self.is_outside = mirror.from_disk is not None
        self._found_at = clock.now()
        self._others = WholeCopies(effects.present)
        # The leader that was lost, and its epoch, when it was last logged that no mirror leads.
        self._told_lost: tuple[int, str] | None = None
        # Whether the copies that elected this one knew enough together.
        self.electorate = Electorate.ENOUGH
        # The election that this node has called, by epoch and ballot.
        self._election: tuple[int, int] | None = None

    def comes_over(self, carrier: CarrierKind, member: CarrierMember) -> None:
        """Get batches by another carrier from now on."""
        self.carrier = carrier
        self.member = member
        self.at_rest = False
        self._dead.clear()
        self._election = None

    @property
    def is_awaited(self) -> bool:
        """Whether the definition names this mirror, or a later one on its way here may name it."""
        record = self._definitions.record_of(self.key, self.queue_id)
        is_ahead = record is not None and not self.has_begun_by(record)
        return self.listed or (self.mirror.started and is_ahead)

    @property
    def follows(self) -> bool:
        """Whether it has carried out what it has heard of its leader, which seems to be there."""
        record = self._definitions.record_of(self.key, self.queue_id)
        return (
            record is not None
            and record.epoch == self.mirror.epoch
            and self.mirror.started
            and not self.mirror.awaits_slice
            and not self.promoting
            and not self.may_have_to_lead
        )

    def is_about_to_lead(self) -> None:
        """Make messages ready again that the former leader had handed out; they count as
        delivered."""
        for level in self.mirror.levels:
            level.put_all_back()
            level.count_handed_out()
            if self.electorate is not Electorate.ENOUGH:
                # This copy may not have heard of every announcement.
                level.backing.count_as_delivered(level.backing.next_position)

    def has_begun_by(self, record: QueueRecord) -> bool:
        """Whether this copy was told to start before this definition was written."""
        return (record.epoch, record.ballot) >= self.mirror.began_in

    # `UpperLayer`

    @property
    def has_begun(self) -> bool:
        return self.mirror.started

    def joined(self, members: Members) -> None:
        """Nothing to do: the leader hears of the birth, and tells this mirror to start."""

    def members_changed(self, births: Members, deaths: Members) -> None:
        self.at_rest = False
        self._dead -= {birth.node for birth in births}
        self._dead |= {death.node for death in deaths}
        self.leader_may_be_gone()

    def deliver(self, sender: MemberId, payload: bytes) -> None:
        if sender.node != self._node and not self.is_outside:
            self._try(lambda: self.mirror.deliver(payload))

    def confirmed(self, tokens: tuple[object, ...]) -> None:
        """Nothing to do: mirrors broadcast nothing."""

    def congestion(self, congested: bool) -> None:
        """Nothing to do: mirrors broadcast nothing."""

    def disputed(self) -> None:
        """Nothing to do: only the leader hears of such votes."""

    def stopped(self, reason: StopReason) -> None:
        if reason is not StopReason.LEFT:
            self._stay_outside(reason.value)

    def _stay_outside(self, reason: str) -> None:
        """Leave the group. The copy is kept while the definition says that it is in sync: the group
        goes on without this node, but may have no other whole copy."""
        record = self._definitions.record_of(self.key, self.queue_id)
        if record is not None and self._node in record.in_sync and self.mirror.started:
            self.is_outside = True
            self.at_rest = False
            self.member.leave()
        else:
            self._effects.drop_copy(self, reason, keep=True)

    def slice_came(self, epoch: int, number: int, payload: bytes) -> None:
        if not self.is_outside:
            self._try(lambda: self.mirror.slice_came(epoch, number, payload))

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BeginAnew as error:
            if self.mirror.grows_from is not None:
                self.mirror.grows_from.is_outgrown = True
            self._stay_outside(str(error))
        except (CopyLost, Undeliverable) as error:
            self._effects.drop_copy(self, str(error))

    # When the leader is gone

    def leader_was_away(self, leader: str) -> None:
        """Check whether to lead: the leader was restarted, and may lack messages of this copy.

        A leader in the ring counts as dead only when the group says so: until then other mirrors
        may have got more of its former life than this one.
        """
        self.at_rest = False
        in_ring = leader in {member.node for member in self.member.others()}
        if self.is_outside or self.carrier is CarrierKind.LOG or not in_ring:
            self._dead.add(leader)
        self.leader_may_be_gone()

    @property
    def may_have_to_lead(self) -> bool:
        """Whether a member of the group has died, or this node is outside and hears of no death."""
        return bool(self._dead) or self.is_outside

    def leader_may_be_gone(self) -> None:
        """Take the lead, or wait a moment for a better candidate, if the leader has died."""
        record = self._definitions.record_of(self.key, self.queue_id)
        if record is None or self.promoting or not self._leader_is_dead(record):
            return
        if self.carrier is CarrierKind.LOG and self._node in record.in_sync:
            self._call_election(record)
            return
        if has_only_former_copies(record):
            # `ForgottenLeaders` decides, if a former copy is left that has more than this one.
            return
        order = self._candidates(record)
        if self._node not in order or not self.mirror.started:
            self._tell_not_promoted(record, order)
            return
        place = order.index(self._node)
        if not place:
            self.take_lead(record.epoch)
            return
        if self._turn != record.epoch:
            self._turn = record.epoch
            turn = partial(self._take_turn, record.epoch)
            put_off = partial(self._definitions.when_written, turn)
            self._clock.call_later(NEXT_CANDIDATE_S * place, put_off)

    def _take_turn(self, epoch: int) -> None:
        """Take the lead if the leader is still dead: better candidates have had their turns."""
        record = self._definitions.record_of(self.key, self.queue_id)
        self._turn = None
        if record is not None and self._leader_is_dead(record):
            self.take_lead(epoch)

    def _leader_is_dead(self, record: QueueRecord) -> bool:
        if record.leader_is_forgotten:
            return True
        if record.leader in self._dead:
            return True
        if self.mirror.from_disk is not None:
            may_come = self._clock.now() < self._found_at + LEADER_MAY_COME_S
            return not may_come and record.leader not in self._effects.present()
        if self.carrier is CarrierKind.LOG and not self.is_outside:
            return False
        # This node hears of no deaths outside the group, nor of a leader's before it had joined.
        members = self._effects.group_members(self.queue_id)
        in_group = members is None or record.leader in members
        is_up = record.leader in self._effects.present()
        if self.is_outside:
            return not in_group or not is_up
        return not in_group and not is_up

    def _candidates(self, record: QueueRecord) -> tuple[str, ...]:
        promote = WHEN_SYNCED if record.down else self._effects.promote_when(self.key)
        copies = Copies(record.leader, record.mirrors, record.in_sync)
        return candidates(copies, self._alive() | {self._node}, promote)

    def _alive(self) -> set[str]:
        if self.mirror.from_disk is not None:
            return set(self._effects.present())
        if self.is_outside:
            return set(self._effects.group_members(self.queue_id) or ())
        return {member.node for member in self.member.others()}

    # Elections

    def _call_election(self, record: QueueRecord) -> None:
        election = (record.epoch, record.ballot)
        if self._election != election and self.may_vote(record):
            self._election = election
            self._clock.call_later(ELECTION_PAUSE_S, lambda: self._ask_for_votes(election))

    def _ask_for_votes(self, election: tuple[int, int]) -> None:
        record = self._definitions.record_of(self.key, self.queue_id)
        own = self.vote(*election)
        if record is None or isinstance(own, Vote) or not self._leader_is_dead(record):
            self._election = None
            return
        others = [node for node in record.in_sync if node != self._node]
        self._effects.elections.ask_for_votes(
            self.queue_id,
            others,
            election,
            lambda votes: self._count({**votes, self._node: own}, election),
        )

    def vote(self, epoch: int, ballot: int) -> Answer:
        """Vote, and take no more batches of the leader, if it is gone and this copy counts."""
        record = self._definitions.record_of(self.key, self.queue_id)
        if record is None or (record.epoch, record.ballot) != (epoch, ballot):
            return Vote.NONE
        if not self.may_vote(record):
            return Vote.NONE
        from_disk = self.mirror.from_disk is not None
        if from_disk and not self._leader_is_dead(record):
            return Vote.NONE
        end = self.mirror.carried_out if self.is_outside else self.member.vote()
        return (
            Vote.LEADER_LIVES if end is None else CandidateCopy(end, self.mirror.ends(), from_disk)
        )

    def may_vote(self, record: QueueRecord) -> bool:
        """Whether this copy counts in elections. A copy outside the group does: it says how far it
        followed former leaders, and so is a witness of what was confirmed by then."""
        return self._node in record.in_sync and self.mirror.started

    def _count(self, answers: Mapping[str, Answer], election: tuple[int, int]) -> None:
        record = self._definitions.record_of(self.key, self.queue_id)
        self._election = None
        if record is None or (record.epoch, record.ballot) != election:
            return
        result = decide(record, answers, given_up=self._given_up(record))
        if result.winner is None:
            self._tell_not_promoted(record, (result.why_not,))
        elif result.winner == self._node:
            self.win(*election, result.electorate)
        else:
            self._effects.elections.tell_winner(
                result.winner, self.queue_id, election, result.electorate
            )

    def _given_up(self, record: QueueRecord) -> int:
        """Return how many whole copies are down or missing, and not waited for: the policy allows
        losing what only they have."""
        if record.down or self._effects.promote_when(self.key) == WHEN_SYNCED:
            return 0
        present = self._effects.present()
        absent = [node not in present for node in (record.leader, *record.in_sync)]
        return sum(absent) + record.missing

    def win(self, epoch: int, ballot: int, electorate: Electorate) -> None:
        """Lead: enough copies have voted or are given up, and none of the voters has more.

        Not before all is on disk: when the nodes are started again after a crash, a leader is taken
        to have all that is on the disks of others.
        """
        if isinstance(self.vote(epoch, ballot), Vote):
            return
        if not self.mirror.safe:
            self.mirror.when_safe(lambda: self.win(epoch, ballot, electorate))
            return
        self.electorate = electorate
        self.take_lead(epoch, ballot)

    def _tell_not_promoted(self, record: QueueRecord, order: tuple[str, ...]) -> None:
        lost = (record.epoch, record.leader)
        if lost != self._told_lost:
            self._told_lost = lost
            log_event(
                log,
                logging.WARNING,
                "mirror_not_promoted",
                queue=self.key[2],
                vhost=self.key[1],
                candidates=" ".join(order) or "none",
                waits_for=waits_for(record, self._effects.promote_when(self.key)),
            )

    def take_lead(self, epoch: int, ballot: int | None = None) -> None:
        """Lead, unless another node does in a later epoch, or this copy is not whole and another
        one may be.

        Where there are elections this copy counts as whole only if it was elected in this ballot.
        """
        self.promoting = True
        is_elected = self.carrier is CarrierKind.LOG

        def lead(record: QueueRecord) -> QueueRecord | None:
            whole = self._node in record.in_sync and (not is_elected or record.ballot == ballot)
            if (
                record.epoch != epoch
                or self._node not in record.mirrors
                or not (whole or self._may_lead_without_all(record))
            ):
                self.promoting = False
                return None
            alive = () if self.is_outside else self._alive()
            mirrors = [m for m in record.mirrors if m in alive and m != self._node]
            in_sync = [m for m in record.in_sync if m in mirrors] if whole else []
            missing = 0
            if is_elected and whole and record.acks != ALL:
                # Some live mirrors may lack confirmed publishes: until they have them, the next
                # election counts as many copies as this one.
                missing = record.whole_copies - 1 - len(in_sync)
            return msgspec.structs.replace(
                record,
                leader=self._node,
                epoch=epoch + 1,
                mirrors=mirrors,
                in_sync=in_sync,
                former=former_without(record, self._node, in_sync),
                missing=missing,
                promoted=leader_down(
                    record.leader,
                    in_sync=whole,
                    has_votes=self.electorate is not Electorate.LACKING,
                ),
                promoted_at=self._clock.wall_time(),
                down=False,
                stores={**record.stores, self._node: self.storage_id},
            )

        self._definitions.write_record(self.key, self.queue_id, lead)

    def lead_with_all_that_is_left(self, known: QueueRecord) -> None:
        """Lead a queue that has nothing but former copies, if its definition is still the `known`
        one. Nothing is known of what clients may have had."""
        self.electorate = Electorate.LACKING
        self.promoting = True

        def lead(record: QueueRecord) -> QueueRecord | None:
            if record != known or not has_only_former_copies(record):
                self.promoting = False
                return None
            return msgspec.structs.replace(
                record,
                leader=self._node,
                epoch=record.epoch + 1,
                mirrors=[],
                former=former_without(record, self._node, ()),
                missing=0,
                promoted=leader_down(record.leader, in_sync=False),
                promoted_at=self._clock.wall_time(),
                down=False,
                stores={**record.stores, self._node: self.storage_id},
            )

        self._definitions.write_record(self.key, self.queue_id, lead)

    async def take_over(self, leader: str, epoch: int, ballot: int) -> bool:
        """Take the lead from a leader that hands it over in this ballot, if this copy is in sync.
        Returns whether the definition says so."""
        decided = Event()
        leads = False

        def lead(record: QueueRecord) -> QueueRecord | None:
            if record.ballot > ballot or not self._may_take_over(record, leader, epoch):
                return None
            in_sync = [mirror for mirror in record.in_sync if mirror != self._node]
            return msgspec.structs.replace(
                record,
                leader=self._node,
                epoch=epoch + 1,
                mirrors=[mirror for mirror in record.mirrors if mirror != self._node],
                in_sync=in_sync,
                former=former_without(record, self._node, in_sync),
                promoted=handed_over(leader),
                promoted_at=self._clock.wall_time(),
                stores={**record.stores, self._node: self.storage_id},
            )

        def written() -> None:
            nonlocal leads
            leads = True
            decided.happen()

        self._definitions.write_record(self.key, self.queue_id, lead, written, decided.happen)
        await decided
        return leads

    def _may_take_over(self, record: QueueRecord, leader: str, epoch: int) -> bool:
        return (record.leader, record.epoch) == (leader, epoch) and self._node in record.in_sync

    def _may_lead_without_all(self, record: QueueRecord) -> bool:
        """Whether the policy lets this copy lead though it may lack messages, and no live node can
        have a whole copy.

        It may not while the leader is up for the cluster: that leads on, or will in a moment.
        """
        if self._node not in self._candidates(record):
            return False
        if record.leader in self._effects.present():
            return False
        awaited = self._others.may_have(record.in_sync, record.epoch)
        self._others.ask(self._ask_for_copy, awaited, record.epoch, self.leader_may_be_gone)
        return not awaited

    def _ask_for_copy(self, node: str, answer: Callable[[bool], None]) -> None:
        self._effects.ask_for_copy(node, self, answer)

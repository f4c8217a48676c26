"""The copies that this node has of queues that other nodes lead.

A copy is made when a leader asks for one (`mirror.invite`), or found on disk when the node starts.
It follows the definition of its queue, and is dropped when that does not name it. If it takes the
lead it is taken out (`take`), and `leadership` makes it a led queue.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, cast

from warren.core.backing.backing_queue import LEVELS, BackingQueue, BackingSpec, MirroredLevel
from warren.core.backing.due_queue import due_queue
from warren.core.backing.stream_log import stream_log
from warren.core.definitions.definition_table import CompletedCommit
from warren.core.definitions.records import QueueRecord
from warren.core.errors import NotFound
from warren.core.field import from_plain
from warren.core.log_line import log_event
from warren.core.node import Node
from warren.core.ports import Clock, Commit, Key
from warren.core.queues import queue_arguments
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_type import QUORUM, STREAM
from warren.core.queues.quorum_level import LastingEnvelopes, quorum_level
from warren.core.scheduling.waiting import run
from warren.core.vhosts.following import QUEUE_ID_BITS
from warren.mirror.carriers.ports import Carrier, CarrierKind
from warren.mirror.messages.calls import Calls
from warren.mirror.messages.origin import SOME_ORIGINS
from warren.mirror.messages.post import Post, PostKind
from warren.mirror.replication.copies.copy_cards import COPY_BIT
from warren.mirror.replication.copies.copy_here import CopyHere
from warren.mirror.replication.copies.copy_questions import CopyQuestions
from warren.mirror.replication.copies.former_copies import FormerCopies
from warren.mirror.replication.copies.former_copy import NEVER, FormerCopy
from warren.mirror.replication.copies.mirror import Mirror
from warren.mirror.replication.copies.observed_copy import observer_of
from warren.mirror.replication.copies.retained_sync import RetainedSync
from warren.mirror.replication.definition.nodes import Nodes
from warren.mirror.replication.definition.queue_definitions import QueueDefinitions
from warren.mirror.replication.definition.queue_members import INVITE_AGAIN_S, invitation_to
from warren.mirror.replication.definition.replicas import WantedMirrors
from warren.mirror.replication.elections.election_calls import ElectionCalls
from warren.mirror.replication.levels.renumbering import Renumbering
from warren.mirror.replication.levels.slices import unpack_slice

log = logging.getLogger("warren.queue")

UNWANTED_S = 3 * INVITE_AGAIN_S
"""A copy that the definition does not name and no leader asks for in this time is dropped."""

MIRRORED = struct.Struct("<QQQ")
"""Queue, epoch and batch up to which a mirror has everything."""


class CopiesHere:
    """Implements `CopyEffects`."""

    def __init__(
        self,
        nodes: Nodes,
        post: Post,
        calls: Calls,
        clock: Clock,
        rng: Random,
        definitions: QueueDefinitions,
        carriers: Mapping[CarrierKind, Carrier],
        formers: FormerCopies,
    ) -> None:
        self.by_queue: dict[int, CopyHere] = {}
        self.retained = formers.retained
        self.elections = ElectionCalls(calls, clock, self.by_queue)
        self._by_storage: dict[int, CopyHere] = {}
        self._by_key: dict[Key, int] = {}
        # Queues whose definitions have changed since the last tick.
        self._changed: set[int] = set()
        self._nodes = nodes
        self._post = post
        self._calls = calls
        self._clock = clock
        self._rng = rng
        self._definitions = definitions
        self._carriers = carriers
        self._formers = formers
        self.storages_of = formers.storages_of
        self._node: Node
        self._new_backing: Callable[[BackingSpec], BackingQueue]
        self._retained_sync: RetainedSync
        self._wanted_of: Callable[[Key], WantedMirrors]
        self._come_over: Callable[[CopyHere, QueueRecord], None]
        self._search: Callable[[Key, QueueRecord, FormerCopy], None]

    def attach(
        self,
        node: Node,
        new_backing: Callable[[BackingSpec], BackingQueue],
        retained_sync: RetainedSync,
        wanted_of: Callable[[Key], WantedMirrors],
        come_over: Callable[[CopyHere, QueueRecord], None],
        search: Callable[[Key, QueueRecord, FormerCopy], None],
    ) -> None:
        """Begin to have copies. `wanted_of` returns what the policy of a queue wants; `come_over`
        follows a definition that names another carrier; `search` puts messages that only a former
        copy has into `lost+found`."""
        self._node = node
        self._new_backing = new_backing
        self._retained_sync = retained_sync
        self._wanted_of = wanted_of
        self._come_over = come_over
        self._search = search
        self._post.handle(PostKind.SLICE, self._slice)
        for name in ("mirror.invite", "mirror.invite_to_stream"):
            self._calls.serve(name, partial(self._invited, name))
        of_copies = (self.by_queue, self._note_whole_by, self._definitions)
        CopyQuestions(self._nodes.name, *of_copies).serve(self._calls)

    def __iter__(self) -> Iterator[CopyHere]:
        return iter(list(self.by_queue.values()))

    def is_here(self, copy: CopyHere) -> bool:
        """Whether this copy has neither been dropped nor taken out."""
        return self.by_queue.get(copy.queue_id) is copy

    def backing(self, spec: BackingSpec) -> BackingQueue | None:
        """The backing queue of a copy that takes the lead; None without a copy."""
        level = spec.queue_id % LEVELS
        copy = self._by_storage.get(spec.queue_id - level)
        if copy is None:
            return None
        if not level:
            if copy.mirror.from_disk is not None:
                copy.mirror.set_mode(spec.mode)
            copy.is_about_to_lead()
        return copy.mirror.levels[level].backing

    def take(self, queue_id: int) -> CopyHere | None:
        """Take out the copy of a queue that this node leads now; None if it has no usable copy."""
        copy = self.by_queue.get(queue_id)
        if copy is None:
            return None
        if not copy.mirror.started:
            self.drop_copy(copy, "its leader is gone, and had not told it to begin")
            return None
        self._forget(copy)
        return copy

    def _forget(self, copy: CopyHere) -> None:
        del self.by_queue[copy.queue_id]
        del self._by_storage[copy.storage_id]
        if self._by_key.get(copy.key) == copy.queue_id:
            del self._by_key[copy.key]

    # The node stops

    def leave(self) -> None:
        """Leave all groups: the node stops in order, and finds its copies at the next start."""
        for copy in self:
            for level in copy.mirror.levels:
                level.is_about_to_stop()
            copy.member.leave()

    def stop(self) -> None:
        """Tell the storage which messages of copies count as delivered: the node has stopped."""
        for copy in self:
            for level in copy.mirror.levels:
                level.backing.stop()
            if copy.mirror.former is not None:
                copy.mirror.former.stop()

    # Ticks, policies, links

    def due(self, is_in_share: Callable[[int], bool]) -> list[CopyHere]:
        """The copies to look at in this tick: those that wait for something, those with another
        definition, and a share of the rest."""
        changed, self._changed = self._changed, set()
        return [
            copy
            for copy in self
            if not copy.at_rest or copy.queue_id in changed or is_in_share(copy.queue_id)
        ]

    def look_at(self, copy: CopyHere) -> None:
        if not self.is_here(copy):
            return
        copy.at_rest = False
        copy.leader_may_be_gone()
        if not copy.is_awaited and self._clock.now() > copy.wanted_at + UNWANTED_S:
            self.drop_copy(copy, "no leader asks for it any more")
        else:
            self.write_card(copy)

    def follow_policy(self, copy: CopyHere) -> None:
        record = self._definitions.record_of(copy.key, copy.queue_id)
        if record is not None and self.is_here(copy):
            settings = settings_of(self._node, copy.key, record)
            copy.mirror.set_mode(settings.queue_mode)
            self.retained.follow(copy.key, record, settings.retention)
            copy.mirror.is_flushed = self._wanted_of(copy.key).is_flushed

    def report_again(self, copy: CopyHere, node: str) -> None:
        """Repeat this copy's report, which may be lost: the link to a node is up again."""
        record = self._definitions.record_of(copy.key, copy.queue_id)
        if self.is_here(copy) and record is not None and record.leader == node:
            copy.mirror.report_again()

    def write_card(self, copy: CopyHere) -> None:
        """If the definition calls a copy in sync, see to it that it has its card."""
        mirror = copy.mirror
        record = self._definitions.record_of(copy.key, copy.queue_id)
        if record is None or self._nodes.name not in record.in_sync or record.epoch != mirror.epoch:
            return
        if not (mirror.started and copy.has_begun_by(record)):
            # The definition calls an earlier copy of this node in sync, and not yet this one.
            return
        if mirror.from_disk is None:
            self._retained_sync.is_in_sync(record, copy.storage_id)
        copy.at_rest = copy.listed and not copy.may_have_to_lead
        self._note_whole(copy, record)

    def _note_whole(self, copy: CopyHere, record: QueueRecord) -> Commit:
        """Forget the former copy, and write the card of this one if the queue is durable."""
        self.forget_former(copy.mirror)
        copy.mirror.grows_from = None
        if not record.durable:
            return CompletedCommit()
        copy.mirror.has_card = True
        return self._write_card_of(copy.storage_id, copy.queue_id, copy.mirror)

    def _note_whole_by(
        self, copy: CopyHere, record: QueueRecord, known: Renumbering | None
    ) -> Commit:
        """The leader says that a copy is whole, and what it knows of other epochs. If it has lost
        more messages since the copy began, the former copy may have these."""
        mirror, former = copy.mirror, copy.mirror.former
        if known is not None and known.plain() != mirror.renumbering.plain():
            mirror.renumbering = known
            if former is not None:
                former.searched_in = NEVER
                self._search(copy.key, record, former)
        return self._note_whole(copy, record)

    def _write_card_of(self, storage_id: int, queue_id: int, mirror: Mirror) -> Commit:
        at = (storage_id, queue_id, mirror.epoch)
        return self._formers.write_card(*at, mirror.deltas(), mirror.renumbering, led=False)

    # Copies that come

    async def _invited(
        self,
        asked: str,
        node: str,
        queue_id: int,
        vhost: str,
        name: str,
        founds: bool,
        carrier: str,
        *election: int,
    ) -> tuple[int, int, Sequence[Any] | None]:
        """The leader of a queue asks this node to have a mirror; if it `founds` the group, in that.

        `asked` is the name of the question, `election` are epoch and ballot of the leader.

        Answers the incarnation of the mirror's member, the id under which the storage here knows
        the copy, and what is here in a former copy (`Kept`).

        Raises `NotFound` to be asked again.
        """
        key: Key = ("queue", vhost, name)
        record = await self._definitions.record_as_seen_by(node, key, queue_id)
        if record is None or (record.epoch, record.ballot) < election:
            # The definition is still on its way here, and may say that the copy here is to be
            # dropped.
            raise NotFound(f"queue '{name}' in vhost '{vhost}' is not known here yet")
        if asked != invitation_to(record):
            raise NotFound(f"an earlier version leads stream '{name}' in vhost '{vhost}'")
        there = self.by_queue.get(queue_id)
        if (
            there is not None
            and there.carrier != carrier
            and self._nodes.name not in record.in_sync
        ):
            self.drop_copy(there, "its batches come by another carrier", keep=True)
        if there is not None and there.mirror.from_disk is not None:
            self.drop_copy(there, "its leader is there", keep=True)
        if queue_id not in self.by_queue:
            self._have_copy(key, record, CarrierKind(carrier), founds)
        copy = self.by_queue[queue_id]
        if copy.is_outside:
            raise NotFound(f"queue '{name}' in vhost '{vhost}' still has its former copy here")
        copy.wanted_at = self._clock.now()
        former = copy.mirror.grows_from or copy.mirror.former
        kept = None if former is None else former.kept().plain()
        return copy.member.me.incarnation, copy.storage_id, kept

    def _have_copy(
        self, key: Key, record: QueueRecord, carrier: CarrierKind, awaits_group: bool
    ) -> None:
        queue_id = record.queue_id
        settings = settings_of(self._node, key, record)
        former = self._formers.take(queue_id)
        if former is not None and former.can_grow:
            storage_id, levels = former.storage_id, former.levels
        else:
            # Never an id that was used before: something of an earlier copy may be left.
            storage_id = COPY_BIT | self._rng.getrandbits(QUEUE_ID_BITS) * LEVELS
            levels = self._new_levels(record, settings, storage_id)

        def report(mirror: Mirror, batch: int) -> None:
            copy = self.by_queue.get(queue_id)
            # The store may have written only now what an earlier copy gave it.
            if copy is not None and copy.mirror is mirror:
                self._report(copy, batch)

        mirror = Mirror(self._nodes.name, record.epoch, levels, self._clock, report)
        if former is not None and former.can_grow:
            mirror.grows_from = former
        else:
            mirror.former = former
        mirror.observed = partial(observer_of, self._node, key)
        mirror.write_card = partial(self._write_card_of, storage_id, queue_id)
        copy = self._new_copy(key, queue_id, storage_id, mirror, carrier)
        self.retained.follow(key, record, settings.retention)
        mirror.is_flushed = self._wanted_of(key).is_flushed
        copy.member = self._carriers[carrier].join(record, copy)
        copy.member.start(awaits_group=awaits_group)

    def _new_levels(
        self, record: QueueRecord, settings: QueueSettings, storage_id: int
    ) -> Sequence[MirroredLevel]:
        spec = BackingSpec(storage_id, record.durable, settings.queue_mode)
        backings = [
            cast(MirroredLevel, self._new_backing(spec.of_level(level, settings.remembers_ids)))
            for level in range(settings.levels)
        ]
        return _levels(settings, backings, self._node)

    def have_copy_of_disk(self, key: Key, record: QueueRecord) -> None:
        """Make a mirror of the copy on disk, if the definition calls that in sync.

        Do nothing if the policy lets copies report messages which are not on disk.
        """
        if not self._wanted_of(key).is_flushed:
            return
        former = self._formers.take_whole(record)
        if former is not None:
            self._have_copy_of(key, record, former)

    def _have_copy_of(self, key: Key, record: QueueRecord, former: FormerCopy) -> CopyHere:
        """Make a mirror, which follows no leader, of a former copy that is whole."""
        levels = _levels(settings_of(self._node, key, record), former.levels, self._node)
        mirror = Mirror.of_disk(self._nodes.name, former, levels, self._clock)
        mirror.origins[SOME_ORIGINS] = 0
        mirror.observed = partial(observer_of, self._node, key)
        carrier = CarrierKind.of(record)
        copy = self._new_copy(key, record.queue_id, former.storage_id, mirror, carrier)
        copy.listed = True
        copy.member = self._carriers[carrier].join(record, copy)
        copy.member.leave()
        return copy

    # Former copies

    def former_of(self, queue_id: int) -> FormerCopy | None:
        """The former copy that this node has of a queue, perhaps beside a new one."""
        copy = self.by_queue.get(queue_id)
        if copy is None:
            return self._formers.of_queue(queue_id)
        return copy.mirror.grows_from or copy.mirror.former

    def lead_with_best_copy(self, key: Key, record: QueueRecord) -> None:
        """Lead a queue that has nothing but former copies with the one that this node has."""
        copy = self.by_queue.get(record.queue_id)
        if copy is not None:
            self.drop_copy(copy, "this node is to lead with its former copy", keep=True)
        former = self._formers.of_queue(record.queue_id)
        if former is not None and self._formers.was_whole(former):
            self._formers.take(record.queue_id)
            former.to_be_searched = False
            former.part_from_holders()
            self._have_copy_of(key, record, former).lead_with_all_that_is_left(record)

    def _new_copy(
        self, key: Key, queue_id: int, storage_id: int, mirror: Mirror, carrier: CarrierKind
    ) -> CopyHere:
        at = (key, queue_id, storage_id, self._nodes.name)
        copy = CopyHere(*at, mirror, self._clock, self._definitions, self, carrier)
        self.by_queue[queue_id] = copy
        self._by_storage[storage_id] = copy
        self._by_key[key] = queue_id
        return copy

    def _report(self, copy: CopyHere, batch: int) -> None:
        record = self._definitions.record_of(copy.key, copy.queue_id)
        if record is not None:
            payload = MIRRORED.pack(copy.queue_id, copy.mirror.epoch, batch)
            self._post.send(record.leader, PostKind.MIRRORED, payload)

    def _slice(self, node: str, payload: bytes) -> None:
        queue_id, epoch, number, content = unpack_slice(payload)
        copy = self.by_queue.get(queue_id)
        if copy is not None:
            copy.slice_came(epoch, number, content)

    # Copies that go

    def drop_copy(self, copy: CopyHere, reason: str, *, keep: bool = False) -> None:
        """Drop a copy. With `keep`, turn it into a former copy, for the next mirror here."""
        if not self.is_here(copy):
            return
        self._forget(copy)
        self._retained_sync.forget(copy.queue_id)
        copy.member.leave()
        record = self._definitions.record_of(copy.key, copy.queue_id)
        if keep and record is not None and copy.mirror.is_of_use:
            self._formers.keep_all(record, copy.mirror.into_formers(copy.storage_id))
        else:
            self._discard_copy(copy)
        if record is None:
            self._carriers[copy.carrier].delete_group(copy.queue_id)
            self.retained.delete(copy.queue_id)
        _, vhost, name = copy.key
        log_event(log, logging.INFO, "mirror_dropped", queue=name, vhost=vhost, reason=reason)

    def _discard_copy(self, copy: CopyHere) -> None:
        self.forget_former(copy.mirror)
        self._formers.remove_card(copy.storage_id)
        copy.mirror.discard()

    def forget_former(self, mirror: Mirror) -> None:
        """Discard the former copy of a mirror: it is of no use any more."""
        former, mirror.former = mirror.former, None
        if former is not None:
            self._formers.discard_copy(former)

    # Definitions

    def definition_changed(self, key: Key, record: object | None) -> None:
        """A definition of a queue has changed, or is gone."""
        queue_id = self._by_key.get(key)
        if queue_id is not None:
            self._changed.add(queue_id)
            self._follow(self.by_queue[queue_id], record)

    def _follow(self, copy: CopyHere, record: object | None) -> None:
        if not isinstance(record, QueueRecord) or record.queue_id != copy.queue_id:
            self.drop_copy(copy, "the queue is deleted")
        elif record.leader == self._nodes.name:
            return
        elif copy.mirror.from_disk is not None and record.epoch != copy.mirror.epoch:
            self.drop_copy(copy, "another node leads, or leads on", keep=True)
        elif self._is_unknown_to_leaders(copy, record):
            self.drop_copy(copy, "who asked for it leads no more", keep=True)
        elif self._is_to_come_over(copy, record):
            copy.promoting = False
            self._come_over(copy, record)
        elif copy.listed and self._nodes.name not in record.mirrors and copy.has_begun_by(record):
            # If the leader only could not reach this copy, it asks this node for a copy again.
            self.drop_copy(copy, "it is not wanted any more", keep=True)
        else:
            copy.listed = self._nodes.name in record.mirrors
            copy.promoting = False
            copy.member.follow(record)
            # Batches of this leader may have come before the definition did.
            copy.mirror.report_again()

    def _is_unknown_to_leaders(self, copy: CopyHere, record: QueueRecord) -> bool:
        """Whether the leader that asked for this copy was lost before the definition named it.

        The next leader does not know where it is stored, so it can neither name it nor tell it to
        start. It asks nodes that have no copy.
        """
        is_stored_so = record.storage_id(self._nodes.name) == copy.storage_id
        # If this copy grows from a former one, the definition names the former one.
        is_named = is_stored_so and copy.mirror.grows_from is None
        return not copy.mirror.started and record.epoch != copy.mirror.epoch and not is_named

    def _is_to_come_over(self, copy: CopyHere, record: QueueRecord) -> bool:
        """Whether this copy is whole, and is to get its batches by another carrier."""
        is_whole = self._nodes.name in record.in_sync and not copy.is_outside
        return copy.listed and is_whole and CarrierKind.of(record) is not copy.carrier

    # `CopyEffects`

    def promote_when(self, key: Key) -> str:
        return self._wanted_of(key).promote_on_failure

    def present(self) -> Collection[str]:
        return self._nodes.present()

    def group_members(self, queue_id: int) -> Collection[str] | None:
        copy = self.by_queue.get(queue_id)
        return None if copy is None else self._carriers[copy.carrier].nodes_of(queue_id)

    def ask_for_copy(self, node: str, copy: CopyHere, answer: Callable[[bool], None]) -> None:
        self.ask("mirror.have_copy", node, copy.queue_id, answer)

    def ask(
        self,
        question: str,
        node: str,
        queue_id: int,
        answer: Callable[[bool], None],
        *more: int,
    ) -> None:
        """Ask a node something about its copy of a queue; if it is away, no answer comes."""

        def finish(result: Callable[[], bool]) -> None:
            # A node that cannot be reached has not said anything.
            with suppress(NotFound):
                answer(result())

        async def ask() -> bool:
            has_one: bool = await self._calls.ask(node, question, queue_id, *more)
            return has_one

        run(ask(), finish)


def settings_of(node: Node, key: Key, record: QueueRecord) -> QueueSettings:
    """Return the settings that follow from the arguments and the policy of a queue."""
    _, vhost, name = key
    declared = queue_arguments.parse(name, vhost, from_plain(record.arguments))
    return node.policies.queue_settings(vhost, name, declared)


def _levels(
    settings: QueueSettings, backings: Sequence[MirroredLevel], node: Node
) -> Sequence[MirroredLevel]:
    """The backing queues of a copy, as a queue of this type needs them."""
    if settings.type is STREAM:
        clock = node.clock
        return [stream_log(backings[0], clock.call_soon, clock.wall_time)]
    if settings.type is QUORUM:
        return [quorum_level(backings[0], LastingEnvelopes())]
    if settings.delays is not None:
        return [due_queue(backings[0], node.turns.let_go)]
    return backings

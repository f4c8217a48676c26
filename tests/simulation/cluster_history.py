"""One history of a whole cluster, from a seed; checked as it goes.

Clients at several nodes publish, consume, get, purge, declare and delete, with queues under ha
policies that change, and operators move and replay messages; nodes crash and come back, links break
and lose what was on its way, nodes are cut off from their peers or from the shared definitions.
Then everything is healed, and the cluster must come to rest: nothing lost that must not be,
everybody served, nothing left over
(invariants_and_test_ideas.md sections 2, 4 and 5).

    python -P tests/simulation/cluster_history.py --seed 4711 --count 100
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

import cluster_checks as checks  # noqa: E402
from cluster import Cluster, random_delays  # noqa: E402
from cluster_client import ADMIN, CONFIRM, CONSUME, GET, PLAIN, TX, ClientChannel, Publish, Session  # noqa: E402
from cluster_damage import Damage  # noqa: E402
from cluster_delays import CLOCKS_DIFFER_S, DELAYS_MS, Delays  # noqa: E402
from cluster_disk import START_SHIFT, Disk, other_queues_on_disk  # noqa: E402
from cluster_faults import (  # noqa: E402
    FAULTS,
    LATER_FAULTS,
    LATEST_FAULTS,
    LOST_AT_START,
    REPLACEMENTS,
    UNCONFIRMED,
    Faults,
)
from cluster_jobs import COPIED, MOVED, Operator, watching_operator  # noqa: E402
from cluster_limits import DeliveryLimits, watching_limits  # noqa: E402
from cluster_replacements import Replacements  # noqa: E402
from cluster_unconfirmed import Unconfirmed, watching_unconfirmed  # noqa: E402
from pamqp import commands  # noqa: E402
from pipe import Frame  # noqa: E402
from retained_checks import RetainedLedger  # noqa: E402

from warren.amqp.consumer import ChannelConsumer  # noqa: E402
from warren.core.backing.memory_queue import MemoryQueue  # noqa: E402
from warren.core.definitions.validation import NotThere  # noqa: E402
from warren.core.errors import PreconditionFailed  # noqa: E402
from warren.core.exchanges.delay import exchange_behind  # noqa: E402
from warren.core.field import Field  # noqa: E402
from warren.core.messages.message import Envelope, Message  # noqa: E402
from warren.core.queues.classic_queue import ClassicQueue  # noqa: E402
from warren.core.queues.local_queue import LocalQueue  # noqa: E402
from warren.core.scheduling.waiting import run as run_to_end  # noqa: E402
from warren.mgmt.messages.plan import Action  # noqa: E402
from warren.mirror.messages.cargo import CarriedMessages  # noqa: E402
from warren.mirror.remote.queue_host import WAIT_FOR_QUEUE_S  # noqa: E402
from warren.mirror.remote.remote_client import RemoteClient  # noqa: E402
from warren.mirror.replication.copies import copy_here  # noqa: E402
from warren.mirror.replication.copies.lost_and_found import LATE_S, LOST_AND_FOUND  # noqa: E402
from warren.mirror.replication.definition.queue_members import members_of  # noqa: E402
from warren.mirror.replication.leading.led_queue import LedQueue  # noqa: E402
from warren.mirror.replication.levels import hand_outs  # noqa: E402
from warren.mirror.replication.levels.leader_level import LeaderLevel  # noqa: E402

FAULTY_S = (2.0, 5.0, 9.0)
"""For so long things go wrong; afterwards everything is healed."""

QUIET_S = 45.0
"""Longer than anybody waits for anything."""

WIDER_FROM = 10_000
"""Histories with lower seeds do not know of what was thought of later, and stay what they were."""

WIDEST_FROM = 50_000
"""And those from here on know of everything but carriers."""

CARRIERS_FROM = 10_000_000
"""From here on policies say how batches are brought to mirrors, and change their mind."""

QUORUM_FROM = 20_000_000
"""From here on some queues are quorum queues, whose members change; what is on disk stays there."""

HARD_FROM = 40_000_000
"""From here on many things go wrong in each history, and most policies name the log."""

REPLACED_FROM = 55_000_000
"""From here on nodes are lost with their disks and replaced; those after do not know of it."""

LOST_AT_START_FROM = 59_000_000
"""From here on some of these nodes lead, and are lost right after a start of all nodes."""

RETAINED_FROM = 60_000_000
"""From here on most queues retain what is acknowledged; every other history is a hard one."""

UNCONFIRMED_FROM = 64_000_000
"""From here on most publishes wait for no confirm, and leaders fail when they have answered."""

DELAYED_FROM = 70_000_000
"""From here on what is returned to some queues waits before it is ready again."""

MOVED_FROM = 80_000_000
"""From here on there is an operator who moves, copies, replays and deletes messages."""

SENT_LATER_FROM = 90_000_000
"""From here on some messages are delayed."""

RETURNED_FROM = 100_000_000
"""From here on some queues have a delivery limit."""

RETAINED_QUORUM_FROM = 110_000_000
"""From here on quorum queues retain what is acknowledged, too."""

DAMAGED_FROM = 120_000_000
"""From here on all nodes die when all else is over, and the disk of one is damaged."""

HARD_S = (5.0, 9.0, 14.0)
FAULT_COUNTS = (0, 1, 1, 2, 2, 3, 4)
HARD_FAULT_COUNTS = (3, 4, 5, 6, 7, 9)

RETENTION: dict[str, Any] = {"retention": {"max-bytes": 1 << 20}}

STALE_S = 1.0
"""Expired messages are gone after this time, links and timers included."""

FEW_MIRRORS: dict[str, Any] = {"ha-mode": "exactly", "ha-params": 2}
HA_MODES: tuple[dict[str, Any], ...] = (
    {"ha-mode": "all"},
    FEW_MIRRORS,
    {"ha-mode": "exactly", "ha-params": 3},
    {"ha-mode": "nodes", "ha-params": ["b", "c"]},
)


class Errors(logging.Handler):
    """Faults that were logged and passed over are faults all the same."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.faults.append(
                record.getMessage() + " " + "".join(traceback.format_exception(*record.exc_info))
            )


class History(Faults):
    """One seed, one history. `seen` counts what happened, to show that rare things do."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.seed = seed
        self.seen = seen
        self.is_wide = seed >= WIDER_FROM
        self.is_widest = seed >= WIDEST_FROM
        self.has_carriers = seed >= CARRIERS_FROM
        self.has_quorum = seed >= QUORUM_FROM
        self.has_replacements = REPLACED_FROM <= seed < RETAINED_FROM
        self.is_lost_at_start = LOST_AT_START_FROM <= seed < RETAINED_FROM
        self.is_unconfirmed = UNCONFIRMED_FROM <= seed < DELAYED_FROM
        self.has_retained = seed >= RETAINED_FROM and not self.is_unconfirmed
        self.has_delays = seed >= DELAYED_FROM
        self.has_operator = seed >= MOVED_FROM
        self.is_hard = seed >= HARD_FROM and (
            seed % 2 == 1 or seed < RETAINED_FROM or self.is_unconfirmed
        )
        self.random = random = Random(seed)
        names = "abcde" if random.random() < 0.15 else "abc"
        self.is_durable = random.random() < 0.6 or self.has_quorum or self.is_lost_at_start
        longest_s = random.choice((0.002, 0.01, 0.05))
        self._disks: dict[str, Disk] = {}
        self.cluster = Cluster(
            *names,
            seed=seed,
            delay=random_delays(seed, longest_s),
            new_backing=self._new_backing,
            ahead_s=times_of_day(seed),
            card_sync_s=0.2 if seed % 10 == 9 else 0.002,
        )
        self.ledger = checks.Ledger(self.cluster, self.is_durable, seen)
        self.retained = RetainedLedger(self.cluster)
        self.operator = Operator(self)
        # Nodes that are lost with their disks, and not forgotten yet.
        self.lost: set[str] = set()
        self.replacements = Replacements(self)
        self.unconfirmed = Unconfirmed(self)
        self.delays = Delays(self) if seed >= SENT_LATER_FROM else None
        self.delivery_limits = DeliveryLimits(self) if seed >= RETURNED_FROM else None
        self.publishes: dict[int, Publish] = {}
        self.sessions: list[Session] = []
        self.queues: list[str] = []
        # Whose order is not that of publishing.
        self.unordered: set[str] = set()
        self.quorum: set[str] = set()
        self.limited: dict[str, int] = {}
        # Who publishes is refused; what comes back is kept, however much.
        self.refusing: set[str] = set()
        self.ttl_s: dict[str, float] = {}
        # Whose dead letters are kept.
        self.lettered: set[str] = set()
        # When they were rejected.
        self.must_be_dead: dict[int, float] = {}
        # What was in the queues at the end.
        self._left: set[int] = set()
        # What was ever taken out of a queue, by any leader; what was published again; and of what
        # nobody had, how much came as redelivered, by queue.
        self._taken_out: set[int] = set()
        self._sent_again: set[int] = set()
        self._marked_too_much: Counter[int] = Counter()
        # Consumers of this queue may acknowledge nothing.
        self.careless = ""
        self.is_careless = False
        # Where somebody may have a queue to himself.
        self.exclusive: set[str] = set()
        self.pauses_unless: str | None = None
        self.trace = 0
        self._arguments: dict[str, dict[str, Any]] = {}
        self._blocked: set[frozenset[str]] = set()
        self._stopping: set[str] = set()
        self._down_since: dict[str, float] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._ordered = 0
        self._final_since = float("inf")
        # Purges and deletions that were asked for: whether they are under way, and what they lose.
        self._losing_now: list[tuple[dict[str, bool], str, str]] = []
        self._connected = 0

    @property
    def now(self) -> float:
        return self.cluster.clock.now()

    def note(self, who: str, what: object) -> None:
        self.trace = zlib.crc32(f"{self.now:.6f} {who} {what!r}".encode(), self.trace)

    def _new_backing(self, node: Any, spec: Any) -> Any:
        if not self.is_durable:
            queue = MemoryQueue()
            queue.skip_to(node.incarnation << START_SHIFT)
            return queue
        disk = self._disks.get(node.name)
        if disk is None:
            slow_s = checks.SYNC_S if self.random.random() < 0.1 else 0.01
            disk = Disk(lambda: self.random.uniform(0.0005, slow_s))
            self._disks[node.name] = disk
        return disk.open(spec, node.clock, node.incarnation)

    def run(self) -> None:
        self._set_up()
        faulty_s = self.random.choice(HARD_S if self.is_hard else FAULTY_S)
        end = self.now + faulty_s
        for _ in range(self.random.choice(HARD_FAULT_COUNTS if self.is_hard else FAULT_COUNTS)):
            fault = self.random.choice(self._faults())
            self.after(self.random.uniform(0.1, faulty_s), lambda fault=fault: self._hit(fault))
        while self.now < end:
            self._act()
            self._step(self.random.choice((0.0, 0.001, 0.005, 0.02, 0.1)))
        self._heal()
        self._rest(QUIET_S)
        self.check_rest()
        if self.is_widest:
            self._change_policies_in_peace()
        if self.seed >= DAMAGED_FROM and self.is_durable:
            damage = Damage(self)
            damage.strike()
            damage.strike_while_mirrors_are_away()
        if self.has_operator:
            self._operate_in_peace()
        self._finish()

    def lets_go(self) -> None:
        """It is over: let the collector have all of it."""
        self.cluster.lets_go()
        for disk in self._disks.values():
            disk.lets_go()

    def lose_disk(self, node: str) -> None:
        self._disks.pop(node, None)

    def _faults(self) -> tuple[str, ...]:
        if self.has_replacements:
            faults = FAULTS + LATER_FAULTS + LATEST_FAULTS + 4 * REPLACEMENTS
            return faults + (16 * LOST_AT_START if self.is_lost_at_start else ())
        if self.is_unconfirmed:
            return FAULTS + LATER_FAULTS + LATEST_FAULTS + 48 * UNCONFIRMED
        if self.is_widest:
            return FAULTS + LATER_FAULTS + LATEST_FAULTS
        return FAULTS + LATER_FAULTS if self.is_wide else FAULTS

    # Time

    def after(self, delay_s: float, step: Callable[[], None]) -> None:
        self._ordered += 1
        self._due.append((self.now + delay_s, self._ordered, step))
        self._due.sort()

    def _step(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            at, _, step = self._due.pop(0)
            self._advance(max(0.0, at - self.now))
            step()
        self._advance(max(0.0, end - self.now))

    def _advance(self, seconds: float) -> None:
        self.cluster.clock.advance(seconds)
        self.ledger.follow()
        self.retained.follow()
        for session in self.sessions:
            if not session.is_over:
                session.poll()
        checks.check_one_leader(self.cluster)
        checks.check_expired(self.cluster, STALE_S)

    def _rest(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self._step(min(0.5, max(end - self.now, 0.001)))

    # The beginning

    def _set_up(self) -> None:
        random = self.random
        quorum = 0.2 if self.is_unconfirmed else 0.6
        for number in range(random.randint(1, 3)):
            name = f"q{number}"
            self.queues.append(name)
            arguments: dict[str, Any] = {}
            chance = 1.0 if self.is_unconfirmed else random.random()
            if chance < 0.12:
                arguments["x-max-priority"] = Field("b", 2)
                self.unordered.add(name)
            elif chance < 0.2:
                arguments["x-max-length"] = Field("I", 8)
                self.limited[name] = 8
            elif chance < 0.28:
                arguments["x-message-ttl"] = Field("I", random.choice((200, 1500)))
                self.ttl_s[name] = arguments["x-message-ttl"].value / 1000
                self.limited[name] = 1 << 30
            elif chance < 0.36:
                arguments["x-single-active-consumer"] = Field("t", True)
            if self.is_widest:
                self._set_up_more(name, arguments)
            self._arguments[name] = {
                "durable": random.random() < 0.8,
                "arguments": arguments,
            }
            if (
                self.seed >= RETAINED_QUORUM_FROM
                and name not in self.ttl_s
                and random.random() < 0.6
            ):
                self._make_quorum(name, arguments)
                self.retained.queues.add(name)
            elif self.has_retained and random.random() < 0.8:
                self._arguments[name]["durable"] = True
                self.retained.queues.add(name)
            elif self.has_quorum and name not in self.ttl_s and random.random() < quorum:
                self._make_quorum(name, arguments)
            if self.delivery_limits is not None:
                self.delivery_limits.choose(name, arguments)
            self._set_policy(name)
        self._step(0.5)
        for node in self.cluster.alive:
            self._connect(node)
        self._step(0.2)
        if self.lettered:
            self._arguments[checks.DEAD] = {"durable": True, "arguments": {}}
            self._set_policy(checks.DEAD)
            self._declare(checks.DEAD)
        if self.has_operator:
            for name in (MOVED, COPIED):
                self._arguments[name] = {"durable": True, "arguments": {}}
                self._set_policy(name)
                self._declare(name)
        if self.delays is not None:
            self._set_policy(checks.DELAY_QUEUE)
            self.delays.declare(random.choice(self.live))
            # A binding to an exchange that is not there would close the channel.
            while checks.record_of(self.cluster, checks.DELAY_QUEUE) is None:
                self._step(0.5)
        for name in self.queues:
            self._declare(name)
        self._step(random.choice((0.1, 3.0)))

    def _set_up_more(self, name: str, arguments: dict[str, Any]) -> None:
        random = self.random
        if not arguments and not self.is_unconfirmed and random.random() < 0.15:
            arguments["x-max-length"] = Field("I", 8)
            self.limited[name] = 8
        if "x-max-length" in arguments and random.random() < 0.7:
            arguments["x-overflow"] = Field("S", b"reject-publish")
            self.refusing.add(name)
        if random.random() < 0.25:
            arguments["x-dead-letter-exchange"] = Field("S", b"")
            arguments["x-dead-letter-routing-key"] = Field("S", checks.DEAD.encode())
            self.lettered.add(name)
        if random.random() < 0.1:
            self.careless = name
        if random.random() < 0.3:
            # With cluster_partition_handling = pause_if_all_down; else pause_minority.
            self.pauses_unless = random.choice("abc")
            self.cluster.goes_on_without_lease = True

    def _make_quorum(self, name: str, arguments: dict[str, Any]) -> None:
        """What is returned comes last; and who waits its turn may get nothing by itself."""
        for classic in ("x-max-priority", "x-single-active-consumer"):
            arguments.pop(classic, None)
        arguments["x-queue-type"] = Field("S", b"quorum")
        arguments["x-quorum-initial-group-size"] = Field("I", self.random.choice((1, 2, 3, 3, 5)))
        self._arguments[name]["durable"] = True
        self.quorum.add(name)
        self.unordered.add(name)

    def _change_members(self, queue: str) -> None:
        record = checks.queue_records(self.cluster).get(queue)
        if record is None:
            return
        change = self.cluster[self.random.choice(self.cluster.working)].mirroring.queue_members
        key = ("queue", "/", queue)
        members = members_of(record)
        others = sorted(set(self.cluster.nodes) - set(members))
        self.seen["members changed"] += 1
        if others and (len(members) < 3 or self.random.random() < 0.4):
            run_to_end(
                change.add(key, record.queue_id, self.random.choice(others)), lambda result: None
            )
        else:
            run_to_end(
                change.remove(key, record.queue_id, self.random.choice(members)),
                lambda result: None,
            )

    def _set_policy(self, queue: str) -> None:
        if queue in self.quorum:
            if queue in self.retained.queues:
                self._policies().set("/", queue, f"^{queue}$", RETENTION, 0, "queues")
            self._change_members(queue)
            return
        random = self.random
        definition = dict(random.choice(self._ha_modes()))
        if self.has_carriers:
            definition |= self._carrier()
        if queue in self.retained.queues:
            definition |= RETENTION
        if self.has_delays and random.random() < 0.6:
            definition["redelivery-delay"] = random.choice(([50], [200, 2000]))
        if random.random() < 0.6:
            definition["ha-sync-mode"] = "automatic"
        if random.random() < 0.7:
            definition["ha-promote-on-failure"] = "when-synced"
        else:
            self.ledger.may_promote_out_of_sync.add(queue)
        self.ledger.wanted.setdefault(queue, []).append((self.now, self._copies_of(definition)))
        matched = exchange_behind(queue) or queue
        self._policies().set("/", matched, f"^{matched}$", definition, 0, "queues")

    def _ha_modes(self) -> tuple[dict[str, Any], ...]:
        if self.is_lost_at_start:
            return HA_MODES[:1]
        # A node with a mirror cannot lose a publish: it gets it as a mirror before the answer.
        return 4 * (FEW_MIRRORS,) + HA_MODES if self.is_unconfirmed else HA_MODES

    def _carrier(self) -> dict[str, Any]:
        """What a policy says of how batches are brought; another one may say otherwise."""
        if self.random.random() < (0.15 if self.is_hard else 0.4):
            return {}
        acks = self.random.choice(({}, {"log-acks": "one"}, {"log-acks": "majority"}))
        return {"ha-replication": "log", **acks}

    def _copies_of(self, definition: dict[str, Any]) -> int:
        count = len(self.cluster.nodes)
        mode, params = definition["ha-mode"], definition.get("ha-params")
        if mode == "exactly":
            return min(count, params)
        return count if mode == "all" else len(params)

    def _policies(self) -> Any:
        return self.cluster[self.random.choice(self.cluster.working)].node.policies

    def _connect(self, node: str) -> Session:
        self._connected += 1
        session = Session(self, f"s{self._connected}", node)
        self.sessions.append(session)
        return session

    # What clients do

    @property
    def live(self) -> list[Session]:
        """Those that can do something: what stands still answers nobody."""
        return [
            session
            for session in self.sessions
            if not session.is_over and session.node not in self.cluster.frozen
        ]

    def _act(self) -> None:
        live = self.live
        if len(live) < 2 or self.random.random() < 0.02:
            if self.cluster.working:
                self._connect(self.random.choice(self.cluster.working))
            return
        if self.has_operator and self.random.random() < 0.03:
            self.operator.begin(self.random.choice(self.queues), self.random)
            return
        if self.delays is not None and self.random.random() < 0.03:
            if self.random.random() < 0.5:
                self._set_policy(checks.DELAY_QUEUE)
            else:
                self.delays.choose(self.random)
            return
        if self.is_widest and self.random.random() < 0.03:
            action = self.random.choice(LATEST_ACTIONS)
        else:
            weights = UNCONFIRMED_WEIGHTS if self.is_unconfirmed else WEIGHTS
            action = self.random.choices(ACTIONS, weights)[0]
        session = self.random.choice(live)
        getattr(self, action)(session, self.random.choice(self.queues))

    def _publish(self, session: Session, queue: str, kind: str = CONFIRM) -> None:
        channel = session.channel(kind)
        for _ in range(self.random.choice((1, 1, 2, 5, 20))):
            number = len(self.publishes)
            persistent = self.random.random() < 0.7
            publish = Publish(number, queue, channel.line, persistent, self.now)
            publish.is_kept = persistent or queue in self.quorum
            if queue in self.limited:
                publish.excused = "the queue has limits"
            elif self.is_careless and queue == self.careless:
                publish.excused = "it may go to who acknowledges nothing"
            self.publishes[number] = publish
            properties: dict[str, Any] = {}
            if queue in self.unordered - self.quorum:
                properties["priority"] = self.random.randint(0, 3)
            if self.delays is not None and self.random.random() < 0.25:
                self.delays.publishes(channel, publish, self.random.choice(DELAYS_MS), properties)
                continue
            if kind == PLAIN:
                self.unconfirmed.published(publish, session)
            channel.publishes(publish, **properties)

    def _publish_plain(self, session: Session, queue: str) -> None:
        self._publish(session, queue, PLAIN)

    def _publish_tx(self, session: Session, queue: str) -> None:
        self._publish(session, queue, TX)
        session.channel(TX).commits()

    def _consume(self, session: Session, queue: str) -> None:
        channel = session.channel(CONSUME)
        if len(channel.consumers) + len(channel.awaited) > 3:
            return
        if self.random.random() < 0.7:
            channel.asks(commands.Basic.Qos, prefetch_count=self.random.choice((1, 3, 20)))
        tag = f"{channel.line} {queue} {len(self.publishes)} {self.random.randint(0, 1 << 30)}"
        arguments: dict[str, Any] = {}
        if self.random.random() < 0.15 and queue not in self.quorum:
            arguments["x-cancel-on-ha-failover"] = Field("t", True)
        is_exclusive = self.random.random() < 0.05
        if is_exclusive:
            self.exclusive.add(queue)
        no_ack = queue == self.careless and self.random.random() < 0.5
        if no_ack:
            self.is_careless = True
            self.seen["consumers that acknowledge nothing"] += 1
            self._excuse(queue, "it may go to who acknowledges nothing")
        channel.consumes(queue, tag, arguments, is_exclusive, no_ack)

    def _publish_uncommitted(self, session: Session, queue: str) -> None:
        """E9: nobody gets it before it is committed, if it ever is."""
        self._publish(session, queue, TX)

    def _reject(self, session: Session, queue: str) -> None:
        channel = session.channel(self.random.choice((CONSUME, GET)))
        if channel.held:
            self.seen["rejected"] += 1
            channel.rejects(self.random.choice(list(channel.held)))

    def _rebalance(self, session: Session, queue: str) -> None:
        self.seen["rebalanced"] += 1
        run_to_end(self.cluster[session.node].mirroring.hand_overs.rebalance(), lambda result: None)

    def _cancel(self, session: Session, queue: str) -> None:
        channel = session.channel(CONSUME)
        if channel.consumers and not channel.awaited:
            channel.cancels(self.random.choice(sorted(channel.consumers)))

    def _ack(self, session: Session, queue: str) -> None:
        self._judge(session, False)

    def _nack(self, session: Session, queue: str) -> None:
        self._judge(session, True)

    def _judge(self, session: Session, requeue: bool) -> None:
        channel = session.channel(self.random.choice((CONSUME, CONSUME, GET)))
        if channel.held:
            tag = self.random.choice(list(channel.held))
            (channel.nacks if requeue else channel.acks)(tag, self.random.random() < 0.4)
            if requeue and self.has_delays:
                self.seen["returned, and to wait perhaps"] += 1

    def _get(self, session: Session, queue: str) -> None:
        channel = session.channel(GET)
        if len(channel.awaited) < 3:
            channel.asks(commands.Basic.Get, queue=queue)

    def _purge(self, session: Session, queue: str) -> None:
        self._losing(session, queue, commands.Queue.Purge)

    def _delete(self, session: Session, queue: str) -> None:
        self.ledger.deletable.add(queue)
        self._losing(session, queue, commands.Queue.Delete)
        self._declare(queue, session)

    def _losing(self, session: Session, queue: str, kind: Any) -> None:
        channel = session.channel(ADMIN)
        if channel.awaited:
            return
        self.seen[f"asked for {kind.name}"] += 1
        self._excuse(queue, kind.name)
        until = {"is_open": True}
        self._losing_now.append((until, queue, kind.name))

        def done(_: Any) -> None:
            until["is_open"] = False
            self._excuse(queue, kind.name)

        def watch() -> None:
            # Whoever asked may be gone, and the question still be under way.
            if until["is_open"]:
                self._excuse(queue, kind.name)
                self.after(0.5, watch)

        self.after(0.5, watch)
        self.after(40.0, lambda: done(None))
        channel.asks(kind, done, queue=queue)

    def _excuse(self, queue: str, why: str) -> None:
        for publish in self.publishes.values():
            if publish.queue == queue and not publish.excused:
                publish.excused = why

    def _declare(self, queue: str, session: Session | None = None) -> None:
        session = session or self.random.choice(self.live)
        session.channel(ADMIN).asks(commands.Queue.Declare, queue=queue, **self._arguments[queue])
        if self.delays is not None and queue in self.queues:
            self.delays.bind(queue, session)

    def _declare_again(self, session: Session, queue: str) -> None:
        self._declare(queue, session)

    def _declare_exclusive(self, session: Session, queue: str) -> None:
        name = f"x{len(self.publishes)}-{self._ordered}-{session.name}"
        session.channel(ADMIN).asks(commands.Queue.Declare, queue=name, exclusive=True)

    def _change_policy(self, session: Session, queue: str) -> None:
        self.seen["policy changed"] += 1
        if queue in self.quorum:
            self._change_members(queue)
        elif self.random.random() < 0.25 and queue not in self.retained.queues:
            with suppress(NotThere):
                self._policies().clear("/", queue)
                # Without one it is as if it said so.
                self.ledger.may_promote_out_of_sync.add(queue)
        else:
            self._set_policy(queue)

    def _synchronise(self, session: Session, queue: str) -> None:
        for name in self.cluster.alive:
            for led in self.cluster[name].mirroring._led.values():
                if led.queue.name == queue:
                    mirroring = self.cluster[name].mirroring
                    self.seen["synchronised by hand"] += 1
                    # It may not be known yet who leads.
                    with suppress(PreconditionFailed):
                        if self.random.random() < 0.3:
                            mirroring.cancel_synchronisation(led.queue)
                        else:
                            mirroring.synchronise(led.queue)

    def _vanish(self, session: Session, queue: str) -> None:
        session.vanishes()

    def _close_channel(self, session: Session, queue: str) -> None:
        """The consuming channel is closed in order: what it holds goes back."""
        session.channel(CONSUME).closes()

    # What happens to messages

    def received(self, publish: Publish, redelivered: bool, channel: ClientChannel) -> None:
        comes_twice = self.ledger.may_come_twice(publish) or (
            redelivered and self.ledger.may_be_there_twice(publish)
        )
        if self.delays is not None:
            self.delays.check_received(publish)
        if publish.is_gone and not comes_twice:
            # What the leader hears when it is about to be none may get lost.
            at = publish.acked_at
            assert redelivered and self.ledger.moves_around(publish.queue, at), (
                f"E3: {publish} was acknowledged, and is delivered again"
            )
            self.seen["acknowledged while the queue was handed over"] += 1
        assert publish.number not in self.operator.moved_in_peace, f"{publish} was moved"
        assert not publish.uncommitted, f"E9: {publish} is not committed, and is delivered"
        ttl_s = self.ttl_s.get(publish.queue)
        if ttl_s is not None and publish.published_at > self._final_since and not redelivered:
            entered_at = publish.published_at if publish.due_at is None else publish.due_at
            assert self.now <= entered_at + ttl_s + STALE_S, f"E12: {publish} has expired"
        # Of what two clients got in one step nobody knows who was first.
        if publish.received_at not in (None, self.now) and not redelivered:
            # A leader that is cut off delivers until it hears that there is another, or that its
            # queue is gone and another one has its name.
            lately = self.now - checks.KNOWN_S
            twice_led = self.ledger.moved_since(
                publish.queue, lately
            ) or self.ledger.declared_since(publish.queue, lately)
            assert (
                twice_led
                or channel.has_waited_since(publish.received_at)
                or publish.first_delivery_is_late
                or comes_twice
            ), f"E3: {publish} is delivered again, not redelivered"
            self.seen["heard of late, or from a leader that is none any more"] += 1
        if publish.received_at is None:
            publish.received_at = self.now
        publish.came_as_new |= not redelivered
        if redelivered:
            self.seen["redelivered"] += 1

    def confirmed(self, publish: Publish) -> None:
        at = publish.turned_away_at
        assert (
            at is None
            # What is on its way to a queue that is deleted has arrived.
            or self.ledger.declared_since(publish.queue, publish.published_at)
            or self.ledger.moved_since(publish.queue, at - checks.KNOWN_S)
        ), f"E5: {publish} was refused at {at}, and is confirmed"

    def turned_away(self, body: bytes, queue: str) -> None:
        self.seen["turned away"] += 1
        publish = self.publishes[int(body)]
        # A dead letter, or one that was moved, is another message, as is one that was delayed.
        if publish.queue == queue and publish.due_at is None:
            publish.turned_away_at = self.now

    def cancelled(self, queue: str, subscribed_at: float, wants_cancel: bool) -> None:
        assert (
            wants_cancel
            or not self.is_widest
            or queue in self.exclusive
            or self.ledger.may_be_cancelled(queue, subscribed_at)
        ), f"MS29: a consumer of {queue}, subscribed {subscribed_at}, is cancelled"

    def handed_out(self, led: LedQueue, messages: Iterable[Message]) -> None:
        """E3: who leads now knows what leaders before may have delivered."""
        record = checks.record_of(self.cluster, led.queue.name)
        if record is None or (record.queue_id, record.leader, record.epoch) != (
            led.queue.queue_id,
            led._node,
            led.leader.epoch,
        ):
            return
        if self.delays is not None:
            self.ledger.follow()
        for message in messages:
            publish = self.publishes[int(message.body)]
            # A dead letter is another message.
            is_dead = publish.queue != led.queue.name
            is_new = publish.received_at is None and publish.number not in self.operator.sent_on
            is_new |= self.ledger.may_come_twice(publish)
            assert is_dead or message.redelivered or is_new, (
                f"E3: {led._node} delivers {publish} again, not redelivered"
            )
            if not is_dead and message.redelivered:
                self._check_marked(led, publish)

    def _check_marked(self, led: LedQueue, publish: Publish) -> None:
        """What nobody can have had is not redelivered, but for what a leader was ahead."""
        if publish.number in self._taken_out or publish.number in self._sent_again:
            return
        self.ledger.follow()
        queue = self.ledger.queues.get(publish.queue)
        started_at = self.cluster[led._node].started_at
        if queue is None:
            return
        # All that a disk gives back after a crash is redelivered.
        if publish.published_at <= max(queue.bare_until, queue.marked_until, started_at):
            return
        self._marked_too_much[led.queue.queue_id] += 1
        count = self._marked_too_much[led.queue.queue_id]
        ahead = hand_outs.AHEAD_MAX * led.leader.epoch * len(led.leader.levels)
        assert count <= ahead, (
            f"E3: {led._node} has {publish} redelivered, which nobody had, the {count}th such one"
            f" of {led.queue.name} in epoch {led.leader.epoch}, moved at {queue.moved_at}"
        )
        self.seen["redelivered though nobody had it"] += 1

    def taken_out(self, messages: Iterable[Message]) -> None:
        for message in messages:
            number = int(message.body)
            self._taken_out.add(number)
            if not message.redelivered:
                self.publishes[number].as_new_at = self.now

    def sent_at_once(self, body: bytes) -> None:
        """A publish went past the queue, to somebody who acknowledges nothing."""
        publish = self.publishes.get(int(body))
        if publish is not None and publish.as_new_at is None:
            publish.as_new_at = self.now

    def put_back(self, messages: Iterable[Message]) -> None:
        self._taken_out.update([int(message.body) for message in messages])

    def sent_again(self, body: bytes) -> None:
        self.seen["published again"] += 1
        self._sent_again.add(int(body))

    def given_back(self, bodies: Iterable[bytes]) -> None:
        """A queue was given messages back that did not reach the client they were meant for."""
        for body in bodies:
            self.publishes[int(body)].was_given_back = True

    def acked(self, held: Any) -> None:
        publish = held.publish
        publish.acked_at = self.now
        # What it was handed before the queue moved is not its to acknowledge any more.
        moved = self.ledger.moved_since(publish.queue, held.at - checks.KNOWN_S)
        publish.is_gone = held.at > self._final_since and not moved

    # The end

    def _heal(self) -> None:
        self.note("heal", "")
        for until, queue, why in self._losing_now:
            if until["is_open"]:
                # Nobody watches it any more.
                self._excuse(queue, why)
        self._due.clear()
        self._end_faults()
        for name in self.cluster.nodes:
            self.cluster.restore_store(name)
        self._blocked.clear()
        self._start_dead()
        if self.has_replacements:
            self.replacements.end()
            self._start_dead()

    def _start_dead(self) -> None:
        for name in sorted(self.cluster.dead - self.lost):
            self.cluster.restart(name)
        self._rest(1.5)
        for one in self.cluster.nodes:
            for other in self.cluster.nodes:
                if one < other:
                    self._link(one, other)

    def check_rest(self) -> None:
        """Everybody was served, and the copies agree."""
        waiting = [line for session in self.live for line in session.is_waiting()]
        assert not waiting, f"hung: {waiting}"
        for _ in checks.check_mirrors(self.cluster):
            self.seen["copies compared"] += 1
        for _ in self.retained.check_copies():
            self.seen["retained messages compared"] += 1
        self._check_policies()
        self.operator.check_over()
        if self.delays is not None:
            self.delays.check_rest()
        for session in self.live:
            channel = session.channel(CONSUME)
            for tag in channel.consumers:
                queue, at, wants_cancel = channel.subscribed[tag]
                assert not (wants_cancel and self.ledger.changed_hands_since(queue, at)), (
                    f"MS29: {tag} has not been cancelled"
                )

    def _change_policies_in_peace(self) -> None:
        """M12, MS19: as fast as one likes, and nothing is lost by it."""
        self.ledger.is_quiet = True
        for _ in range(self.random.choice((0, 3, 6))):
            self._set_policy(self.random.choice(self.queues))
            self.seen["policy changed in peace"] += 1
            self._rest(self.random.choice((0.02, 0.1, 1.0, 6.0)))
        self._rest(20.0)
        self.check_rest()
        self.ledger.is_quiet = False

    def _operate_in_peace(self) -> None:
        """What is moved while nothing fails is in one place, and all that is retained is found."""
        # Whoever was to declare them may have died.
        for name in (MOVED, COPIED):
            self._declare(name, self._connect(self._node()))
        self._rest(2.0)
        for queue in self.queues:
            if self.random.random() < 0.5:
                self._publish(self._connect(self._node()), queue)
                self._rest(1.0)
                job = self.operator.do_in_peace(queue, Action.MOVE)
                self.seen["moved in peace"] += 0 if job is None else job.done
        for queue in sorted(self.retained.queues):
            retained = self.retained.of_leader(queue)
            job = self.operator.do_in_peace(queue, Action.REPLAY)
            replayed = set() if job is None else {int(message.body) for message in job.sent}
            lacking = retained - replayed
            assert not lacking, f"{len(lacking)} of {queue} are not replayed: {sorted(lacking)[:5]}"
            self.seen["replayed in peace"] += len(replayed)
        self.check_rest()

    def _check_policies(self) -> None:
        """M12: the queues have the mirrors their policies want."""
        for name, record in checks.queue_records(self.cluster).items():
            led = self.cluster[record.leader].mirroring._led.get(record.queue_id)
            if led is None:
                assert not record.mirrors, f"{record.leader} does not mirror {name}: {record}"
                continue
            extra = set(record.mirrors) - set(led.wanted_mirrors)
            missing = set(led.wanted_mirrors) - set(record.mirrors)
            # Whoever has all stays for those who have not yet.
            unsynced = set(led.wanted_mirrors) - set(record.in_sync)
            assert not missing and extra <= set(record.in_sync) and len(extra) <= len(unsynced), (
                f"M12: {name} is to have {led.wanted_mirrors}: {record}"
            )
            if led.wanted.synchronise:
                assert set(record.in_sync) == set(record.mirrors), (
                    f"M12: {name} is to be in sync: {record}"
                )

    def _finish(self) -> None:
        """All is consumed that can be, what is left is compared, and everything deleted."""
        self._final_since = self.now
        self._connect(self._node())
        for queue in self.queues:
            self._declare(queue)
        self._rest(2.0)
        self._probe()
        for session in self.live:
            session.vanishes()
        self._rest(3.0)
        self._drain()
        if self.lettered:
            self._drain_dead()
        self._drain_found()
        if self.has_operator:
            self._drain_moved()
        self._check_retained()
        lost = self._lost()
        if {publish.queue for publish in lost} & self.ledger.led_out_of_sync:
            self.seen["lost and found late"] += 1
            self._rest(LATE_S + 60.0)
            self._drain_found()
            lost = self._lost()
        assert not lost, f"E1: {len(lost)} lost, such as {lost[:3]}"
        # A queue may just have been handed over, and who led it be asked about it.
        self._rest(WAIT_FOR_QUEUE_S + 1.0)
        checks.check_nothing_left(self.cluster)
        exclusive = [n for n, r in checks.queue_records(self.cluster).items() if r.exclusive]
        assert not exclusive, f"E10: {exclusive}"
        session = self._connect(self._node())
        for queue in checks.queue_records(self.cluster):
            self.ledger.deletable.add(queue)
            if queue == checks.DELAY_QUEUE:
                assert self.delays is not None
                self.delays.delete(session)
                continue
            session.channel(ADMIN).asks(commands.Queue.Delete, queue=queue)
        self._rest(5.0)
        assert not session.is_waiting(), session.is_waiting()
        session.vanishes()
        self._rest(2.0)
        checks.check_nothing_left(self.cluster)
        for name in self.cluster.alive:
            mirroring = self.cluster[name].mirroring
            left = (mirroring._led, mirroring.copies.by_queue, mirroring.from_afar.origins)
            assert not any(left), name
            assert not mirroring._leadership.promoted
        self.seen["publishes"] += len(self.publishes)
        self.seen["unconfirmed, and promised"] += len(self.unconfirmed.promised())
        self.seen["confirmed"] += sum(p.confirmed_at is not None for p in self.publishes.values())
        self.seen["histories"] += 1
        self.seen[f"histories of {len(self.cluster.nodes)} nodes"] += 1

    def _check_retained(self) -> None:
        self._rest(3.0)
        publishes, found = self.publishes.values(), self.operator.found
        # What was found of a delay queue had not come to its queue.
        found_delayed = {one.number for one in publishes if one.due_at and one.number in found}
        gone = self.operator.gone | found_delayed
        self.seen["retained"] += self.retained.check_all(publishes, self.ledger, gone)
        for queue in self.retained.queues & self.quorum:
            self.seen["retained by quorum queues"] += len(self.retained.of_leader(queue))
        twice = self.retained.twice(publishes, self.ledger)
        assert not twice, f"retained twice: {twice[:3]}"

    def _ack_all(self) -> None:
        for _ in range(4000):
            busy = False
            for session in self.live:
                for kind in (CONSUME, GET):
                    channel = session.channel(kind)
                    if channel.held:
                        self._reject_some(channel)
                        if channel.held:
                            channel.acks(max(channel.held), True)
                        busy = True
            self._rest(0.3)
            if not busy:
                return
        raise AssertionError("messages come again and again")

    def _reject_some(self, channel: ClientChannel) -> None:
        """Of what nothing can go wrong with any more, all becomes a dead letter that is to."""
        for tag, held in list(channel.held.items()):
            publish = held.publish
            is_its_to_reject = held.at > self._final_since and not self.ledger.moved_since(
                publish.queue, held.at - checks.KNOWN_S
            )
            if publish.queue in self.lettered and is_its_to_reject and self.random.random() < 0.2:
                self.seen["rejected in peace"] += 1
                self.must_be_dead[publish.number] = self.now
                channel.rejects(tag)

    def _probe(self) -> None:
        """Every consumer is served, and every publisher."""
        self._ack_all()
        consumers = [
            (channel, tag, queue)
            for session in self.live
            for channel in [session.channel(CONSUME)]
            for tag, queue in channel.consumers.items()
        ]
        before = {tag: channel.received[tag] for channel, tag, _ in consumers}
        for _ in range(3 * len(consumers)):
            for session in self.live:
                for queue in self.queues:
                    self._publish(session, queue)
            self._rest(0.2)
            self._ack_all()
            starved = [
                (tag, queue)
                for channel, tag, queue in consumers
                if tag in channel.consumers and channel.received[tag] == before[tag]
            ]
            if not starved:
                break
        by_queue: dict[str, list[str]] = {}
        for tag, queue in starved if consumers else ():
            by_queue.setdefault(queue, []).append(tag)
        for queue, tags in by_queue.items():
            alone = "x-single-active-consumer" in self._arguments[queue]["arguments"]
            served = [t for _, t, q in consumers if q == queue and t not in tags]
            assert alone and served, f"{tags} of {queue} get nothing"
        waiting = [line for session in self.live for line in session.is_waiting()]
        assert not waiting, f"hung: {waiting}"

    def _drain(self) -> None:
        """Fetch what is left, in order: nothing twice, each channel's publishes in theirs."""
        session = self._connect(self._node())
        self._rest(0.5)
        channel = session.channel(GET)
        for queue in self.queues:
            counted: list[int] = []
            session.channel(ADMIN).asks(
                commands.Queue.Declare,
                lambda ok, counted=counted: counted.append(ok.message_count),
                queue=queue,
                passive=True,
            )
            self._rest(0.5)
            drained: list[Publish] = []
            while True:
                held = set(channel.held)
                for _ in range(20):
                    channel.asks(commands.Basic.Get, queue=queue)
                until = self.now + 30
                while channel.awaited and self.now < until:
                    self._rest(0.2)
                assert channel.is_open and not channel.awaited, f"{queue}: {session.is_waiting()}"
                new = [channel.held[tag].publish for tag in channel.held if tag not in held]
                drained += new
                if len(new) < 20:
                    break
            self._check_drained(queue, counted, drained)
            if channel.held:
                channel.acks(max(channel.held), True)
        session.vanishes()

    def _lost(self) -> list[Publish]:
        return self.unconfirmed.lost() + [
            publish
            for publish in self.publishes.values()
            if publish.confirmed_at is not None
            and publish.received_at is None
            and not self.ledger.may_be_lost(publish)
            and not self.operator.may_be_lost(publish, self.ledger)
        ]

    def _contents(self, queue: str) -> Iterator[Publish]:
        """What is in a queue that is not one of those clients use; it is empty afterwards."""
        session = self._connect(self._node())
        self._rest(0.5)
        client, channel = session.client, session.channel(ADMIN)
        for _ in range(10_000):
            client.sends(commands.Basic.Get, channel.number, queue=queue, no_ack=True)
            frames: list[Frame] = []
            until = self.now + 30
            while not frames and self.now < until:
                self.cluster.clock.advance(0.3)
                frames = client.frames()
            assert frames, f"nobody answers who gets from {queue}"
            if frames[0].method.name == "Basic.GetEmpty":
                session.vanishes()
                return
            answer = frames[0].method
            assert answer.name == "Basic.GetOk", f"{queue}: {answer.reply_code} {answer.reply_text}"
            yield self.publishes[int(frames[2].payload)]
        raise AssertionError(f"{queue} has no end")

    def _drain_found(self) -> None:
        """What only a superseded leader had may be there; not what others have, too."""
        if LOST_AND_FOUND not in checks.queue_records(self.cluster):
            return
        found: set[int] = set()
        for publish in self._contents(LOST_AND_FOUND):
            self.seen["lost and found"] += 1
            self.operator.found.add(publish.number)
            if publish.received_at is None:
                publish.received_at = self.now
            if publish.excused or publish.queue in self.ledger.led_out_of_sync:
                # It may be a dead letter; and what a leader lacked, others sent again.
                continue
            if publish.number in self.operator.taken or self.operator.has_sent(publish.number):
                # It may be what was moved, or a copy.
                continue
            if self.ledger.may_be_there_twice(publish):
                continue
            assert publish.confirmed_at is None, f"E2: {publish} is found"
            assert publish.number not in found, f"E2: {publish} is found twice"
            assert publish.number not in self._left, f"E2: {publish} is found, and in its queue"
            found.add(publish.number)

    def _drain_moved(self) -> None:
        """What jobs say is there is there; and what was moved while nothing failed only there."""
        for queue in (MOVED, COPIED):
            found = list(self._contents(queue))
            for publish in found:
                if publish.received_at is None:
                    publish.received_at = self.now
            self.operator.check_found(queue, found, self.ledger)
        both = self.operator.moved_in_peace & self._left
        assert not both, f"E2: {sorted(both)[:5]} were moved, and are in their queues"

    def _drain_dead(self) -> None:
        """What was rejected, expired or dropped may be there; nothing else."""
        for publish in self._contents(checks.DEAD):
            self.seen["dead letters"] += 1
            self.must_be_dead.pop(publish.number, None)
            assert publish.queue in self.lettered and publish.excused, f"E2: {publish} is dead"
        lost = [
            number
            for number, at in self.must_be_dead.items()
            if not self.ledger.moves_around(self.publishes[number].queue, at)
        ]
        assert not lost, f"E1: {len(lost)} dead letters lost, such as {sorted(lost)[:3]}"

    def _check_drained(self, queue: str, counted: list[int], drained: list[Publish]) -> None:
        ids = [publish.number for publish in drained]
        self._left.update(ids)
        twice = [
            publish
            for publish in drained
            if ids.count(publish.number) > 1 and not self.ledger.may_be_there_twice(publish)
        ]
        assert not twice, f"E2: {queue} has {twice[:3]} twice"
        if queue not in self.limited:
            assert counted == [len(drained)], f"E7: {counted} in {queue}, {len(drained)} got"
        elif self.limited[queue] < 1 << 30 and queue not in self.refusing:
            assert len(drained) <= self.limited[queue], f"E11: {len(drained)} in {queue}"
        if queue not in self.unordered:
            last: dict[str, Publish] = {}
            for publish in drained:
                if publish.due_at is not None:
                    continue
                before = last.get(publish.line)
                assert before is None or before.number < publish.number, (
                    f"E4: {publish} is behind {before} in {queue}"
                )
                last[publish.line] = publish


def times_of_day(seed: int) -> Callable[[], float]:
    """P12: half of the nodes, each time they start, are wrong, and some by an hour, which is how
    long what is delayed would wait then."""
    random = Random(f"times of day {seed}")
    if seed >= SENT_LATER_FROM:
        return lambda: random.choice((0.0, CLOCKS_DIFFER_S))
    return lambda: random.choice((0.0, 0.0, 0.0, 0.3, 3600.0, -3600.0))


ACTIONS = (
    "_publish",
    "_publish_plain",
    "_publish_tx",
    "_consume",
    "_cancel",
    "_ack",
    "_nack",
    "_get",
    "_purge",
    "_delete",
    "_declare_again",
    "_declare_exclusive",
    "_change_policy",
    "_synchronise",
    "_vanish",
    "_close_channel",
)
LATEST_ACTIONS = ("_publish_uncommitted", "_reject", "_reject", "_rebalance")
WEIGHTS = (30, 8, 4, 6, 1.5, 14, 6, 8, 0.3, 0.3, 1, 0.5, 1.2, 1, 0.7, 0.7)
UNCONFIRMED_WEIGHTS = (8, 30, *WEIGHTS[2:])


@contextmanager
def watching_hand_outs(history: History) -> Iterator[None]:
    fetched, publish_delivered = LeaderLevel._fetched, LeaderLevel.publish_delivered
    publish_many_delivered = LeaderLevel.publish_many_delivered
    publish, put_back = LeaderLevel.publish, LeaderLevel._put_back
    publish_many = LeaderLevel.publish_many

    def watched_fetched(level: LeaderLevel, messages: Iterable[Message]) -> None:
        fetched(level, messages)
        history.handed_out(level._journal.effects, messages)  # type: ignore[attr-defined]
        history.taken_out(messages)

    def watched_delivered(level: LeaderLevel, *arguments: Any) -> Message:
        message = publish_delivered(level, *arguments)
        if level._journal.again:
            history.sent_again(message.body)
        history.handed_out(level._journal.effects, [message])  # type: ignore[attr-defined]
        history.taken_out([message])
        return message

    def watched_many_delivered(level: LeaderLevel, *arguments: Any) -> list[Message]:
        messages = publish_many_delivered(level, *arguments)
        if level._journal.again:
            for message in messages:
                history.sent_again(message.body)
        history.handed_out(level._journal.effects, messages)  # type: ignore[attr-defined]
        history.taken_out(messages)
        return messages

    def watched_many(level: LeaderLevel, envelopes: Any, bodies: Any, *more: Any) -> None:
        if level._journal.again:
            for body in bodies:
                history.sent_again(body)
        publish_many(level, envelopes, bodies, *more)

    def watched_publish(level: LeaderLevel, envelope: Any, body: bytes, *more: Any) -> None:
        if level._journal.again:
            history.sent_again(body)
        publish(level, envelope, body, *more)

    def watched_put_back(level: LeaderLevel, messages: list[Message]) -> list[Message]:
        # What was fetched too early counts as delivered when the leader stops.
        history.put_back(messages)
        return put_back(level, messages)

    LeaderLevel._put_back = watched_put_back  # type: ignore[method-assign]
    LeaderLevel._fetched = watched_fetched  # type: ignore[method-assign]
    LeaderLevel.publish_delivered = watched_delivered  # type: ignore[method-assign]
    LeaderLevel.publish_many_delivered = watched_many_delivered  # type: ignore[method-assign]
    LeaderLevel.publish_many = watched_many  # type: ignore[method-assign]
    LeaderLevel.publish = watched_publish  # type: ignore[method-assign]
    try:
        yield
    finally:
        LeaderLevel.publish = publish  # type: ignore[method-assign]
        LeaderLevel._put_back = put_back  # type: ignore[method-assign]
        LeaderLevel._fetched = fetched  # type: ignore[method-assign]
        LeaderLevel.publish_delivered = publish_delivered  # type: ignore[method-assign]
        LeaderLevel.publish_many_delivered = publish_many_delivered  # type: ignore[method-assign]
        LeaderLevel.publish_many = publish_many  # type: ignore[method-assign]


@contextmanager
def watching_queues_without_mirrors(history: History) -> Iterator[None]:
    """What they hand out before they have mirrors counts, too."""
    fetch, fetch_many = MemoryQueue.fetch, MemoryQueue.fetch_many
    publish_delivered = MemoryQueue.publish_delivered
    publish_many_delivered = MemoryQueue.publish_many_delivered

    def note(backing: MemoryQueue, messages: Iterable[Message]) -> None:
        for name in history.cluster.alive:
            for queue in history.cluster[name].node.local_queues:
                outer = queue.backing
                if (
                    backing is outer
                    or backing is getattr(outer, "_inner", None)
                    or backing in getattr(outer, "levels", ())
                ):
                    history.taken_out(messages)
                    return

    def watched_fetch(backing: MemoryQueue) -> Message | None:
        message = fetch(backing)
        if message is not None:
            note(backing, [message])
        return message

    def watched_fetch_many(backing: MemoryQueue, limit: int) -> list[Message]:
        messages = fetch_many(backing, limit)
        note(backing, messages)
        return messages

    def watched_delivered(backing: MemoryQueue, *arguments: Any) -> Message:
        message = publish_delivered(backing, *arguments)
        note(backing, [message])
        return message

    def watched_many_delivered(backing: MemoryQueue, *arguments: Any) -> list[Message]:
        messages = publish_many_delivered(backing, *arguments)
        note(backing, messages)
        return messages

    MemoryQueue.fetch = watched_fetch  # type: ignore[method-assign]
    MemoryQueue.fetch_many = watched_fetch_many  # type: ignore[method-assign]
    MemoryQueue.publish_delivered = watched_delivered  # type: ignore[method-assign]
    MemoryQueue.publish_many_delivered = watched_many_delivered  # type: ignore[method-assign]
    try:
        yield
    finally:
        MemoryQueue.fetch = fetch  # type: ignore[method-assign]
        MemoryQueue.fetch_many = fetch_many  # type: ignore[method-assign]
        MemoryQueue.publish_delivered = publish_delivered  # type: ignore[method-assign]
        MemoryQueue.publish_many_delivered = publish_many_delivered  # type: ignore[method-assign]


@contextmanager
def little_ahead(history: History) -> Iterator[None]:
    """Consumers of half of the histories wait often until mirrors know what they may be given."""
    if history.seed % 2:
        yield
        return
    widths = hand_outs.AHEAD_MIN, hand_outs.AHEAD_MAX
    withhold = LocalQueue.withhold

    def watched(queue: LocalQueue) -> None:
        history.seen["withheld"] += not queue.is_withheld
        withhold(queue)

    hand_outs.AHEAD_MIN, hand_outs.AHEAD_MAX = 1, 4
    LocalQueue.withhold = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        hand_outs.AHEAD_MIN, hand_outs.AHEAD_MAX = widths
        LocalQueue.withhold = withhold  # type: ignore[method-assign]


@contextmanager
def leaders_not_awaited_for_long(history: History) -> Iterator[None]:
    """A mirror that is found on disk leads soon when its leader is not up."""
    leader_may_come_s = copy_here.LEADER_MAY_COME_S
    if history.has_carriers:
        copy_here.LEADER_MAY_COME_S = 0.5
    try:
        yield
    finally:
        copy_here.LEADER_MAY_COME_S = leader_may_come_s


@contextmanager
def watching_returns(history: History) -> Iterator[None]:
    requeue = ClassicQueue.requeue

    def watched(queue: ClassicQueue, messages: list[Message], *, delivered: bool = True) -> None:
        if not delivered:
            history.given_back([bytes(message.body) for message in messages])
        requeue(queue, messages, delivered=delivered)

    ClassicQueue.requeue = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClassicQueue.requeue = requeue  # type: ignore[method-assign]


@contextmanager
def watching_refusals(history: History) -> Iterator[None]:
    publish = RemoteClient.publish

    def watched(client: RemoteClient, carried: Iterable[CarriedMessages]) -> None:
        carried = list(carried)
        bodies: dict[int, bytes] = {}
        for some in carried:
            bodies.update(zip(some.numbers, some.bodies, strict=True))
        known = len(client._refused)
        publish(client, carried)
        for number in client._refused[known:]:
            history.turned_away(bodies[number], client.queue.name)

    RemoteClient.publish = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        RemoteClient.publish = publish  # type: ignore[method-assign]


@contextmanager
def watching_sends(history: History) -> Iterator[None]:
    send = ChannelConsumer.send

    def watched(
        consumer: ChannelConsumer, envelope: Envelope, body: bytes, redelivered: bool
    ) -> None:
        if not redelivered:
            history.sent_at_once(body)
        send(consumer, envelope, body, redelivered)

    ChannelConsumer.send = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        ChannelConsumer.send = send  # type: ignore[method-assign]


@contextmanager
def faults_logged() -> Iterator[list[str]]:
    errors = Errors()
    logger = logging.getLogger("warren")
    logger.addHandler(errors)
    try:
        yield errors.faults
    finally:
        logger.removeHandler(errors)


def run(seed: int, seen: Counter[str]) -> History:
    """Raises with the seed in the message."""
    with faults_logged() as faults:
        history = History(seed, seen)
        try:
            with (
                watching_returns(history),
                watching_limits(history.delivery_limits),
                watching_hand_outs(history),
                watching_refusals(history),
                watching_sends(history),
                watching_operator(history.operator),
                watching_unconfirmed(history.unconfirmed),
                watching_queues_without_mirrors(history),
                little_ahead(history),
                leaders_not_awaited_for_long(history),
                other_queues_on_disk(),
            ):
                history.run()
        except Exception as error:
            if faults:
                raise AssertionError(f"seed {seed}: {faults[0]}") from error
            if isinstance(error, AssertionError):
                raise AssertionError(f"seed {seed}: {error}") from error
            raise
        finally:
            history.lets_go()
        assert not faults, f"seed {seed}: {faults[0]}"
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    logging.getLogger("warren").propagate = False
    seen: Counter[str] = Counter()
    failed = []
    started = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        try:
            run(seed, seen)
        except Exception:
            failed.append(seed)
            if not options.keep_going:
                raise
            print(seed, traceback.format_exc().strip().splitlines()[-1][:300], flush=True)
    elapsed_s = time.monotonic() - started
    print(f"{options.count} histories from seed {options.seed} in {elapsed_s:.0f} s")
    for name, count in sorted(seen.items()):
        print(f"{count:10} {name}")
    print(f"failed: {len(failed)} {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

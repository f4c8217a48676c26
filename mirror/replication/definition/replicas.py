"""Which nodes a policy wants a queue on, and which leads when the leader is gone. Pure functions.

The rules are those of gm_and_mirroring.md sections 2.7, 2.9 and 2.10; an in-sync mirror is always
preferred to one that is not, however old that one is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from warren.core.queues.queue_type import majority_of
from warren.mirror.carriers.ports import CarrierKind
from warren.mirror.replication.definition.confirm_rule import ALL

ALWAYS = "always"
WHEN_SYNCED = "when-synced"
AUTOMATIC = "automatic"
MANUAL = "manual"
ALL_IN_SYNC = "all-in-sync"

GAP_BYTES_MAX = 64 << 20
"""Octets of batches that are kept in memory for a slow mirror."""

SYNC_BATCH = 4096
"""RabbitMQ's default of `mirroring_sync_batch_size`."""


class SyncLimits(NamedTuple):
    """What the configuration says of synchronisations, where a policy says nothing: how many
    `messages` are sent at a time at most, and how many octets a second (0: no limit)."""

    messages: int = SYNC_BATCH
    rate: int = 0


NO_LIMITS = SyncLimits()


class WantedMirrors(NamedTuple):
    """What the ha-* keys of a policy say. `mode` is None for a queue without mirrors.

    `sync_batch` is how many messages a mirror is sent at a time at most while it is synchronised,
    and `catch_up_rate` how many octets a second (0: no limit).

    The rest is for the carrier `log`: `acks` as `log-acks` has it; with fewer whole copies than
    `in_sync_min`, the leader's among them, publishes are refused; a mirror that has not reported
    `gap_bytes_max` octets is dropped; `is_flushed`: a copy has a persistent message when that is on
    disk.
    """

    mode: str | None = None
    params: Any = None
    synchronise: bool = False
    promote_on_failure: str = ALWAYS
    promote_on_shutdown: str = WHEN_SYNCED
    sync_batch: int = SYNC_BATCH
    catch_up_rate: int = 0
    carrier: CarrierKind = CarrierKind.GM
    acks: str | int = ALL_IN_SYNC
    in_sync_min: int = 1
    gap_bytes_max: int = GAP_BYTES_MAX
    is_flushed: bool = True

    @property
    def copies_max(self) -> int | None:
        """How many copies there may be, the leader's among them; None for any number."""
        if self.mode == "exactly":
            return int(self.params)
        return len(self.params) if self.mode == "nodes" else None

    @classmethod
    def of(cls, definition: Mapping[str, Any], limits: SyncLimits = NO_LIMITS) -> WantedMirrors:
        """Read the definition of the effective policy; `limits` count where it says nothing."""
        batch = definition.get("ha-sync-batch-size", 1)
        return cls(
            definition.get("ha-mode"),
            definition.get("ha-params"),
            definition.get("ha-sync-mode", _usual_sync_mode(definition)) == AUTOMATIC,
            definition.get("ha-promote-on-failure", ALWAYS),
            definition.get("ha-promote-on-shutdown", WHEN_SYNCED),
            # As with RabbitMQ, 1 is no size but the default.
            int(batch) if batch > 1 else limits.messages,
            int(definition.get("log-catchup-rate", limits.rate)),
            *(_of_log(definition) if definition.get("ha-replication") == CarrierKind.LOG else ()),
        )

    @classmethod
    def of_members(
        cls, members: Sequence[str], leader: str, limits: SyncLimits = NO_LIMITS
    ) -> WantedMirrors:
        """Return what a quorum queue with these members wants: a majority of them has each publish
        on disk, and only a member that has everything confirmed leads. A single member wants no
        mirrors."""
        return cls(
            None if list(members) == [leader] else "nodes",
            list(members),
            True,
            WHEN_SYNCED,
            WHEN_SYNCED,
            *limits,
            CarrierKind.LOG,
            majority_of(members),
        )

    def acks_of(self, copies: int) -> int:
        """Return how many of `copies` copies are to have a publish before it is confirmed; 0: all
        that are whole."""
        match self.acks:
            case "async":
                return 1
            case "one":
                return 2
            case "majority":
                return copies // 2 + 1
            case int(number):
                return number
        return ALL


def _usual_sync_mode(definition: Mapping[str, Any]) -> str:
    return AUTOMATIC if definition.get("ha-replication") == CarrierKind.LOG else MANUAL


def _of_log(definition: Mapping[str, Any]) -> tuple[CarrierKind, str | int, int, int, bool]:
    return (
        CarrierKind.LOG,
        definition.get("log-acks", ALL_IN_SYNC),
        int(definition.get("log-min-insync", 1)),
        int(definition.get("log-max-gap-bytes", GAP_BYTES_MAX)),
        definition.get("log-flush", "sync") == "sync",
    )


class Copies(NamedTuple):
    """The leader of a queue, the nodes that have mirrors of it, the oldest first, those that had a
    copy before, and those that were chosen to have mirrors and have none yet."""

    leader: str
    mirrors: Sequence[str]
    in_sync: Collection[str]
    former: Collection[str] = ()
    chosen: Collection[str] = ()


def wanted_mirrors(
    wanted: WantedMirrors,
    now: Copies,
    running: Collection[str],
    rng: Random,
    machine_of: Callable[[str], str] = str,
) -> tuple[str, ...]:
    """The nodes that are to have mirrors while the queue is led where it is now.

    Of the nodes of one machine only one has a copy: what ends the machine ends all of them.
    """
    home = machine_of(now.leader)
    others = sorted(node for node in running if machine_of(node) != home)
    if wanted.mode == "nodes":
        others = [node for node in others if node in wanted.params]
    others = _one_a_machine(others, now, rng, machine_of)
    if wanted.mode == "all":
        return tuple(others)
    if wanted.mode == "exactly":
        return _exactly(int(wanted.params) - 1, now, others, rng)
    if wanted.mode == "nodes":
        return tuple(node for node in wanted.params if node in others)
    return ()


def _one_a_machine(
    nodes: Sequence[str], now: Copies, rng: Random, machine_of: Callable[[str], str]
) -> list[str]:
    """Return one node of each machine: one with a copy, in-sync ones before others, or else one
    that was chosen before or had a copy, or any."""
    machines = {machine_of(node) for node in nodes}
    if len(machines) == len(nodes):
        return list(nodes)
    shuffled = rng.sample(nodes, len(nodes))
    better = (now.in_sync, now.mirrors, now.chosen, now.former)
    shuffled.sort(key=lambda node: [node not in those for those in better])
    first: dict[str, str] = {}
    for node in shuffled:
        first.setdefault(machine_of(node), node)
    return sorted(first.values())


def _exactly(count: int, now: Copies, others: Sequence[str], rng: Random) -> tuple[str, ...]:
    """The mirrors there are stay, in-sync ones before others, and so do the nodes that were chosen
    before. Further ones are chosen by chance, at first among nodes that had a copy: these need not
    be sent everything."""
    there = [mirror for mirror in now.mirrors if mirror in others]
    there.sort(key=lambda mirror: mirror not in now.in_sync)
    if len(there) >= count:
        return tuple(there[: max(count, 0)])
    further = [node for node in others if node not in there]
    missing = count - len(there)
    chosen = rng.sample(further, len(further))
    chosen.sort(key=lambda node: (node not in now.chosen, node not in now.former))
    return (*there, *chosen[:missing])


def stand_ins(wanted: Sequence[str], in_sync: Sequence[str]) -> Sequence[str]:
    """The mirrors in sync that are not wanted, and stay until wanted ones have whole copies: there
    are never fewer in sync than there were, or than are wanted."""
    whole = sum([mirror in wanted for mirror in in_sync])
    others = [mirror for mirror in in_sync if mirror not in wanted]
    return others[: max(min(len(in_sync), len(wanted)) - whole, 0)]


def wanted_leader(wanted: WantedMirrors, now: Copies, running: Collection[str]) -> str:
    """The node that is to lead: mode `nodes` may want the queue away from where it is.

    The queue stays there until a listed node has a whole copy.
    """
    if wanted.mode != "nodes" or now.leader in wanted.params:
        return now.leader
    for node in wanted.params:
        if node in running and node in now.in_sync:
            return str(node)
    return now.leader


def better_leader(now: Copies, leads: Mapping[str, int]) -> str:
    """The node that should lead for the sake of balance: one that leads at least two queues fewer
    than the present leader, or else this one."""
    best = min(now.in_sync, key=lambda node: (leads.get(node, 0), node), default=now.leader)
    return best if leads.get(best, 0) + 1 < leads.get(now.leader, 0) else now.leader


def next_leader(now: Copies, may_lead: Collection[str], leads: Mapping[str, int]) -> str | None:
    """The node that is to lead if the present leader should not: the mirror in sync that leads the
    fewest queues; None if there is none."""
    there = [node for node in now.in_sync if node in may_lead]
    return min(there, key=lambda node: (leads.get(node, 0), node), default=None)


def candidates(now: Copies, alive: Collection[str], promote: str) -> tuple[str, ...]:
    """The mirrors that may lead when the leader is gone, the best first.

    With `when-synced` only whole copies may; if there is none, the queue waits for its leader.
    """
    there = [mirror for mirror in now.mirrors if mirror in alive]
    whole = [mirror for mirror in there if mirror in now.in_sync]
    if promote == WHEN_SYNCED:
        return tuple(whole)
    return (*whole, *(mirror for mirror in there if mirror not in now.in_sync))

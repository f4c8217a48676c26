"""What the virtual hosts of a node have in common."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from warren.core.access.limits import VhostLimits
from warren.core.backing.backing_queue import BackingQueue, BackingSpec
from warren.core.policies.policy import Policies
from warren.core.ports import Clock, ContentCodec, MetadataStore
from warren.core.queues.local_queues import LocalQueues
from warren.core.queues.placement import Placement
from warren.core.scheduling.turns import Turns
from warren.core.vhosts.node_counts import NodeCounts
from warren.core.vhosts.reply_to import Replies


class SharedParts(NamedTuple):
    """`new_backing_queue` makes what holds the messages of one queue; `local_queues` are those of
    all virtual hosts which this node has itself."""

    clock: Clock
    turns: Turns
    codec: ContentCodec
    store: MetadataStore
    policies: Policies
    limits: VhostLimits
    replies: Replies
    counts: NodeCounts
    random: Random
    new_backing_queue: Callable[[BackingSpec], BackingQueue]
    placement: Placement
    local_queues: LocalQueues

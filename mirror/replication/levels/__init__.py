"""The levels of a mirrored queue: what a leader tells its mirrors, and how they follow.

Theory. At the leader, each backing queue is wrapped by a level that writes down whatever it does,
by position. At a mirror, another level carries that out on a backing queue of the same kind. Both
are state machines without I/O, and neither knows how instructions get from one to the other.

| word | meaning |
|---|---|
| slice | some messages of a queue, sent to a mirror that lacks them |

| where to look | for |
|---|---|
| `leader_level`, `mirror_level` | a level at its leader, and at a mirror; begin here |
| `queue_levels` | which kind of level a backing queue needs |
| `due_levels`, `quorum_levels`, `stream_levels` | levels of special kinds |
| `instructions` | what is written down, in octets |
| `hand_outs` | messages that may have been handed to clients, as mirrors know |
| `renumbering` | how positions change from leader to leader |
| `holes` | the positions at which the damaged disk of a leader has nothing |
| `numbered_groups` | the groups of publishes that a store answers by numbers |
| `slices`, `slice_pauses` | the form and the pace of a synchronisation |

This room knows backing queues and their messages, and none of the other rooms of `replication`.
"""

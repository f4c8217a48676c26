"""The queues that this node leads: their mirrors elsewhere, their confirms, their definitions.

Theory. `leadership` begins to lead a queue, over the backing queue that a mirror of this node had
or over the queue's own, and ends that. Each such queue is a `LedQueue`, which follows its group and
its definition, and has a `Leader`. The leader gathers instructions into batches, knows what each
mirror has, and confirms publishes; it does no I/O, but calls its queue (`leader_effects`).

| word | meaning |
|---|---|
| fenced | a leader that broadcasts and confirms nothing: another node leads, or is about to |
| origin | another node that publishes to the queue |

| where to look | for |
|---|---|
| `leadership` | how this node begins to lead a queue, and how that ends; begin here |
| `led_queue` | one queue led here |
| `leader`, `leader_effects` | its batches and confirms; its calls to the queue |
| `known_copy`, `lagging_mirrors` | a mirror, as the leader knows it; those that hold the queue up |
| `awaited_confirms`, `confirmation` | publishes that wait for the store and the mirrors |
| `flush_times` | when instructions are broadcast |
| `unreported`, `unasked` | octets that mirrors lack; messages that clients would not send again |
| `synchronisation`, `slice_writing` | how mirrors get the messages that they lack |
| `awaited_cards`, `awaited_mirrors` | when a mirror is called in sync, and a declaration is done |
| `leader_calls` | the calls of a leader to the nodes of its mirrors |
| `publishes_from_afar` | the publishes of other nodes |
| `hand_over` | planned changes of the leader |
| `lost_messages` | what happens when the leader's disk turns out to be damaged |

This room knows the other four. A node that begins to lead takes over its mirror from `copies`; a
node that another one succeeds leaves a former copy there. `copies` knows nothing of this room.
"""

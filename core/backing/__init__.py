"""Backing queues, which keep the messages of queues in memory or in a store.

Theory. A queue decides who gets a message; its *backing queue* keeps it until then, and until it
is acknowledged. `backing_queue` is the interface: messages are published, fetched, acknowledged
and requeued under positions that only grow. The implementations can be stacked:

| module | a backing queue |
|---|---|
| `memory_queue` | in memory only |
| `variable_queue` | in memory while there is room, otherwise on disk (`queue_store`) |
| `priority_queue` | made of one backing queue for each priority |
| `due_queue` | whose messages come out when they are due |
| `windowed_queue` | with a second one beside it, for the ids of messages that came before |
| `stream_log` | that keeps messages after they are read |
| `retained_log` | for messages that were acknowledged in another one (`handing_over`) |

`variable_queue` has `ready_messages`, which are in memory, in a `disk_range` or among the
`returned_messages`; `page_out` moves their bodies. `paging` decides how much all queues together
may keep in memory, from `queue_rates`. `stream_log` has `stream_store`, `stream_tail`
and `stream_limits`; without a disk, `retained_log` has `memory_retained_store`. `peeking` and
`taking` are for looking at messages and taking them out of the middle, `publishing_again` for
messages whose first publish got no answer.

Four positions divide the messages of a backing queue, or of its copy at a mirror:

- `undelivered_from`: messages before it were delivered since this object was made, or are gone.
  The next fetch of a message that was not returned begins here.
- `delivered_below`: messages before it may have been delivered, also by an earlier run of the node
  or by another leader. It is never less than `undelivered_from`.
- `redelivered_below` of a store: the `delivered_below` with which the store was closed. Messages
  before it are marked as redelivered when they are read.
- `handed_out_below` of a mirror: the leader has announced that it may deliver the messages before
  it (`mirror/replication/levels/hand_outs.py`).

Quorum queues (`core/queues/quorum_level.py`) and mirrors
(`mirror/replication/levels/`) wrap a backing queue.
"""

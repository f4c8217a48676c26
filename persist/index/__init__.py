"""Indexes: where the messages of each queue are on disk.

Theory. A queue has an index: an entry for each position, in segments of 16384 that are in memory
while they are needed. A change is noted in memory, goes to the journal when the next batch is
closed, and to the segment's file at a checkpoint. The index implements `QueueStore`
(`core/backing/queue_store.py`).

| module | for |
|---|---|
| `queue_index` | the index of a queue; begin here |
| `index_entries` | its entries, and which segments are in memory |
| `entry_reading` | reading the messages that entries lead to |
| `index_context` | what all indexes of a node share |
| `wall_offsets` | when entries expire, by the clock on the wall and by the node's |
| `delivery_counts` | how often messages came back |
| `stream_reading`, `retained_index`, `index_beside` | streams, retained messages, ids |

This room knows `layout` and `log`.
"""

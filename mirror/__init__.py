"""The cluster: links, shared definitions, members, queues at several nodes.

Rooms, each of which may use only those below it in this list:

| room | answers |
|---|---|
| `remote` | How do clients of this node use a queue that another node leads? |
| `replication` | How do several nodes have the same queue, and who leads it? |
| `log` | How does the leader of a queue send its batches straight to each mirror? |
| `gm` | How does a ring of nodes get every message that any of them broadcasts? |
| `carriers` | How does a queue see the carrier that brings its batches to other nodes? |
| `members` | Who is in the cluster, who is up, who is in maintenance, who has an alarm? |
| `messages` | How do parts of two nodes talk? Frames by kind, and questions with answers. |
| `definitions` | What do all nodes agree on? Definitions in etcd, with a copy at each node. |
| `links` | How do two nodes talk? One authenticated connection for each pair. |

`links`, `definitions` and `messages` know nothing of queues, and `gm` nothing of what it carries.
`replication` has rooms of its own: its page lists them.
`docs/clustering.md` and `docs/mirroring.md` say what users get; `docs/gm.md` describes the ring.
"""

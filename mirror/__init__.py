"""The cluster: links, shared definitions, members, queues at several nodes.

Rooms, each of which may use only those above it in this list:

| room | answers |
|---|---|
| `links` | How do two nodes talk? One authenticated connection for each pair. |
| `definitions` | What do all nodes agree on? Definitions in etcd, with a copy at each node. |
| `messages` | How do parts of two nodes talk? Frames by kind, and questions with answers. |
| `members` | Who is in the cluster, who is up, who is in maintenance, who has an alarm? |
| `carriers` | How does a queue see the carrier that brings its batches to other nodes? |
| `gm` | How does a ring of nodes get every message that any of them broadcasts? |
| `log` | How does the leader of a queue send its batches straight to each mirror? |
| `replication` | How do several nodes have the same queue, and who leads it? |
| `remote` | How do clients of this node use a queue that another node leads? |

`links`, `definitions` and `messages` know nothing of queues, and `gm` nothing of what it carries.
`docs/clustering.md` and `docs/mirroring.md` say what users get; `docs/gm.md` describes the ring.
"""

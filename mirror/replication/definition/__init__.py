"""Which nodes have a queue and which one leads it: what its definition says, and how that changes.

Theory. The definition of a queue (`QueueRecord`) is in the definitions that all nodes share. It
names the leader, the mirrors, those in sync and the epoch. Most of this room are pure functions:
from definitions, policies and the nodes that are up, they say which nodes are to have mirrors,
which may lead, and how many have to confirm. Changes are written by compare-and-set, so that two
nodes cannot both succeed one leader.

| where to look | for |
|---|---|
| `replicas` | which nodes get mirrors or the lead, as policies want it; begin here |
| `queue_members` | which nodes get quorum queues and streams, as operators want it |
| `confirm_rule` | how many copies confirm a publish, with the carrier `log` |
| `promotion` | why the lead has changed |
| `former_nodes` | which nodes have former copies that count |
| `queue_definitions`, `record_changes` | how definitions change |
| `last_words` | the last change by a leader that stops in order |
| `nodes` | the nodes of the cluster, as this one sees them |

This room knows nothing of messages, nor of the other rooms of `replication`.
"""

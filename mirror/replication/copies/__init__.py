"""The copies at this node: mirrors of queues that others lead, and what is left of earlier ones.

Theory. A `CopyHere` is a member of its queue's group and has a `Mirror`, which carries out the
leader's batches. When the leader is gone, the `CopyHere` takes part in the election. A mirror that
is no longer wanted, or a leader that another node has succeeded, leaves a former copy. The next
mirror at this node takes from it what is still in the queue, so that this need not be sent again.
Messages that are nowhere else are put into the queue `lost+found`.

| word | meaning |
|---|---|
| card | a note on disk which says of what queue and epoch a stored copy is |
| retained | acknowledged, and kept by each node for as long as a policy says |

| where to look | for |
|---|---|
| `copies_here` | the mirrors that this node has; begin here |
| `copy_questions` | what other nodes ask about them |
| `copy_here` | one of them: its member of the group, and how it comes to lead |
| `mirror` | carries out batches, and reports |
| `observed_copy` | tells observers what comes to a copy |
| `refusals` | publishes of other nodes that a queue has refused; mirrors and leaders note them |
| `former_copies`, `former_copy`, `copy_cards` | former copies of a node, and their cards |
| `lost_and_found` | messages that only a superseded leader has |
| `retained_copies` | acknowledged messages that a node retains of mirrored queues |
| `retained_sync` | how a node is sent retained messages that it lacks |

This room knows `elections`, `definition` and `levels`, and of leaders only what they send.
"""

"""A queue at several nodes: one leads it, the others have mirrors.

Theory. The leader's backing queue is wrapped: everything it does is written down as instructions. A
mirror carries these out on a backing queue of its own, and reports up to which batch it has
everything, on disk where that is needed. The leader confirms a publish when every mirror that the
definition names has it. The queue's definition says which node leads, which nodes have mirrors and
which of these are in sync; it changes by compare-and-set only.

Rooms, each of which may use only those below it in this list; `definition` and `levels` know
nothing of each other:

| room | answers |
|---|---|
| `leading` | What does a node do for the queues that it leads? |
| `copies` | What does a node have of queues that others lead, or that it led before? |
| `elections` | Which node leads a queue when its leader is gone, or comes back? |
| `definition` | Which nodes have a queue and which one leads it, and how does that change? |
| `levels` | What does a leader tell its mirrors of each message, and how do they follow? |

Beside the rooms stand modules that know all of them:

| module | for |
|---|---|
| `mirroring` | gives queues the mirrors that their policies want; begin here |
| `carrier_switch` | how a queue gets another carrier |
| `forgotten_leaders` | queues of which only former copies are left |
| `figures` | figures for operators |

To follow one message, read `levels/leader_level.py`, `leading/leader.py` and `copies/mirror.py`.
These words are used in all rooms; the page of a room has those that belong there:

| word | meaning |
|---|---|
| copy | the messages of a queue at one node that does not lead it |
| mirror | a copy that follows the leader, and the object that does so (`Mirror`) |
| batch | the instructions of a queue in one turn of the loop; it has a number |
| epoch | the time of one leader; batches are numbered anew in each |
| level | one of the backing queues of a queue: one for each priority, one for remembered ids |
| whole | a copy that lacks no message of the queue |
| in sync | a whole mirror that the definition calls so; it may take the lead |
| former copy | the messages that a node still has from a time when it was a mirror or the leader |
| carrier | what brings batches to mirrors: `gm`, the ring, or `log`, straight from the leader |
"""

"""A queue at several nodes: one leads it, the others have mirrors.

Theory. The leader's backing queue is wrapped (`leader_level`): everything it does is written down
as instructions (`instructions`). A mirror carries these out on a backing queue of its own
(`mirror`, `mirror_level`) and reports up to which batch it has everything, on disk where that is
needed. `leader` confirms a publish when every mirror that the definition names has it. The queue's
definition says which node leads, which nodes have mirrors and which of these are in sync; it
changes by compare-and-set only.

| word | meaning |
|---|---|
| copy | the messages of a queue at one node that does not lead it |
| mirror | a copy that follows the leader, and the object that does so (`Mirror`) |
| batch | the instructions of a queue in one turn of the loop; it has a number |
| epoch | the time of one leader; batches are numbered anew in each |
| level | one of the backing queues of a queue: one for each priority, one for remembered ids |
| whole | a copy that lacks no message of the queue |
| in sync | a whole mirror that the definition calls so; it may take the lead |
| slice | some messages of a queue, sent to a mirror that lacks them |
| former copy | the messages that a node still has from a time when it was a mirror or the leader |
| card | a note on disk which says of what queue and epoch a stored copy is |
| carrier | what brings batches to mirrors: `gm`, the ring, or `log`, straight from the leader |
| ballot | the number of an election; a vote in an earlier one is void |
| origin | another node that publishes to the queue |
| fenced | a leader that broadcasts and confirms nothing: another node leads, or is about to |

| where to look | for |
|---|---|
| `mirroring` | gives queues the mirrors that their policies want; begin here |
| `leadership` | how this node begins to lead a queue, and how that ends |
| `copies_here` | the mirrors that this node has of queues that others lead |
| `led_queue`, `copy_here` | one queue led here; one mirror here |
| `leader_calls` | the calls of a leader to the nodes of its mirrors |
| `hand_outs` | messages that may have been handed to clients, as mirrors know |
| `nodes` | the nodes of the cluster, as this one sees them |
| `replicas`, `promotion` | which nodes get mirrors or the lead, and why the lead has changed |
| `former_copy`, `former_copies`, `copy_cards` | former copies of a node, and their cards |
| `retained_copies` | acknowledged messages that a node retains of mirrored queues |
| `retained_sync` | how a node is sent retained messages that it lacks |
| `last_words` | the last change of a definition by a leader that stops in order |
| `publishes_from_afar`, `refusals` | publishes of other nodes: those taken, those refused |
| `renumbering` | how positions change from leader to leader |
| `lost_and_found` | messages that only a superseded leader has |
| `awaited_cards`, `record_changes` | when a mirror is called in sync; how definitions change |
| `awaited_confirms` | publishes that wait for the store and the mirrors |
| `numbered_groups` | the groups of publishes that a store answers by numbers |
| `confirm_rule`, `confirmation` | how many copies confirm a publish, with the carrier `log` |
| `election`, `election_calls` | elections, with the carrier `log` |
| `slices`, `slice_writing`, `slice_pauses` | the synchronisation of a mirror |
| `carrier_switch` | how a queue gets another carrier |
| `hand_over` | planned changes of the leader |
| `new_queues` | new quorum queues whose leader is gone before others have copies |
| `forgotten_leaders`, `former_nodes` | queues of which only former copies are left |
| `leaderless` | why no node leads a queue, in words for operators |
| `leader_effects` | the calls of a leader to its queue |
| `returned_leader`, `whole_copies` | leaders that come back, and nodes that may have whole copies |
| `figures` | figures for operators |
"""

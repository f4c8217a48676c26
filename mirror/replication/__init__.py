"""A queue at several nodes: one leads it, the others have mirrors.

Theory. The leader's backing queue is wrapped (`leader_level`): what it does is written down as
instructions (`instructions`), and what a queue does in one turn of the loop is a *batch* with a
number within the *epoch* of the leader. A mirror carries these out on a backing queue of its own
(`mirror`, `mirror_level`) and reports up to which one it has everything on disk. `leader` confirms
a publish when every mirror that the definition names has it. The queue's definition says which node
leads, which have mirrors and which of these are in sync; it changes by compare-and-set only.

| where to look | for |
|---|---|
| `mirroring` | the mirrors that queues are to have, as definitions, policies and nodes change |
| `leadership` | how this node begins to lead a queue, and how that ends |
| `copies_here` | the mirrors that this node has of queues that others lead |
| `led_queue`, `copy_here` | one queue led here; one mirror here |
| `leader_calls` | what a leader asks the nodes of its mirrors |
| `hand_outs` | what clients may have had, as far as mirrors know |
| `nodes` | which nodes there are, as this one sees them |
| `replicas`, `promotion` | which nodes get mirrors or the lead, and why the lead has changed |
| `former_copy`, `former_copies`, `copy_cards` | what a node still has of a queue from before |
| `retained_copies` | what a node keeps of messages that were acknowledged |
| `retained_sync` | how a node is sent retained messages that it lacks |
| `last_words` | what a leader that stops leaves in the definition |
| `publishes_from_afar`, `refusals` | what a queue has of the publishes of other nodes |
| `renumbering` | how positions change from leader to leader |
| `lost_and_found` | messages that only a superseded leader has |
| `awaited_cards`, `record_changes` | when a mirror is called in sync; how definitions change |
| `awaited_confirms` | publishes that wait for the store and the mirrors |
| `numbered_groups` | the groups of publishes that a store answers by numbers |
| `confirm_rule`, `confirmation` | how many copies confirm a publish, with the carrier `log` |
| `election`, `election_calls` | elections, with the carrier `log` |
| `slices`, `slice_writing`, `slice_pauses` | what a mirror is sent when it is synchronised |
| `carrier_switch` | how a queue gets another carrier |
| `hand_over` | planned changes of the leader |
| `new_queues` | new quorum queues whose leader is gone before others have copies |
| `forgotten_leaders`, `former_nodes` | queues of which only former copies are left |
| `leaderless` | what a queue waits for that no node leads |
| `leader_effects` | what a leader asks of its queue |
| `returned_leader`, `whole_copies` | leaders that come back, and nodes that may have whole copies |
| `figures` | what operators are shown |
"""

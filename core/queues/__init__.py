"""A queue as its clients see it: consumers, acknowledgements, expiry, limits, the end.

Theory. A queue hands each message to the next consumer of its ring that may have one, and asks its
backing queue (`core/backing/`) for it. What a channel gets is marked with its holder until it is
acknowledged, rejected or requeued. Everything that few queues need (time limits, length limits,
tracing) is behind one flag.

| where to look | for |
|---|---|
| `queue` | what clients ask of a queue, whichever node has it; begin here |
| `local_queue` | a queue of any type that this node has: its consumers, its life, its moves |
| `classic_queue` | which consumer gets a message, and what becomes of it if none does |
| `subscriptions` | who may subscribe, and the single active consumer |
| `consumers` | who is served next, priorities |
| `queue_arguments`, `queue_type` | what clients may declare, and what it means |
| `argument_equivalence` | when two declarations agree |
| `quorum_queue`, `quorum_level` | what quorum queues do otherwise than classic ones |
| `redelivery` | delivery limits, and returns that wait |
| `stream_queue`, `stream_arguments` | streams: readers at offsets of their own |
| `deduplicating_queue` | queues that take each message id once |
| `retention` | what a queue keeps of acknowledged messages |
| `messages_in_hand` | messages that operators have taken out of the middle |
| `unkept` | messages that die before the queue takes them |
| `queue_owner` | what a queue asks of its virtual host |
| `placement`, `local_queues` | where queues are, in a cluster |
| `moving` | what a change of the leader takes along |
"""

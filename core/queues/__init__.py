"""A queue as its clients see it: consumers, acknowledgements, expiry, limits, the end.

Theory. A queue gets each message from its backing queue (`core/backing/`) and hands it to the next
consumer of its ring that has room. Until the message is acknowledged, rejected or requeued, its
`holder` is that consumer. Everything that few queues need (time limits, length limits, tracing) is
behind one flag.

| where to look | for |
|---|---|
| `queue` | the operations of any queue, whichever node leads it; begin here |
| `local_queue` | a queue of any type that this node leads: its consumers, its life, its moves |
| `classic_queue` | which consumer gets a message, and what becomes of it if none does |
| `subscriptions` | who may subscribe, and the single active consumer |
| `consumers` | who is served next, priorities |
| `queue_arguments`, `queue_type` | arguments of declarations, and the settings they give |
| `argument_equivalence` | whether two declarations agree |
| `quorum_queue`, `quorum_level` | the differences of quorum queues from classic ones |
| `redelivery` | delivery limits, and returns that wait |
| `stream_queue`, `stream_arguments` | streams: readers at offsets of their own |
| `seeking` | the offset of a time in a log |
| `deduplicating_queue` | queues that take each message id once |
| `retention` | acknowledged messages that a queue keeps |
| `messages_in_hand` | messages that operators have taken out of the middle |
| `unkept` | messages that die before a queue has taken them |
| `queue_owner` | the calls of a queue to its virtual host |
| `placement`, `local_queues` | the nodes of queues in a cluster; the queues of this node |
| `moving` | consumers and publishes that go along when the leader changes |
"""

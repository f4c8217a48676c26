"""A virtual host: its exchanges, queues and bindings, and the rules between them.

Theory. `vhost` declares, binds, deletes and publishes. A definition changes in a transaction of the
store first, and in memory when the store has it. The consequences of a change, and the other duties
of a virtual host, have modules of their own:

| where to look | for |
|---|---|
| `vhost` | declare, bind, delete, publish; begin here |
| `contents` | the present exchanges, queues and bindings |
| `following` | makes and ends them as the definitions in the store change |
| `applied_policies` | applies policies to them |
| `queue_making` | makes the queue that a definition describes |
| `binding_index` | where bindings lead |
| `exclusive_queues` | which connection owns which exclusive queues |
| `equivalence` | errors for declarations that contradict an existing object |
| `observation` | the firehose and life traces, and what they hear |
| `burials`, `dead_letter` | dead letters: their way, and their headers |
| `delay_queue` | where delayed messages wait |
| `ending` | the deletion of what has very many bindings |
| `reply_to` | direct reply-to |
| `shared_parts` | the parts that all virtual hosts share: clock, turns, store, policies |
| `topology_access` | the permissions that a declaration or binding needs |
| `histories` | what `x-recent-history` exchanges keep and send |
| `pattern_targets`, `header_targets` | the queues behind sets of topic and headers bindings |
| `node_counts` | counts of the node for the overview |
"""

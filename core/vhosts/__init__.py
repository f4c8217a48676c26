"""A virtual host: its exchanges, queues and bindings, and the rules between them.

Theory. `vhost` declares, binds, deletes and publishes. A definition changes in a transaction of the
store first, and in memory when the store has it. What a change leads to elsewhere has a module of
its own:

| where to look | for |
|---|---|
| `vhost` | declare, bind, delete, publish; begin here |
| `contents` | the exchanges, queues and bindings that are there now |
| `following` | how these follow the definitions in the store |
| `applied_policies` | what policies mean for them |
| `queue_making` | making the queue that a definition describes |
| `binding_index` | where bindings lead |
| `exclusive_queues` | which connection owns which exclusive queues |
| `equivalence` | what a declaration is told that contradicts an existing object |
| `observation` | what the firehose and traces hear of |
| `burials`, `dead_letter` | messages that died: where they go, and what they look like then |
| `delay_queue` | where delayed messages wait |
| `ending` | the deletion of what has very many bindings |
| `reply_to` | direct reply-to |
| `shared_parts` | what virtual hosts have in common: clock, turns, store, policies |
| `topology_access` | which permissions a declaration or binding needs |
| `pattern_targets`, `node_counts` | queues behind topic patterns; counts for the overview |
"""

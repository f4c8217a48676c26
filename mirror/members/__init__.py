"""The members of the cluster, and the state of each node.

Theory. A *member* is a node that has joined, for good. A *presence* says that the member is up; it
ends with the member's lease in etcd (`presence` has the rules, `directory` the keys). `membership`
joins, keeps the lease, and says when the node must pause because it has lost etcd. Nodes tell each
other directly that they are in maintenance (`maintenance`), that they have an alarm (`alarm_news`),
how much of each quota their queues hold (`quota_news`), what their clients have open
(`client_news`) and which messages they trace (`trace_news`). `leftovers` says which definitions end
with a node, `ownerless` deletes those whose owner is gone, and `abreast` has all nodes show the
same definitions.
"""

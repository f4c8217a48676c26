"""Who is in the cluster, and how each node is.

Theory. A *member* is a node that has joined, for good; a *presence* says that it is up, and ends
with its lease in etcd (`presence` has the rules, `directory` the keys). `membership` joins, keeps
the lease, and says when the node must pause because it has lost etcd. Nodes tell each other
directly who is in maintenance (`maintenance`), who has an alarm (`alarm_news`) and what queues hold
of quotas (`quota_news`). `leftovers` says which definitions end with a node.
"""

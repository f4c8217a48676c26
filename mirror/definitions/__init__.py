"""Definitions that all nodes share: exchanges, queues, bindings, users, policies, in etcd.

Theory. `cluster_metadata` implements `core.ports.MetadataStore`. A node reads its own copy. It
writes by transactions with preconditions (compare-and-set), which go to etcd in batches
(`batch_writer`), done exactly once; each node applies them in the order in which etcd took them
(`history`). `shared_definitions` is the state machine of that: what is known, what is on its way.
`etcd` is a client of etcd's JSON gateway, `secret_proof` finds a node with another secret.

Messages never go through etcd. Nothing here knows what a queue or a member does.
"""

"""Definitions that all nodes share: exchanges, queues, bindings, users, policies, in etcd.

Theory. `cluster_metadata` implements `core.ports.MetadataStore`. A node reads its own copy. It
writes by transactions with preconditions (compare-and-set), which go to etcd in batches
(`batch_writer`), done exactly once; each node applies them in the order in which etcd took them
(`history`). `shared_definitions` is the state machine for that: it knows the definitions and the
transactions under way. `etcd` is a client of etcd's JSON gateway, whose messages are in
`etcd_messages`; `codec` encodes definitions for it, `reachability` reports when it is lost or back,
and `ending` ends tasks that talk to it. `putting_off` delays work while a node has definitions to
write. `secret_proof` detects a node with another secret. Where the nodes are processes of one
machine, `key_store` and `key_gateway` stand in for etcd. `cluster_log` is the logger of all this.

Messages never go through etcd. This room does not know what a queue or a member does.
"""

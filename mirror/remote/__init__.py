"""Queues that another node leads, as the clients of this node use them.

Theory. `remote_queue` is a `Queue` like any other to routing, channels and consumers. It numbers
its publishes and keeps each until the leader has answered, so that a new leader can be asked what
it has, and sent the rest (`settling`). The leader serves it by a session for each node and queue
(`queue_host`, `remote_client`). `placement` says which node gets a new queue.
"""

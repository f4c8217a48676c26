"""Queues that another node leads, as the clients of this node use them.

Theory. To routing, channels and consumers a `remote_queue` is a `Queue` like any other. It numbers
its publishes and keeps each until the leader has answered. So a new leader can be asked which of
them it has, and be sent the rest (`publishes_under_way`, `settling`). `remote_queues` has
them all, and is their way to the leaders (`leaders`). The leader serves the clients of each other
node by a session for each node and queue (`queue_host`, `remote_client`). `frame_heads` has the
heads of the frames between the two. `telling_ring` has the consumers of such a queue,
`subscription` describes one to the leader, and `queue_end` is the end of
an object whose queue is deleted or has moved. `placement` chooses the
node that gets a new queue. `remote_replies` brings direct replies to channels of other nodes.
"""

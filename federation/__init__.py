"""Federation: exchanges and queues get messages from those of other brokers, their upstreams.

A policy says which exchanges and queues get messages (downstream) and from which upstreams. An
upstream is a runtime parameter (`upstream.py`), and so is a set of upstreams (`sets.py`). For each
federated exchange or queue and each of its upstreams there is a link (`link.py`), which runs at one
node of the cluster: `plan.py` says which links must exist, `links.py` runs those of a node. A link
of an exchange (`exchange_session.py`) makes a queue at the upstream, carries the bindings there
(`bindings.py`) and publishes here the messages that arrive in it. A link of a queue
(`queue_session.py`) takes messages from the queue at the upstream while consumers here wait for
them. `marking.py` writes the way of a message into its headers.

This house knows `client`, the parts of `shovel` that move messages, and the interfaces of `core`.
"""

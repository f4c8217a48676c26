"""Shovels: they move messages from a queue or exchange of one broker to another broker.

A shovel is a runtime parameter of component `shovel`. `definition.py` checks and reads it.
`session.py` is one pair of connections, `worker.py` runs one session after the other, and
`shovels.py` runs the shovels of a node.

The parts that move messages between brokers serve shovels and federation: `uri.py` reads the
address of a broker, and `reach.py` says how to reach it; `transfer.py` decides the fate of each
message, without a socket, and `flow.py` puts the messages on the wire; `attempts.py` tries again
after failures; `assignments.py` has each parameter carried out by one node of the cluster.

This house knows `client` and the interfaces of `core`.
"""

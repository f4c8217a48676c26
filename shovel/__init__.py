"""Shovels: they move messages from a queue or exchange of one broker to another broker.

A shovel is a runtime parameter of component `shovel`. `definition.py` says what such a parameter
may be. `session.py` is one pair of connections, `worker.py` one session after the other, and
`shovels.py` runs the shovels of a node.

What moves messages between brokers is here, too, for shovels and for federation: `uri.py` says what
an address may be and `reach.py` how its broker is reached; `transfer.py` decides what becomes of
each message, without a socket, and `flow.py` puts that on the wire; `attempts.py` tries again;
`assignments.py` sees to it that a parameter is carried out by one node of the cluster.

This house knows `client` and the interfaces of `core`.
"""
